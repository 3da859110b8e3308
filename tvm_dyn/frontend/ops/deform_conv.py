"""DeformConv: elements sampled at computed places, then one matrix product with the weights.

DeformConv(x, w, offset)  ->  w (group, filters, channels * taps) @ columns (n, group, channels * taps, places)

(Dai et al., Deformable Convolutional Networks, 2017; with a mask: Zhu et al., Deformable ConvNets v2, 2018.)
"""

from __future__ import annotations

import itertools
import math
from functools import reduce
from operator import add, mul
from typing import Any

from tvm import te, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import clamp_index, f32, floor_div, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.conv import add_bias
from tvm_dyn.frontend.ops.matmul import emit_matmul
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.sliding_window import Axis, axes_of_window
from tvm_dyn.frontend.value import Value


@converter("DeformConv", since=19)
def deform_conv(ctx: Context, node: Node) -> Value:
    """Inputs: data, weights, offsets, bias or none, mask or none; offsets and mask are given per tap and place."""
    data, weight = node.data(0), node.data(1)
    dims, filters = ctx.shape(data), ctx.shape(weight)
    kernel = node.attr("kernel_shape") or filters[2:]
    if not all(isinstance(d, int) for d in kernel):
        raise UnsupportedOperatorError(f"{node.label}: the extents of its weights must be known")
    group, taps = node.attr("group", 1), math.prod(kernel)
    axes = axes_of_window(ctx, node, dims[2:], kernel)
    columns = _columns(ctx, node, data, axes, kernel)
    places = [a.positions for a in axes]
    depth = product([floor_div(ctx.facts, dims[1], group), taps])
    columns = reshape(ctx, columns, [dims[0], group, depth, product(places)])
    matrix = reshape(ctx, weight, [1, group, floor_div(ctx.facts, filters[0], group), depth])
    result = reshape(ctx, emit_matmul(ctx, matrix, columns), [dims[0], filters[0], *places])
    return add_bias(ctx, result, node.input(3))


def _columns(ctx: Context, node: Node, data: Value, axes: list[Axis], kernel: list[int]) -> Value:
    """(n, channels, taps, places...): what each tap reads, interpolated between its neighbours, 0 outside."""
    dims, taps, rank = ctx.shape(data), math.prod(kernel), len(axes)
    sharing = floor_div(ctx.facts, dims[1], node.attr("offset_group", 1))  # channels with the same offsets

    def columns(x: te.Tensor, offset: te.Tensor, mask: list[te.Tensor], extents: list[Any], per: Any) -> te.Tensor:
        def at(n: Any, c: Any, tap: Any, *place: Any) -> Any:
            first = (c // per) * taps + tap
            points = []
            for k, (axis, y) in enumerate(zip(axes, place, strict=True)):
                step = tap // math.prod(kernel[k + 1 :]) % kernel[k]
                regular = y * axis.stride - axis.before + step * axis.dilation
                points.append(regular.astype("float32") + offset(n, first * rank + k, *place).astype("float32"))
            value = _interpolated(x, (n, c), points)
            value = value * mask[0](n, first, *place).astype("float32") if mask else value
            return value.astype(x.dtype)

        return te.compute(extents, at, name="columns")

    extents = [dims[0], dims[1], taps, *(a.positions for a in axes)]
    masks = [] if node.input(4) is None else [ctx.tensor(node.data(4))]
    return ctx.emit_te(columns, ctx.tensor(data), ctx.tensor(node.data(2)), masks, extents, sharing)


def _interpolated(x: te.Tensor, outer: tuple[Any, Any], points: list[Any]) -> Any:
    extents = x.shape[2:]
    terms = []
    for corner in itertools.product((0, 1), repeat=len(points)):
        weights, elements, inside = [], [], []
        for bit, point, extent in zip(corner, points, extents, strict=True):
            low = tirx.floor(point)
            part = point - low
            weights.append(part if bit else f32(1) - part)
            spot = low + f32(bit)
            inside += [spot >= f32(0), spot < prim(extent).astype("float32")]
            elements.append(clamp_index(tirx.max(tirx.min(spot, f32(1 << 30)), f32(-1)).astype("int64"), extent))
        value = x(*outer, *elements).astype("float32") * reduce(mul, weights)
        terms.append(tirx.Select(tirx.all(*inside), value, f32(0)))
    return reduce(add, terms)
