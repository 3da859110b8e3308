"""What attention evaluates once for a block of keys, ahead of its register tiles.

Keys and values that are more than loads would be evaluated again for each tile of the block. Masks of (query, key) lie
with neighbouring keys side by side, while the kernel has queries in lanes: they are turned over by squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Stmt

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.attention_match import Attention
from tvm_dyn.schedules.common import as_int, loads, same_exprs, substitute, uses_var
from tvm_dyn.schedules.llvm_transpose import transpose

LANE = tirx.Var("lane", "int64")
"""Position of a query in its block, in the scores of `Staged`."""


@dataclass(frozen=True)
class Staged:
    """A block of keys [first, first + count), with operands that read what has been evaluated for it.

    The operands are functions of the variables of the attention they come from, and of `LANE`.
    """

    first: Expr
    count: Expr
    k: Expr
    v: Expr
    score: Expr


class Stager:
    """Decides what of an attention is evaluated for a block of ``keys`` keys and ``width`` queries."""

    def __init__(self, found: Attention, keys: int, width: int, lanes: int):
        self.found, self.keys, self.width, self.lanes = found, keys, width, lanes
        self._masks = _masks(found)
        self._rows = [
            (name, axis)
            for name, axis in (("k", found.depth), ("v", found.column))
            if not isinstance(getattr(found, name), tvm.ir.TensorLoad)
        ]

    def sizes(self) -> list[int]:
        """Elements of the buffers to pass to `stage`."""
        rows = [self.keys * (as_int(axis.dom.extent) or 0) for _, axis in self._rows]
        return rows + [self.keys * self.width for _ in self._masks]

    def stage(self, env: dict, start, vectors, first, count, square, buffers: list) -> tuple[list[Stmt], Staged]:
        """The statements that fill ``buffers`` for ``vectors`` vectors of queries from ``start`` on, and their use."""
        found, lanes = self.found, self.lanes
        operands = {"k": found.k, "v": found.v, "score": found.score}
        statements = []
        for (name, axis), buffer in zip(self._rows, buffers, strict=False):
            statements.append(self._row_block(operands[name], axis, env, first, count, buffer))
            row = (found.key.var - first) * axis.dom.extent
            operands[name] = emit.load(buffer, row + axis.var)
        for mask, buffer in zip(self._masks, buffers[len(self._rows) :], strict=True):

            def at(lane, key, mask=mask) -> Expr:
                query = tirx.min(start + lane, found.query.dom.extent - 1)
                value = substitute(mask, {**env, found.query.var: query, found.key.var: first + key})
                return value.astype("float32")

            def piece(key, size: int, at=at, buffer=buffer) -> Stmt:
                return emit.serial(vectors, lambda u: self._turn(at, u * lanes, key, size, square, buffer))

            statements.append(emit.pieces(count, lanes, piece))
            value = emit.load(buffer, (found.key.var - first) * self.width + LANE).astype(str(mask.ty))
            operands["score"] = _replace(operands["score"], mask, value)
        return statements, Staged(first, count, **operands)

    def _row_block(self, operand: Expr, axis, env: dict, first, count, buffer) -> Stmt:
        extent = axis.dom.extent

        def element(key, j) -> Stmt:
            value = substitute(operand, {**env, self.found.key.var: first + key, axis.var: j})
            return emit.store(buffer, value, key * extent + j)

        return emit.serial(count, lambda key: emit.chunks(extent, self.lanes, lambda j: element(key, j)))

    def _turn(self, at: Callable, lane, key, size: int, square, buffer) -> Stmt:
        """``size`` keys of a vector of queries, from rows of keys to rows of queries."""
        if size < self.lanes:
            return emit.serial(
                self.lanes,
                lambda i: emit.serial(
                    size,
                    lambda j: emit.store(buffer, at(lane + i, key + j), (key + j) * self.width + lane + i),
                ),
            )

        def row(i) -> Stmt:
            return emit.vectorized(size, lambda v: emit.store(square, at(lane + i, key + v), i * size + v))

        source = tirx.address_of(emit.load(square, 0))
        destination = tirx.address_of(emit.load(buffer, key * self.width + lane))
        return emit.seq(emit.serial(size, row), transpose(source, destination, self.width, size))


def _masks(found: Attention) -> list:
    """The loads of a score that depend on the query, each once."""
    masks: list = []
    for load in loads(found.score):
        known = any(_same(load, mask) for mask in masks)
        if uses_var(list(load.indices), [found.query.var]) and not known and str(load.ty) in ("float32", "bool"):
            masks.append(load)
    return masks


def _same(load, other) -> bool:
    return load.source.same_as(other.source) and same_exprs(list(load.indices), list(other.indices))


def _replace(expr: Expr, old, new: Expr) -> Expr:
    return tvm_ffi.structural_map(expr, (tvm.ir.TensorLoad, lambda load: new if _same(load, old) else load))
