"""The function that runs a range of a loop's steps; `loops` has its sketch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_dyn.frontend.extents import prim

Call = Callable[[Sequence[Any], Sequence[relax.Expr]], relax.Expr]


def emit_runner(bb: relax.BlockBuilder, body: tvm.ir.GlobalVar, states: int, symbols: int, conditional: bool) -> Call:
    """A function for `body`, as what makes a call of it from [first step, steps >= 1, *symbols] and the tensors.

    states: how many of the body's results are states; `symbols` how many symbols it takes; conditional: whether the
    first of its results tells if another step follows.
    """
    return _Runner(bb, body, states, symbols, conditional).call


class _Runner:
    def __init__(self, bb: relax.BlockBuilder, body: tvm.ir.GlobalVar, states: int, symbols: int, conditional: bool):
        self.bb, self.body, self.states, self.conditional = bb, body, states, conditional
        self.first, self.count = tirx.Var("first", "int64"), tirx.Var("count", "int64")
        self.symbols = [tirx.Var(f"s{k}", "int64") for k in range(symbols)]
        at = relax.Var("at", relax.ShapeType([self.first, self.count, *self.symbols]))
        _, *tensors = body.ty.params
        self.tensors = [relax.Var(f"p{k}", _by_rank(ty)) for k, ty in enumerate(tensors)]
        self.result_types = [_by_rank(ty) for ty in body.ty.ret.fields]
        params = [at, *self.tensors]
        result = relax.TupleType(self.result_types)
        self.function = bb.add_func(relax.Function.create_empty(params, result, is_pure=False), "loop_run")
        bb.begin_scope(params)
        seq = bb.normalize(self._sequence(self._steps))
        bb.end_scope()
        bb.update_func(self.function, relax.Function(params, seq, result, is_pure=False))

    def call(self, at: Sequence[Any], tensors: Sequence[relax.Expr]) -> relax.Expr:
        return relax.Call(self.function, [relax.ShapeExpr([prim(v) for v in at]), *tensors])

    def _sequence(self, emit: Callable[[], relax.Expr]) -> relax.SeqExpr:
        self.bb._begin_binding_block()
        try:
            result = self.bb.emit(emit())
        finally:
            block = self.bb._end_block()
        return relax.SeqExpr([block], result)

    def _steps(self) -> relax.Expr:
        single = relax.prim_value(self.count <= 1)
        return relax.If(single, self._sequence(self._one), self._sequence(self._both_halves))

    def _one(self) -> relax.Expr:
        return relax.Call(self.body, [relax.ShapeExpr([self.first, *self.symbols]), *self.tensors])

    def _both_halves(self) -> relax.Expr:
        half = self.count // 2
        first = self._fields(self.call([self.first, half, *self.symbols], self.tensors))
        if not self.conditional:
            return self._second_half(half, first)
        more = self._sequence(lambda: self._second_half(half, first))
        return relax.If(first[0], more, self._sequence(lambda: relax.Tuple(first)))

    def _second_half(self, half: Any, first: list[relax.Expr]) -> relax.Expr:
        offset = 1 if self.conditional else 0
        states = first[offset : offset + self.states]
        at = [self.first + half, self.count - half, *self.symbols]
        second = self._fields(self.call(at, [*states, *self.tensors[self.states :]]))
        rows = range(offset + self.states, len(first))
        return relax.Tuple([*second[: rows.start], *(self._joined(first[k], second[k]) for k in rows)])

    def _fields(self, call: relax.Expr) -> list[relax.Expr]:
        result = self.bb.emit(call)
        return [self.bb.emit(relax.TupleGetItem(result, k)) for k in range(len(self.result_types))]

    def _joined(self, first: relax.Expr, second: relax.Expr) -> relax.Expr:
        """The rows of both halves, whose extents must be the same."""
        extents = [tirx.Var(f"d{k}", "int64") for k in range(first.ty.ndim - 1)]
        parts = []
        for part in (first, second):
            rows = tirx.Var("rows", "int64")
            parts.append(self.bb.match_cast(part, relax.TensorType([rows, *extents], part.ty.dtype)))
        return self.bb.emit(relax.op.concat(parts, axis=0))


def _by_rank(ty: relax.TensorType) -> relax.TensorType:
    return relax.TensorType(dtype=ty.dtype, ndim=ty.ndim)
