"""Equalities between dims that an operator demands of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvm_dyn.passes.shape_types import dims_of


@dataclass(frozen=True)
class Requirement:
    """``left == right``, or the call is invalid; ``right`` is ``axis`` of argument ``operand``, if given."""

    left: ir.Expr
    right: ir.Expr
    reason: str
    operand: int | None = None
    axis: int | None = None


def requirements(call: ir.Call) -> Iterator[Requirement]:
    """What ``call`` demands, from the known dims of its arguments."""
    rule = _RULES.get(call.op.name) if isinstance(call.op, ir.Op) else None
    if rule is not None:
        yield from rule(call)


def _matmul(call: ir.Call) -> Iterator[Requirement]:
    a, b = (dims_of(arg.ty) for arg in call.args[:2])
    if a and b:
        axis = max(len(b) - 2, 0)
        yield Requirement(a[-1], b[axis], "matmul multiplies over them", 1, axis)


def _concat(call: ir.Call) -> Iterator[Requirement]:
    attrs: Any = call.attrs
    fields = call.args[0].ty.fields if isinstance(call.args[0].ty, ir.TupleType) else []
    shapes = [dims_of(field) for field in fields]
    if not shapes or any(dims is None for dims in shapes) or attrs.axis is None:
        return
    first, *others = (dims for dims in shapes if dims is not None)
    joined = int(attrs.axis) % len(first)
    for dims in others:
        for axis, (left, right) in enumerate(zip(first, dims, strict=False)):
            if axis != joined:
                yield Requirement(left, right, f"concat along axis {joined} needs equal dims on axis {axis}")


def _reshape(call: ir.Call) -> Iterator[Requirement]:
    source, target = dims_of(call.args[0].ty), dims_of(call.args[1].ty)
    if source is not None and target is not None:
        yield Requirement(_product(source), _product(target), "reshape keeps the number of elements")


def _product(dims: list[ir.Expr]) -> ir.Expr:
    result: Any = tirx.IntImm("int64", 1)
    for dim in dims:
        result = result * dim
    return result


_RULES: dict[str, Callable[[ir.Call], Iterator[Requirement]]] = {
    "relax.matmul": _matmul,
    "relax.concat": _concat,
    "relax.reshape": _reshape,
}
