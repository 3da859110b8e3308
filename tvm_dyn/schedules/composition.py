"""The spatial nests of a function as expressions of their readers.

T[i, j] = X[j, i] * 2
Y[i] = sum(k, T[i, k])
--->
expand(T[i, k]) = X[k, i] * 2
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import BufferStore

from tvm_dyn.schedules.common import is_costly, loads, same_exprs, substitute
from tvm_dyn.schedules.stage import Stage


class Composition:
    """Spatial nests composed into what reads them, however often that evaluates them.

    Costly nests that depend on inputs alone are left out: ``kept`` lists them, they run on their own.
    """

    def __init__(self, stages: list[Stage]):
        self._composed: list[tuple[tirx.Buffer, Stage]] = []
        self.kept: list[Stage] = []
        dependent: list[tirx.Buffer] = []
        for stage in stages:
            buffer = stage.body.buffer
            on_reduction = any(load.source.same_as(b) for load in loads(stage.body.value) for b in dependent)
            if stage.reduction or on_reduction:
                dependent.append(buffer)
            if stage.reduction:
                continue
            if _is_plain(stage.body, stage) and (on_reduction or not is_costly(stage.body)):
                self._composed.append((buffer, stage))
            else:
                self.kept.append(stage)

    def expand(self, expr: Expr) -> Expr:
        """``expr`` with loads of composed buffers replaced, down to inputs, reductions and kept nests."""

        def load(node):
            for buffer, stage in self._composed:
                if node.source.same_as(buffer):
                    axes = {iv.var: index for iv, index in zip(stage.spatial, node.indices, strict=True)}
                    return self.expand(substitute(stage.body.value, axes))
            return node

        return tvm_ffi.structural_map(expr, (tvm.ir.TensorLoad, load), order="post")


def _is_plain(store: BufferStore, stage: Stage) -> bool:
    return same_exprs(list(store.indices), [iv.var for iv in stage.spatial])
