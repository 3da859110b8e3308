"""Slice and Split: bounds under ONNX's clamping rules, as symbol expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import ceil_div, maximum, minimum, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value
from tvm_dyn.symbolic import simplify

_BEYOND = 10**9  # exporters write 10**9, 2**31 - 1 or 2**63 - 1 for "to the end"


@converter("Slice")
def slice_(ctx: Context, node: Node) -> Value:
    dims = ctx.shape(node.data())
    if node.opset < 10:
        starts, ends, axes, steps = node.attr("starts"), node.attr("ends"), node.attr("axes"), None
    else:
        starts, ends = list(ctx.elements(node.data(1))), list(ctx.elements(node.data(2)))
        axes, steps = (
            [int(x) for x in ctx.const(v, "its axes and steps")] if v else None for v in (node.input(3), node.input(4))
        )
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    begins, lengths, strides = [0] * len(dims), list(dims), [1] * len(dims)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= len(dims)
        begins[axis], lengths[axis] = slice_bounds(ctx, dims[axis], start, end, step)
        strides[axis] = step
    return strided_slice(ctx, node.data(), begins, lengths, strides)


def slice_bounds(ctx: Context, dim: Any, start: Any, end: Any, step: int) -> tuple[Any, Any]:
    """First index and number of elements of a slice under ONNX's clamping rules (Slice-13)."""
    low, high = (0, dim) if step > 0 else (minimum(ctx.facts, dim - 1, 0), dim - 1)
    first = clamp_index(ctx, wrap_index(ctx, start, dim), low, high)
    last = clamp_index(ctx, wrap_index(ctx, end, dim), low if step > 0 else -1, high)
    span = last - first if step > 0 else first - last
    length = maximum(ctx.facts, ceil_div(ctx.facts, span, abs(step)), 0)
    return first, length


def wrap_index(ctx: Context, index: Any, dim: Any) -> Any:
    """An index that counts from the end when negative."""
    if isinstance(index, int):
        return index + dim if -_BEYOND < index < 0 else index
    if ctx.facts.prove(index >= 0):
        return index
    return tirx.Select(index < 0, index + dim, index)


def clamp_index(ctx: Context, value: Any, low: Any, high: Any) -> Any:
    """`value` within low..high, low where the two cross."""
    if isinstance(value, int) and abs(value) >= _BEYOND:
        return high if value > 0 else low
    return maximum(ctx.facts, minimum(ctx.facts, value, high), low)


def strided_slice(
    ctx: Context, value: Value, begins: Sequence[Any], lengths: Sequence[Any], strides: Sequence[int]
) -> Value:
    """result[i] = value[begin + i * stride] with `lengths` elements per axis, all within bounds."""

    def strided_slice(x: te.Tensor, first: list[Any], extents: list[Any]) -> te.Tensor:
        def at(*index: Any) -> Any:
            return x(*[i * s + b for i, s, b in zip(index, strides, first, strict=True)])

        return te.compute(extents, at, name="strided_slice")

    return ctx.emit_te(strided_slice, ctx.tensor(value), list(begins), list(lengths))


@converter("Split")
def split(ctx: Context, node: Node) -> list[Value]:
    dims, count = ctx.shape(node.data()), len(node.outputs)
    axis = node.attr("axis", 0) % len(dims)
    sizes = node.attr("split")
    if sizes is None and node.input(1) is not None:
        sizes = list(ctx.elements(node.data(1), signed=False))
    sizes = _even_sizes(ctx, node, dims[axis], count) if sizes is None else sizes
    total = simplify(sum(sizes[1:], start=sizes[0]), ctx.facts)
    ctx.require_equal(dims[axis], total, f"axis {axis} and the sum of its parts")
    results, begin = [], 0
    for size_ in sizes:
        begins, lengths = [0] * len(dims), list(dims)
        begins[axis], lengths[axis] = begin, size_
        results.append(strided_slice(ctx, node.data(), begins, lengths, [1] * len(dims)))
        begin = simplify(begin + size_, ctx.facts)
    return results


def _even_sizes(ctx: Context, node: Node, dim: Any, count: int) -> list[Any]:
    """Parts of equal size; from opset 18 on the last one may be smaller."""
    if isinstance(dim, int):
        part = -(-dim // count)
        return [part] * (count - 1) + [dim - part * (count - 1)]
    if node.opset < 18:
        ctx.require(
            tirx.floormod(dim, count) == 0,
            [dim],
            f"{node.label}: the axis must split into {count} equal parts",
        )
        return [simplify(tirx.floordiv(dim, count), ctx.facts)] * count
    part = simplify(tirx.floordiv(dim + (count - 1), count), ctx.facts)
    last = simplify(dim - part * (count - 1), ctx.facts)
    ctx.require(prim(last) >= 0, [dim], f"{node.label}: the axis is too short for {count} parts")
    return [part] * (count - 1) + [last]
