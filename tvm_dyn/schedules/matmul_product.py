"""A matched matrix product: its operands, axes and epilogue at any point of the iteration space."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IterVar

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import as_int, collect, loads, same_exprs, stores, substitute


@dataclass(frozen=True)
class Matmul:
    """A product ``C[batch, m, n] = sum(k, a * b)`` in terms of block axes, and the block of its epilogue.

    ``store`` is the update statement of C; ``acc_dtype`` the type to accumulate in; ``params`` the buffers of the
    function.
    """

    batch: list[IterVar]
    m: list[IterVar]
    n: IterVar
    k: IterVar
    a: tirx.Expr
    b: tirx.Expr
    store: tirx.BufferStore
    acc_dtype: str
    params: list[tirx.Buffer]
    epilogue: s_tir.SBlock | None = None

    @property
    def rows(self):
        return emit.product([iv.dom.extent for iv in self.m])

    def a_at(self, env: dict, row, k):
        """Element (row, k) of A in the accumulator's type."""
        return substitute(self.a, self._point(env, row, None, k)).astype(self.acc_dtype)

    def b_at(self, env: dict, k, column):
        """Element (k, column) of B in the accumulator's type."""
        return substitute(self.b, self._point(env, None, column, k)).astype(self.acc_dtype)

    def result(self, env: dict, row, column, value) -> tirx.Stmt:
        """Store one element: the epilogue's statement with the product's value in place of its load."""
        made = self.store.buffer
        point = self._point(env, row, column)
        value = value.astype(str(made.dtype))
        if self.epilogue is None:
            return emit.store(made, value, *substitute(list(self.store.indices), point))
        body = tvm_ffi.structural_map(
            self.finish, (tvm.ir.TensorLoad, lambda load: value if load.source.same_as(made) else load)
        )
        return substitute(body, point)

    @functools.cached_property
    def finish(self) -> tirx.Stmt:
        """The epilogue's statement in the axes of the product."""
        assert self.epilogue is not None
        body = self.epilogue.body
        read = next(load for load in loads(body) if load.source.same_as(self.store.buffer))
        return substitute(body, dict(zip(read.indices, self.store.indices, strict=True)))

    @functools.cached_property
    def one_range(self) -> bool:
        """Whether all accesses walk the rows as one row-major range of a parameter.

        The index of a row then takes the place of the innermost row axis, with 0 for the others: the address is the
        same, and no index is divided.
        """
        accesses, mentioned = _accesses(self.a), self._mentioned(self.a)
        if self.epilogue is None:
            accesses.append((self.store.buffer, list(self.store.indices)))
            mentioned += self._mentioned(list(self.store.indices))
        else:
            own = [i for buffer, i in _accesses(self.finish) if buffer.same_as(self.store.buffer)]
            accesses += [access for access in _accesses(self.finish) if not access[0].same_as(self.store.buffer)]
            mentioned += self._mentioned(self.finish) - sum(self._mentioned(indices) for indices in own)
        inside = 0
        for buffer, indices in accesses:
            used = [d for d, index in enumerate(indices) if self._mentioned(index)]
            if used and not self._is_range(buffer, [indices[d] for d in used], used):
                return False
            inside += len(used)
        return inside == mentioned

    def _mentioned(self, root) -> int:
        """How often the axes of the rows occur."""
        return sum(v.same_as(iv.var) for v in collect(root, tirx.Var) for iv in self.m)

    def _is_range(self, buffer: tirx.Buffer, indices: list, used: list[int]) -> bool:
        if not same_exprs(indices, [iv.var for iv in self.m]) or used != list(range(used[0], used[0] + len(used))):
            return False
        if not any(buffer.same_as(p) for p in self.params) or len(buffer.strides):
            return False
        equal = tvm.sym.Analyzer().can_prove_equal
        return all(equal(buffer.shape[d], iv.dom.extent) for d, iv in zip(used[1:], self.m[1:], strict=True))

    def _point(self, env: dict, row=None, column=None, k=None) -> dict:
        """Values of the block's axes at one point of the iteration space."""
        point = dict(env)
        if row is not None and self.one_range:
            point.update({iv.var: emit.const(0) for iv in self.m[:-1]} | {iv.var: row for iv in self.m[-1:]})
        elif row is not None:
            point.update(unravel(row, self.m))
        if column is not None:
            point[self.n.var] = column
        if k is not None:
            point[self.k.var] = k
        return point


def _accesses(root) -> list[tuple[tirx.Buffer, list]]:
    found = [(load.source, list(load.indices)) for load in loads(root)]
    return found + [(store.buffer, list(store.indices)) for store in stores(root)]


def unravel(index, axes: list[IterVar]) -> dict:
    """Axis values at a position of the row-major fused iteration space of ``axes``.

    Truncating division: TVM does not know that extents are positive, and lowers nested floor divisions by
    symbolic ones to selects that its simplifier takes seconds over.
    """
    point = {}
    for axis in reversed(axes[1:]):
        if as_int(axis.dom.extent) == 1:
            point[axis.var] = emit.const(0)
            continue
        point[axis.var] = tirx.truncmod(index, axis.dom.extent)
        index = tirx.truncdiv(index, axis.dom.extent)
    if axes:
        point[axes[0].var] = index
    return point
