"""Normalizations: mean and variance over some axes, then scale and shift.

Statistics are computed in float32 (float64 for float64 data), the variance from centred values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import floor_div
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.shape import reshape
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value

op = relax.op


def _as(ctx: Context, value: Value, dtype: str) -> Value:
    if value.dtype == dtype:
        return value
    return Value(const=value.const.astype(dtype)) if value.is_const else ctx.emit(op.astype(ctx.tensor(value), dtype))


def _work_dtype(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _per_channel(ctx: Context, value: Value, channels: Any, rank: int, what: str) -> Value:
    """(c,) -> (c, 1, ...) that lines up with axis 1 of the data."""
    extent = ctx.require_equal(ctx.shape(value)[0], channels, what)
    shape = [extent, *[1] * (rank - 2)]
    return Value(const=value.const.reshape(shape)) if value.is_const else reshape(ctx, value, shape)


def _statistics(ctx: Context, tensor: relax.Expr, axes: Sequence[int]) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """(mean, values without it, variance), reduced axes kept."""
    mean = ctx.bb.emit(op.mean(tensor, list(axes), keepdims=True))
    centred = ctx.bb.emit(op.subtract(tensor, mean))
    return mean, centred, ctx.bb.emit(op.mean(op.multiply(centred, centred), list(axes), keepdims=True))


def _inverse_deviation(ctx: Context, variance: relax.Expr, epsilon: float, dtype: str) -> relax.Expr:
    return ctx.bb.emit(op.rsqrt(op.add(variance, relax.const(epsilon, dtype))))


# -- BatchNormalization --------------------------------------------------------------------------------------


@converter("BatchNormalization", since=7)
def batch_normalization(ctx: Context, node: Node) -> Any:
    if node.attr("training_mode", 0):
        return _training(ctx, node)
    data = node.data()
    dims, dtype = ctx.shape(data), data.dtype
    work = _work_dtype(dtype)
    scale, shift, mean, variance = (_as(ctx, node.data(k), work) for k in range(1, 5))
    what = "the channels and the parameters per channel"
    scale, shift, mean, variance = (_per_channel(ctx, v, dims[1], len(dims), what) for v in (scale, shift, mean, variance))
    factor, offset = _affine(ctx, scale, shift, mean, variance, node.attr("epsilon", 1e-5))
    tensor = ctx.tensor(_as(ctx, data, work))
    result = ctx.emit(op.add(op.multiply(tensor, ctx.tensor(factor)), ctx.tensor(offset)))
    return [_as(ctx, result, dtype), *[None] * (len(node.outputs) - 1)]


def _affine(ctx: Context, scale: Value, shift: Value, mean: Value, variance: Value, epsilon: float) -> tuple[Value, Value]:
    """`x * factor + offset` is the normalization with given statistics; folded where all of them are constants."""
    values = (scale, shift, mean, variance)
    if all(v.is_const for v in values):
        s, b, m, v = (np.asarray(x.const, "float64") for x in values)
        factor = s / np.sqrt(v + epsilon)
        return tuple(Value(const=x.astype(scale.dtype)) for x in (factor, b - m * factor))  # type: ignore[return-value]
    s, b, m, v = (ctx.tensor(x) for x in values)
    factor = ctx.bb.emit(op.multiply(s, _inverse_deviation(ctx, v, epsilon, scale.dtype)))
    return Value(expr=factor), ctx.emit(op.subtract(b, op.multiply(m, factor)))


def _training(ctx: Context, node: Node) -> list[Value]:
    """Normalize by the batch's own statistics; the running ones move towards them."""
    data = node.data()
    dims, dtype = ctx.shape(data), data.dtype
    work, momentum = _work_dtype(dtype), node.attr("momentum", 0.9)
    axes = [0, *range(2, len(dims))]
    what = "the channels and the parameters per channel"
    scale, shift = (_per_channel(ctx, _as(ctx, node.data(k), work), dims[1], len(dims), what) for k in (1, 2))
    mean, centred, variance = _statistics(ctx, ctx.tensor(_as(ctx, data, work)), axes)
    inverse = _inverse_deviation(ctx, variance, node.attr("epsilon", 1e-5), work)
    result = op.add(op.multiply(op.multiply(centred, inverse), ctx.tensor(scale)), ctx.tensor(shift))
    outputs = [_as(ctx, ctx.emit(result), dtype)]
    for running, current in ((node.data(3), mean), (node.data(4), variance)):
        batch = ctx.tensor(reshape(ctx, Value(expr=current), [dims[1]]))
        extent = ctx.require_equal(ctx.shape(running)[0], dims[1], what)
        kept = ctx.tensor(ctx.cast_shape(_as(ctx, running, work), [extent]))
        moved = op.add(
            op.multiply(kept, relax.const(momentum, work)), op.multiply(batch, relax.const(1 - momentum, work))
        )
        outputs.append(_as(ctx, ctx.emit(moved), running.dtype))
    return outputs


