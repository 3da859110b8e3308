"""Convolutions of any rank, and transposed ones as convolutions.

ConvTranspose(x, w; stride s) -> Conv(x, w split into s**rank phases) -> interleave the phases -> crop

Phase p of output y = q * s + p sums `x[q - j] * w[j * s + p]` over j: an ordinary convolution with
ceil(k / s) taps. Nothing is multiplied by inserted zeros, and no kernel divides an index by the stride.
(Sub-pixel convolution: Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import ceil_div, floor_div, is_symbolic, maximum
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.ops.slicing import strided_slice
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.sliding_window import Axis, axes_of_window, per_axis, simplify_sum, split_pads
from tvm_dyn.frontend.value import Value

_RELAX_CONV: dict[int, Callable[..., relax.Expr]] = {
    1: relax.op.nn.conv1d,
    2: relax.op.nn.conv2d,
    3: relax.op.nn.conv3d,
}


@converter("Conv")
def conv(ctx: Context, node: Node) -> Value:
    data, weight = node.data(0), node.data(1)
    dims, kernel = ctx.shape(data), ctx.shape(weight)
    _check_ranks(node, dims, kernel)
    group = node.attr("group", 1)
    channels = ctx.require_equal(dims[1], kernel[1] * group, "the input's channels and those of the weights")
    data = ctx.cast_shape(data, [dims[0], channels, *dims[2:]])
    axes = axes_of_window(ctx, node, dims[2:], kernel[2:])
    return add_bias(ctx, emit_conv(ctx, data, weight, axes, group), node.input(2))


def _check_ranks(node: Node, dims: Sequence[Any], kernel: Sequence[Any]) -> None:
    if len(dims) != len(kernel) or len(dims) < 3:
        raise InvalidModelError(f"{node.label}: data of rank {len(dims)} and weights of rank {len(kernel)} do not fit")


def emit_conv(ctx: Context, data: Value, weight: Value, axes: Sequence[Axis], group: int) -> Value:
    """(n, c, spatial...) with weights (f, c / group, kernel...) -> (n, f, positions...)."""
    if not all(axis.fixed_pads for axis in axes):
        data, axes = _padded(ctx, data, axes)
    # half precision is summed in float32, as everywhere
    narrow = data.dtype == "float16"
    if len(axes) in _RELAX_CONV:
        result = _RELAX_CONV[len(axes)](
            ctx.tensor(data),
            ctx.tensor(weight),
            strides=[a.stride for a in axes],
            padding=[a.before for a in axes] + [a.after for a in axes],
            dilation=[a.dilation for a in axes],
            groups=group,
            out_dtype="float32" if narrow else None,
        )
        return ctx.emit(relax.op.astype(result, data.dtype) if narrow else result)
    if any(a.before or a.after for a in axes):
        data, axes = _padded(ctx, data, axes)
    return _conv_nd(ctx, data, weight, axes, group)


def _padded(ctx: Context, data: Value, axes: Sequence[Axis]) -> tuple[Value, list[Axis]]:
    """The data inside zeros, and the same windows over it."""
    dims = ctx.shape(data)
    extents = [simplify_sum(ctx, a.extent + a.before + a.after) for a in axes]

    def pad(x: te.Tensor, before: list[Any], shape: list[Any]) -> te.Tensor:
        def at(n: Any, c: Any, *index: Any) -> Any:
            source = [i - b for i, b in zip(index, before, strict=True)]
            return guarded(x, n, c, source, 0)

        return te.compute(shape, at, name="pad")

    result = ctx.emit_te(pad, ctx.tensor(data), [a.before for a in axes], [*dims[:2], *extents])
    return result, [
        Axis(e, a.kernel, a.stride, a.dilation, 0, 0, 0, a.positions) for e, a in zip(extents, axes, strict=True)
    ]


def guarded(x: te.Tensor, n: Any, c: Any, source: Sequence[Any], outside: Any) -> Any:
    """The element at a spatial position, or `outside` where the position is not one of the data."""
    inside = [cond for i, extent in zip(source, x.shape[2:], strict=True) for cond in (i >= 0, i < extent)]
    fill = tirx.const(outside, x.dtype) if isinstance(outside, int) else outside
    return tirx.if_then_else(tirx.all(*inside), x(n, c, *source), fill)


def _conv_nd(ctx: Context, data: Value, weight: Value, axes: Sequence[Axis], group: int) -> Value:
    """A convolution of a rank that Relax has no operator for, without pads."""

    def conv_nd(x: te.Tensor, w: te.Tensor, positions: list[Any]) -> te.Tensor:
        filters, channels, *kernel = w.shape
        channel = te.reduce_axis((0, channels), "c")
        taps = [te.reduce_axis((0, extent), f"r{k}") for k, extent in enumerate(kernel)]

        def at(n: Any, f: Any, *index: Any) -> Any:
            first = tirx.floordiv(f, tirx.floordiv(filters, group)) * channels if group > 1 else 0
            elements = [y * a.stride + r * a.dilation for a, y, r in zip(axes, index, taps, strict=True)]
            term = x(n, first + channel, *elements).astype(total) * w(f, channel, *taps).astype(total)
            return te.sum(term, axis=[channel, *taps])

        return te.compute([x.shape[0], filters, *positions], at, name="conv_nd")

    total = "float32" if data.dtype == "float16" else data.dtype
    result = ctx.emit_te(conv_nd, ctx.tensor(data), ctx.tensor(weight), [a.positions for a in axes])
    return result if total == data.dtype else ctx.emit(relax.op.astype(ctx.tensor(result), data.dtype))


def add_bias(ctx: Context, value: Value, bias: Value | None) -> Value:
    """Add one number per channel (axis 1)."""
    if bias is None:
        return value
    dims = ctx.shape(value)
    channels = ctx.require_equal(ctx.shape(bias)[0], dims[1], "the bias and the output channels")
    shape = [1, channels, *[1] * (len(dims) - 2)]
    column = Value(const=bias.const.reshape(shape)) if bias.is_const else reshape(ctx, bias, shape)
    return ctx.emit(relax.op.add(ctx.tensor(value), ctx.tensor(column)))


# -- transposed ----------------------------------------------------------------------------------------------


@converter("ConvTranspose")
def conv_transpose(ctx: Context, node: Node) -> Value:
    data, weight = node.data(0), node.data(1)
    dims, kernel = ctx.shape(data), ctx.shape(weight)
    _check_ranks(node, dims, kernel)
    rank, group = len(dims) - 2, node.attr("group", 1)
    channels = ctx.require_equal(dims[1], kernel[0], "the input's channels and those of the weights")
    data = ctx.cast_shape(data, [dims[0], channels, *dims[2:]])
    strides, dilations = per_axis(node, "strides", rank, 1), per_axis(node, "dilations", rank, 1)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel[2:], dilations, strict=True)]
    crops = _crops(ctx, node, dims[2:], spans, strides)
    # zero taps behind the last give the zeros that output_padding asks for
    surplus = [c + n - ((e - 1) * s + k) for (c, n), e, s, k in zip(crops, dims[2:], strides, spans, strict=True)]
    surplus = [simplify_sum(ctx, x) for x in surplus]
    reach = [k + max(x, 0) if isinstance(x, int) else k for k, x in zip(spans, surplus, strict=True)]
    taps = [ceil_div(ctx.facts, r, s) for r, s in zip(reach, strides, strict=True)]
    phases = _phase_weights(ctx, weight, group, strides, dilations, taps)
    axes = [
        Axis(e, t, 1, 1, t - 1, t - 1, t - 1, simplify_sum(ctx, e + t - 1)) for e, t in zip(dims[2:], taps, strict=True)
    ]
    result = _interleave(ctx, emit_conv(ctx, data, phases, axes, group), strides)
    return add_bias(ctx, crop(ctx, result, crops), node.input(2))


def _crops(
    ctx: Context, node: Node, extents: Sequence[Any], spans: Sequence[Any], strides: list[int]
) -> list[tuple[Any, Any]]:
    """(elements to drop in front, elements to keep) per axis."""
    rank = len(extents)
    auto_pad, extra = node.attr("auto_pad", "NOTSET"), per_axis(node, "output_padding", rank, 0)
    pads, wanted = node.attr("pads") or [0] * (2 * rank), node.attr("output_shape")
    result = []
    for k, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
        full = (extent - 1) * stride + spans[k] + extra[k]
        if wanted is not None or auto_pad.startswith("SAME"):
            length = wanted[len(wanted) - rank + k] if wanted is not None else extent * stride
            total = maximum(ctx.facts, simplify_sum(ctx, full - length), 0)
            before, _ = split_pads(ctx, total, auto_pad == "SAME_UPPER")
        else:
            before, after = (0, 0) if auto_pad == "VALID" else (pads[k], pads[k + rank])
            length = simplify_sum(ctx, full - before - after)
        length = length if isinstance(length, int) else maximum(ctx.facts, length, 0)
        result.append((before, length))
    return result


def _phase_weights(
    ctx: Context, weight: Value, group: int, strides: list[int], dilations: list[int], taps: Sequence[Any]
) -> Value:
    """(c, f / group, kernel...) -> (f * phases, c / group, taps...), taps in reverse."""
    if not weight.is_const or is_symbolic(*taps):
        return _runtime_phase_weights(ctx, weight, group, strides, dilations, taps)
    array = weight.const
    channels, filters, *kernel = array.shape
    rank = len(kernel)
    spread = np.zeros([channels, filters, *[t * s for t, s in zip(taps, strides, strict=True)]], array.dtype)
    spread[(..., *[slice(0, (k - 1) * d + 1, d) for k, d in zip(kernel, dilations, strict=True)])] = array
    split = spread.reshape(
        [group, channels // group, filters, *[n for ts in zip(taps, strides, strict=True) for n in ts]]
    )
    reverse = np.flip(split, axis=tuple(3 + 2 * k for k in range(rank)))
    order = [0, 2, *[4 + 2 * k for k in range(rank)], 1, *[3 + 2 * k for k in range(rank)]]
    phases = group * filters * int(np.prod(strides))
    return Value(const=np.ascontiguousarray(reverse.transpose(order)).reshape([phases, channels // group, *taps]))


def _runtime_phase_weights(
    ctx: Context, weight: Value, group: int, strides: list[int], dilations: list[int], taps: Sequence[Any]
) -> Value:
    """The same, for weights that only the run knows; dilation is then a stride over absent taps."""
    channels, filters, *kernel = ctx.shape(weight)
    rank = len(kernel)
    members = floor_div(ctx.facts, channels, group)
    ctx.require_equal(channels, members * group, "the channels and those of all groups")

    def phase_weights(w: te.Tensor, shape: list[Any]) -> te.Tensor:
        members, *taps = shape[2 + rank :]

        def at(g: Any, f: Any, *index: Any) -> Any:
            phase, c, tap = index[:rank], index[rank], index[rank + 1 :]
            place = [(t - 1 - j) * s + p for t, j, s, p in zip(taps, tap, strides, phase, strict=True)]
            exists = [tirx.floormod(r, d) == 0 for r, d in zip(place, dilations, strict=True) if d > 1]
            source = [tirx.floordiv(r, d) if d > 1 else r for r, d in zip(place, dilations, strict=True)]
            exists += [r < k for r, k in zip(source, w.shape[2:], strict=True)]
            return tirx.if_then_else(tirx.all(*exists), w(g * members + c, f, *source), tirx.const(0, w.dtype))

        return te.compute(shape, at, name="phase_weights")

    shape = [group, filters, *strides, members, *taps]
    result = ctx.emit_te(phase_weights, ctx.tensor(weight), shape)
    return reshape(ctx, result, [product([group, filters, *strides]), members, *taps])


def _interleave(ctx: Context, value: Value, strides: list[int]) -> Value:
    """(n, f * phases, q...) -> (n, f, q * stride...)."""
    if all(s == 1 for s in strides):
        return value
    batch, channels, *extents = ctx.shape(value)
    rank, count = len(strides), int(np.prod(strides))
    filters = floor_div(ctx.facts, channels, count)
    split = reshape(ctx, value, [batch, filters, *strides, *extents])
    order = [0, 1, *[axis for k in range(rank) for axis in (2 + rank + k, 2 + k)]]
    mixed = ctx.emit(relax.op.permute_dims(ctx.tensor(split), order))
    return reshape(ctx, mixed, [batch, filters, *[product([e, s]) for e, s in zip(extents, strides, strict=True)]])


def crop(ctx: Context, value: Value, crops: Sequence[tuple[Any, Any]]) -> Value:
    """Keep a range of every spatial axis; what lies behind the data is 0."""
    batch, channels, *extents = ctx.shape(value)
    befores, lengths = [c[0] for c in crops], [c[1] for c in crops]
    rank = len(crops)
    ends = [simplify_sum(ctx, e - b - n) for e, (b, n) in zip(extents, crops, strict=True)]
    if all(isinstance(b, int) and b == 0 and isinstance(e, int) and e == 0 for b, e in zip(befores, ends, strict=True)):
        return value
    if all(e >= 0 if isinstance(e, int) else ctx.facts.prove(e >= 0) for e in ends):
        return strided_slice(ctx, value, [0, 0, *befores], [batch, channels, *lengths], [1] * (2 + rank))

    def keep(x: te.Tensor, first: list[Any], shape: list[Any]) -> te.Tensor:
        def at(n: Any, c: Any, *index: Any) -> Any:
            source = [i + b for i, b in zip(index, first, strict=True)]
            return guarded(x, n, c, source, 0)

        return te.compute(shape, at, name="crop")

    return ctx.emit_te(keep, ctx.tensor(value), befores, [batch, channels, *lengths])
