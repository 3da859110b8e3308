"""Pad: constant, edge, reflect and wrap; amounts may be negative, symbolic or known only at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_dyn.errors import InvalidModelError, UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import is_symbolic, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.sliding_window import simplify_sum
from tvm_dyn.frontend.value import Value

_MODES = ("constant", "edge", "reflect", "wrap")


@converter("Pad", since=2)
def pad(ctx: Context, node: Node) -> Value:
    data, mode = node.data(), node.attr("mode", "constant")
    if mode not in _MODES:
        raise UnsupportedOperatorError(f"{node.label}: mode '{mode}' is not supported")
    before, after = _amounts(ctx, node, ctx.rank(data))
    if all(isinstance(p, int) and p == 0 for p in (*before, *after)):
        return data
    extents = [_extent(ctx, node, d, b, a) for d, b, a in zip(ctx.shape(data), before, after, strict=True)]
    if mode == "constant":
        return _constant(ctx, node, before, extents)
    moves = [not isinstance(p, int) or p != 0 for b, a in zip(before, after, strict=True) for p in (b, a)]
    padded = [moves[2 * k] or moves[2 * k + 1] for k in range(len(before))]
    _check_source(ctx, node, padded)
    once = [_reflects_once(ctx, *p) for p in zip(ctx.shape(data), before, after, strict=True)]

    def pad_from_data(x: te.Tensor, first: list[Any], shape: list[Any]) -> te.Tensor:
        def at(*index: Any) -> Any:
            source = [
                _source(mode, i.astype("int64") - b, extent, single) if moved else i
                for i, b, extent, single, moved in zip(index, first, x.shape, once, padded, strict=True)
            ]
            return x(*source)

        return te.compute(shape, at, name=f"pad_{mode}")

    return ctx.emit_te(pad_from_data, ctx.tensor(data), before, extents, name=f"pad_{mode}")


def _amounts(ctx: Context, node: Node, rank: int) -> tuple[list[Any], list[Any]]:
    """Elements to add in front of and behind each axis."""
    amounts = node.attr("pads") if node.opset < 11 else list(ctx.elements(node.data(1)).reshape(-1))
    axes = list(range(rank))
    if node.input(3) is not None:
        axes = [int(a) % rank for a in ctx.const(node.input(3), "its axes").reshape(-1)]
    if len(amounts) != 2 * len(axes):
        raise InvalidModelError(f"{node.label}: {len(amounts)} pads for {len(axes)} axes")
    before: list[Any] = [0] * rank
    after: list[Any] = [0] * rank
    for k, axis in enumerate(axes):
        before[axis], after[axis] = amounts[k], amounts[k + len(axes)]
    return before, after


def _extent(ctx: Context, node: Node, dim: Any, before: Any, after: Any) -> Any:
    extent = simplify_sum(ctx, dim + before + after)
    if is_symbolic(extent):
        ctx.require(extent >= 0, [dim, before, after], f"{node.label}: more is cut off than an axis has")
    elif extent < 0:
        raise InvalidModelError(f"{node.label}: more is cut off than an axis of {dim} has")
    return extent


def _constant(ctx: Context, node: Node, before: list[Any], extents: list[Any]) -> Value:
    data, value = node.data(), node.input(2)
    dtype = data.dtype
    known = node.attr("value", 0.0) if node.opset < 11 else 0
    if value is not None and value.is_const:
        known = np.asarray(value.const).reshape(-1)[0].item()
    runtime = [] if value is None or value.is_const else [ctx.tensor(value)]
    inside_axes = [
        not (isinstance(b, int) and b == 0 and ctx.facts.prove_equal(d, e))
        for b, d, e in zip(before, ctx.shape(data), extents, strict=True)
    ]

    def pad_constant(x: te.Tensor, fills: list[te.Tensor], first: list[Any], shape: list[Any]) -> te.Tensor:
        def at(*index: Any) -> Any:
            source = [i - b for i, b in zip(index, first, strict=True)]
            inside = [
                condition
                for i, extent, needed in zip(source, x.shape, inside_axes, strict=True)
                for condition in ((i >= 0, i < extent) if needed else ())
            ]
            fill = fills[0](*[0] * len(fills[0].shape)) if fills else tirx.const(known, dtype)
            return tirx.if_then_else(tirx.all(*inside), x(*source), fill) if inside else x(*source)

        return te.compute(shape, at, name="pad_constant")

    return ctx.emit_te(pad_constant, ctx.tensor(data), runtime, before, extents)


def _check_source(ctx: Context, node: Node, padded: list[bool]) -> None:
    """Pads that repeat elements need one."""
    for axis, dim in enumerate(ctx.shape(node.data())):
        if padded[axis] and is_symbolic(dim):
            ctx.require(dim >= 1, [dim], f"{node.label}: axis {axis} has no element to repeat")


def _reflects_once(ctx: Context, dim: Any, before: Any, after: Any) -> bool:
    """Whether no pad is longer than what one reflection gives."""
    conditions = [p <= dim - 1 for p in (before, after)]
    return all(c if isinstance(c, bool) else ctx.facts.prove(c) for c in conditions)


def _source(mode: str, index: Any, extent: Any, once: bool) -> Any:
    """The element that position `index`, counted from the data's first element, repeats."""
    last, zero = prim(extent - 1), tirx.const(0, "int64")
    if mode == "edge":
        return tirx.max(tirx.min(index, last), zero)
    if mode == "wrap":
        return tirx.floormod(index, prim(extent))
    if once:
        folded = tirx.abs(index)
        return tirx.Select(folded > last, 2 * last - folded, folded)
    period = tirx.max(2 * last, tirx.const(1, "int64"))
    place = tirx.floormod(index, period)
    return tirx.min(place, period - place)