# -- over spatial axes and groups of channels ----------------------------------------------------------------


@converter("InstanceNormalization", since=6)
def instance_normalization(ctx: Context, node: Node) -> Value:
    data = node.data()
    dims, dtype = ctx.shape(data), data.dtype
    work = _work_dtype(dtype)
    scale, shift = (
        _per_channel(ctx, _as(ctx, node.data(k), work), dims[1], len(dims), "the channels and the scale and bias")
        for k in (1, 2)
    )
    _, centred, variance = _statistics(ctx, ctx.tensor(_as(ctx, data, work)), range(2, len(dims)))
    inverse = _inverse_deviation(ctx, variance, node.attr("epsilon", 1e-5), work)
    result = op.add(op.multiply(centred, op.multiply(inverse, ctx.tensor(scale))), ctx.tensor(shift))
    return _as(ctx, ctx.emit(result), dtype)


@converter("GroupNormalization", since=18)
def group_normalization(ctx: Context, node: Node) -> Value:
    """(n, c, ...) is normalized as (n, groups, c / groups, ...); up to opset 20 scale and bias are per group."""
    data, groups = node.data(), node.attr("num_groups")
    dims, dtype = ctx.shape(data), data.dtype
    work = _work_dtype(dtype)
    members = floor_div(ctx.facts, dims[1], groups)
    ctx.require_equal(dims[1], members * groups, "the channels and those of all groups")
    grouped = reshape(ctx, _as(ctx, data, work), [dims[0], groups, members, *dims[2:]])
    _, centred, variance = _statistics(ctx, ctx.tensor(grouped), range(2, len(dims) + 1))
    inverse = _inverse_deviation(ctx, variance, node.attr("epsilon", 1e-5), work)
    normalized = ctx.emit(op.multiply(centred, inverse))
    factors = (
        _grouped_factor(ctx, node, _as(ctx, node.data(k), work), groups, members, len(dims)) for k in (1, 2)
    )
    scale, shift = (ctx.tensor(f) for f in factors)
    result = ctx.emit(op.add(op.multiply(ctx.tensor(normalized), scale), shift))
    return _as(ctx, reshape(ctx, result, dims), dtype)


def _grouped_factor(ctx: Context, node: Node, value: Value, groups: int, members: Any, rank: int) -> Value:
    shape = [groups, 1] if node.opset < 21 else [groups, members]
    shape = [*shape, *[1] * (rank - 2)]
    expected = groups if node.opset < 21 else groups * members
    ctx.require_equal(ctx.shape(value)[0], expected, "the scale and bias and what they belong to")
    return reshape(ctx, value, shape)


# -- over trailing axes --------------------------------------------------------------------------------------


def _trailing_axes(ctx: Context, node: Node) -> list[int]:
    rank = ctx.rank(node.data())
    first = node.attr("axis", -1)
    if not -rank <= first < rank:
        raise InvalidModelError(f"{node.label}: axis {first} does not exist in data of rank {rank}")
    return list(range(first % rank, rank))


def _factor(ctx: Context, value: Value, dims: Sequence[Any], axes: Sequence[int]) -> Value | None:
    """A scale as a tensor over exactly the normalized axes; None where it has another rank or broadcasts."""
    own, wanted = ctx.shape(value), [dims[a] for a in axes]
    if len(own) != len(wanted) or any(isinstance(d, int) and d == 1 for d in own):
        return None
    shape = [ctx.require_equal(a, b, "the normalized dims and the scale") for a, b in zip(own, wanted, strict=True)]
    return ctx.cast_shape(value, shape)


@converter("LayerNormalization", since=17)
def layer_normalization(ctx: Context, node: Node) -> Any:
    data, axes = node.data(), _trailing_axes(ctx, node)
    dims, dtype = ctx.shape(data), data.dtype
    epsilon, work = node.attr("epsilon", 1e-5), _work_dtype(dtype)
    wanted = [k for k in range(1, len(node.outputs)) if node.outputs[k]]
    if not wanted and (result := _fused_layer_norm(ctx, node, axes, epsilon)) is not None:
        return [result, *[None] * (len(node.outputs) - 1)]
    mean, centred, variance = _statistics(ctx, ctx.tensor(_as(ctx, data, work)), axes)
    inverse = _inverse_deviation(ctx, variance, epsilon, work)
    result = _as(ctx, ctx.emit(op.multiply(centred, inverse)), dtype)
    for function, factor in ((op.multiply, node.data(1)), (op.add, node.input(2))):
        if factor is not None:
            result = ctx.emit(function(*ctx.align(result, _as(ctx, factor, dtype))[0]))
    return [ctx.cast_shape(result, dims), Value(expr=mean), Value(expr=inverse)][: len(node.outputs)]


