"""Poolings of any rank: a window slides over the data, pads never count as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tvm import relax, te, tirx

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.conv import guarded
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.sliding_window import Axis, axes_of_window, per_axis, simplify_sum
from tvm_dyn.frontend.value import Value

op = relax.op

_MAX_POOL = {1: op.nn.max_pool1d, 2: op.nn.max_pool2d, 3: op.nn.max_pool3d}
_AVERAGE_POOL = {1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}


def _axes(ctx: Context, node: Node) -> list[Axis]:
    extents, kernel = ctx.shape(node.data())[2:], node.attr("kernel_shape")
    if not extents or kernel is None:
        raise InvalidModelError(f"{node.label}: a pooling needs spatial axes and the attribute kernel_shape")
    return axes_of_window(ctx, node, extents, kernel)


def _is_plain(node: Node, axes: Sequence[Axis]) -> bool:
    """Whether Relax has an operator for it."""
    return len(axes) in _MAX_POOL and not node.attr("ceil_mode", 0) and all(a.fixed_pads for a in axes)


def _relax_pool(
    ctx: Context, node: Node, axes: Sequence[Axis], pool: Callable[..., relax.Expr], **options: Any
) -> Value:
    padding = [a.before for a in axes] + [a.after for a in axes]
    sizes = {
        "pool_size": [a.kernel for a in axes],
        "strides": [a.stride for a in axes],
        "dilation": [a.dilation for a in axes],
    }
    return ctx.emit(pool(ctx.tensor(node.data()), padding=padding, **sizes, **options))


Term = Callable[..., Any]
"""(element, its place in the data, place in the result, data, other operands...) -> what a window reduces."""


def _slide(
    ctx: Context,
    name: str,
    data: Value,
    axes: Sequence[Axis],
    fill: Any,
    combine: Any,
    term: Term,
    *others: Value,
) -> Value:
    """Combine `term` over the taps of every window; pads hold `fill`."""
    padded = any(not isinstance(p, int) or p != 0 for a in axes for p in (a.before, a.behind))

    def pool(x: te.Tensor, rest: list[te.Tensor], before: list[Any], sizes: list[Any], shape: list[Any]) -> te.Tensor:
        def pad(n: Any, c: Any, *index: Any) -> Any:
            return guarded(x, n, c, [i - b for i, b in zip(index, before, strict=True)], fill)

        source = te.compute([*x.shape[:2], *sizes], pad, name="pad_temp") if padded else x
        taps = [te.reduce_axis((0, a.kernel), f"r{k}") for k, a in enumerate(axes)]

        def at(n: Any, c: Any, *index: Any) -> Any:
            place = [y * a.stride + r * a.dilation for a, y, r in zip(axes, index, taps, strict=True)]
            element = [i - b for i, b in zip(place, before, strict=True)]
            value = source(n, c, *place)
            return combine(term(value, [n, c, *element], [n, c, *index], x, *rest), axis=taps)

        return te.compute(shape, at, name=name)

    shape = [*ctx.shape(data)[:2], *[a.positions for a in axes]]
    sizes = [simplify_sum(ctx, a.before + a.extent + a.behind) for a in axes]
    operands = ctx.tensor(data), [ctx.tensor(v) for v in others]
    return ctx.emit_te(pool, *operands, [a.before for a in axes], sizes, shape, name=name)


# -- MaxPool -------------------------------------------------------------------------------------------------


@converter("MaxPool")
def max_pool(ctx: Context, node: Node) -> Any:
    axes = _axes(ctx, node)
    largest = _relax_pool(ctx, node, axes, _MAX_POOL[len(axes)]) if _is_plain(node, axes) else _max(ctx, node, axes)
    if len(node.outputs) == 1 or not node.outputs[1]:
        return [largest, None][: len(node.outputs)]
    return [largest, _indices(ctx, node, axes, largest)]


def _max(ctx: Context, node: Node, axes: Sequence[Axis]) -> Value:
    lowest = tirx.min_value(node.data().dtype)
    return _slide(ctx, "max_pool", node.data(), axes, lowest, te.max, lambda value, *_: value)


def _indices(ctx: Context, node: Node, axes: Sequence[Axis], largest: Value) -> Value:
    """The place of the first maximum in the flat input: the lowest place whose element equals the maximum."""
    none = tirx.max_value("int64")

    def term(value: Any, element: Any, index: Any, data: te.Tensor, maximum: te.Tensor) -> Any:
        inside = [cond for i, e in zip(element, data.shape, strict=True) for cond in (i >= 0, i < e)]
        flat = reduce(lambda place, axis: place * axis[0] + axis[1], zip(data.shape, element, strict=True), 0)
        return tirx.Select(tirx.all(*inside, value == maximum(*index)), flat, none)

    lowest = tirx.min_value(node.data().dtype)
    places = _slide(ctx, "max_pool_indices", node.data(), axes, lowest, te.min, term, largest)
    return _by_columns(ctx, places, ctx.shape(node.data())) if node.attr("storage_order", 0) else places


def _by_columns(ctx: Context, places: Value, dims: list[Any]) -> Value:
    """Places in row-major planes -> places in planes whose first spatial axis runs fastest."""

    def by_columns(x: te.Tensor, extents: list[Any]) -> te.Tensor:
        def at(*index: Any) -> Any:
            rest, steps = x(*index), []
            for extent in reversed(extents):
                steps.append(tirx.floormod(rest, prim(extent)))
                rest = tirx.floordiv(rest, prim(extent))
            columns = zip(reversed(extents), steps, strict=True)
            place = reduce(lambda place, axis: place * axis[0] + axis[1], columns, tirx.const(0, "int64"))
            return rest * product(extents) + place

        return te.compute(x.shape, at, name="by_columns")

    return ctx.emit_te(by_columns, ctx.tensor(places), dims[2:])


@converter("MaxUnpool")
def max_unpool(ctx: Context, node: Node) -> Value:
    """Scatter into zeros; with an output shape the natural result fills its front corner."""
    data, indices = node.data(0), node.data(1)
    dims, kernel = ctx.shape(data), node.attr("kernel_shape")
    rank = len(kernel)
    strides, pads = per_axis(node, "strides", rank, 1), node.attr("pads") or [0] * (2 * rank)
    natural = list(dims[:2])
    for k, extent in enumerate(dims[2:]):
        natural.append(simplify_sum(ctx, (extent - 1) * strides[k] + kernel[k] - pads[k] - pads[k + rank]))
    total = product(natural)
    zeros = op.zeros(relax.ShapeExpr([total]), data.dtype)
    count = product(dims)
    flat = [ctx.tensor(reshape(ctx, v, [count])) for v in (indices, data)]
    result = reshape(ctx, ctx.emit(op.scatter_elements(zeros, *flat, axis=0)), natural)
    if node.input(2) is None:
        return result
    return _in_corner(ctx, result, list(ctx.elements(node.data(2), signed=False)))


def _in_corner(ctx: Context, value: Value, shape: list[Any]) -> Value:
    def corner(x: te.Tensor, extents: list[Any]) -> te.Tensor:
        def at(*index: Any) -> Any:
            inside = tirx.all(*[i < e for i, e in zip(index, x.shape, strict=True)])
            return tirx.if_then_else(inside, x(*index), tirx.const(0, x.dtype))

        return te.compute(extents, at, name="corner")

    return ctx.emit_te(corner, ctx.tensor(value), shape)


# -- averages and norms --------------------------------------------------------------------------------------


@converter("AveragePool")
def average_pool(ctx: Context, node: Node) -> Value:
    axes, count_pads = _axes(ctx, node), bool(node.attr("count_include_pad", 0))
    if _is_plain(node, axes) and all(a.dilation == 1 for a in axes) and node.data().dtype != "float16":
        return _relax_pool(ctx, node, axes, _AVERAGE_POOL[len(axes)], count_include_pad=count_pads)
    total = _sum(ctx, node, axes, lambda x: x)

    def average(x: te.Tensor, extents: list[Any], before: list[Any], after: list[Any]) -> te.Tensor:
        def at(n: Any, c: Any, *index: Any) -> Any:
            count: Any = tirx.const(1, "int64")
            for k, axis in enumerate(axes):
                low, high = (-before[k], extents[k] + after[k]) if count_pads else (0, extents[k])
                count = count * _taps_within(axis, index[k] * axis.stride - before[k], low, high)
            return x(n, c, *index) / tirx.max(count, tirx.const(1, "int64")).astype(x.dtype)

        return te.compute(x.shape, at, name="average")

    pads = [a.before for a in axes], [a.after for a in axes]
    return ctx.emit_te(average, ctx.tensor(total), [a.extent for a in axes], *pads)


def _taps_within(axis: Axis, start: Any, low: Any, high: Any) -> Any:
    """How many taps of a window that begins at `start` meet elements in [low, high)."""

    def taps_before(bound: Any) -> Any:
        distance = tirx.max(prim(bound - start), tirx.const(0, "int64"))
        taps = distance if axis.dilation == 1 else tirx.floordiv(distance + (axis.dilation - 1), axis.dilation)
        return tirx.min(taps, prim(axis.kernel))

    return taps_before(high) - taps_before(low)


def _sum(ctx: Context, node: Node, axes: Sequence[Axis], function: Callable[[Any], Any]) -> Value:
    return _slide(ctx, "sum_pool", node.data(), axes, 0, te.sum, lambda value, *_: function(value))


@converter("LpPool")
def lp_pool(ctx: Context, node: Node) -> Value:
    power = node.attr("p", 2)
    return _root(ctx, _sum(ctx, node, _axes(ctx, node), lambda x: _power(x, power)), power)


def _power(x: Any, exponent: int) -> Any:
    """|x| ** exponent for a whole exponent >= 1."""
    base = x if exponent % 2 == 0 else tirx.abs(x)
    return reduce(lambda a, b: a * b, [base] * exponent)


def _root(ctx: Context, total: Value, exponent: int) -> Value:
    if exponent == 1:
        return total
    tensor = ctx.tensor(total)
    return ctx.emit(op.sqrt(tensor) if exponent == 2 else op.power(tensor, relax.const(1.0 / exponent, total.dtype)))


# -- global --------------------------------------------------------------------------------------------------


@converter("GlobalAveragePool", "GlobalMaxPool")
def global_pool(ctx: Context, node: Node) -> Value:
    axes = list(range(2, ctx.rank(node.data())))
    combine = op.mean if node.op_type == "GlobalAveragePool" else op.max
    return ctx.emit(combine(ctx.tensor(node.data()), axes, keepdims=True))


@converter("GlobalLpPool", since=2)
def global_lp_pool(ctx: Context, node: Node) -> Value:
    power, tensor = node.attr("p", 2), ctx.tensor(node.data())
    axes = list(range(2, ctx.rank(node.data())))
    raised = reduce(op.multiply, [tensor if power % 2 == 0 else op.abs(tensor)] * power)
    return _root(ctx, ctx.emit(op.sum(raised, axes, keepdims=True)), power)