def _fused_layer_norm(ctx: Context, node: Node, axes: list[int], epsilon: float) -> Value | None:
    data = node.data()
    dims, dtype = ctx.shape(data), data.dtype
    scale = _factor(ctx, node.data(1), dims, axes)
    shift = None if node.input(2) is None else _factor(ctx, node.data(2), dims, axes)
    if dtype == "float64" or scale is None or (shift is None and node.input(2) is not None):
        return None
    # the operator takes extents from the data: they have to read the same
    same = [*dims[: axes[0]], *ctx.shape(scale)]
    tensors = [ctx.tensor(ctx.cast_shape(data, same)), ctx.tensor(scale)]
    if shift is not None:
        tensors.append(ctx.tensor(ctx.cast_shape(shift, ctx.shape(scale))))
    else:
        tensors.append(ctx.bb.emit(op.zeros(relax.ShapeExpr(ctx.shape(scale)), dtype)))
    return ctx.emit(op.nn.layer_norm(*tensors, axes=axes, epsilon=epsilon))


@converter("RMSNormalization", since=23)
def rms_normalization(ctx: Context, node: Node) -> Value:
    data, axes = node.data(), _trailing_axes(ctx, node)
    dims, dtype = ctx.shape(data), data.dtype
    epsilon, scale = node.attr("epsilon", 1e-5), _factor(ctx, node.data(1), dims, axes)
    if scale is not None and dtype != "float64":
        same = [*dims[: axes[0]], *ctx.shape(scale)]
        tensors = ctx.tensor(ctx.cast_shape(data, same)), ctx.tensor(_as(ctx, scale, dtype))
        return ctx.emit(op.nn.rms_norm(*tensors, axes=axes, epsilon=epsilon))
    work = _work_dtype(dtype)
    tensor = ctx.tensor(_as(ctx, data, work))
    square = ctx.bb.emit(op.mean(op.multiply(tensor, tensor), axes, keepdims=True))
    normalized = ctx.emit(op.multiply(tensor, _inverse_deviation(ctx, square, epsilon, work)))
    return ctx.emit(op.multiply(*ctx.align(_as(ctx, normalized, dtype), _as(ctx, node.data(1), dtype))[0]))


# -- others --------------------------------------------------------------------------------------------------


@converter("MeanVarianceNormalization", since=9)
def mean_variance_normalization(ctx: Context, node: Node) -> Value:
    data, axes = node.data(), node.attr("axes", [0, 2, 3])
    work = _work_dtype(data.dtype)
    _, centred, variance = _statistics(ctx, ctx.tensor(_as(ctx, data, work)), axes)
    deviation = op.add(op.sqrt(variance), relax.const(1e-9, work))
    return _as(ctx, ctx.emit(op.divide(centred, deviation)), data.dtype)


@converter("LpNormalization")
def lp_normalization(ctx: Context, node: Node) -> Value:
    """x / norm along one axis; a row of zeros stays zero."""
    data, axis, tensor = node.data(), node.attr("axis", -1), ctx.tensor(node.data())
    if node.attr("p", 2) == 1:
        norm = op.sum(op.abs(tensor), [axis], keepdims=True)
    else:
        norm = op.sqrt(op.sum(op.multiply(tensor, tensor), [axis], keepdims=True))
    norm, zero = ctx.bb.emit(norm), relax.const(0, data.dtype)
    divisor = op.where(op.equal(norm, zero), relax.const(1, data.dtype), norm)
    return ctx.emit(op.divide(tensor, divisor))


@converter("LRN")
def lrn(ctx: Context, node: Node) -> Value:
    """x / (bias + alpha / size * sum of squares over neighbouring channels) ** beta."""
    size, beta = node.attr("size"), node.attr("beta", 0.75)
    alpha, bias = node.attr("alpha", 1e-4), node.attr("bias", 1.0)
    before = (size - 1) // 2

    def local_response(x: te.Tensor) -> te.Tensor:
        neighbour = te.reduce_axis((0, size), "r")
        number = lambda value: tirx.const(value, x.dtype)  # noqa: E731

        def squares(n: Any, c: Any, *index: Any) -> Any:
            channel = c + neighbour - before
            inside = tirx.all(channel >= 0, channel < x.shape[1])
            value = tirx.if_then_else(inside, x(n, channel, *index), number(0))
            return te.sum(value * value, axis=neighbour)

        total = te.compute(x.shape, squares, name="squares")

        def normalized(*index: Any) -> Any:
            return x(*index) / tirx.power(number(bias) + number(alpha / size) * total(*index), number(beta))

        return te.compute(x.shape, normalized, name="local_response")

    return ctx.emit_te(local_response, ctx.tensor(node.data()))
