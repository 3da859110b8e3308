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
from tvm_dyn.frontend.extents import floor_div, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.shape import product, reshape
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
    scale, shift, mean, variance = (
        _per_channel(ctx, v, dims[1], len(dims), what) for v in (scale, shift, mean, variance)
    )
    factor, offset = _affine(ctx, scale, shift, mean, variance, node.attr("epsilon", 1e-5))
    tensor = ctx.tensor(_as(ctx, data, work))
    result = ctx.emit(op.add(op.multiply(tensor, ctx.tensor(factor)), ctx.tensor(offset)))
    return [_as(ctx, result, dtype), *[None] * (len(node.outputs) - 1)]


def _affine(
    ctx: Context, scale: Value, shift: Value, mean: Value, variance: Value, epsilon: float
) -> tuple[Value, Value]:
    """`x * factor + offset` is the normalization with given statistics; folded where all are constants."""
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
            op.multiply(kept, relax.const(momentum, work)),
            op.multiply(batch, relax.const(1 - momentum, work)),
        )
        outputs.append(_as(ctx, ctx.emit(moved), running.dtype))
    return outputs


# -- over the trailing axes ----------------------------------------------------------------------------------


def _normalize_rows(
    ctx: Context,
    data: Value,
    first: int,
    epsilon: float,
    factors: Sequence[Value | None],
    centre: bool = True,
) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift, with statistics over the axes from `first` on.

    One kernel of row stages. `factors` are scale and shift, aligned with the data's last axes; their dims
    are 1 or the data's. Without `centre` the mean counts as 0 (root mean square normalization).
    """
    dims, dtype = ctx.shape(data), data.dtype
    dims, scale, shift = _aligned(ctx, dims, *factors)
    work, padded = _work_dtype(dtype), [1, *dims] if first == 0 else dims
    rows = max(first, 1)
    data = reshape(ctx, data, padded) if first == 0 else ctx.cast_shape(data, dims)

    def normalize(x: te.Tensor, scales: list[te.Tensor], shifts: list[te.Tensor]) -> te.Tensor:
        count = product(x.shape[rows:])

        def over_row(term: Any, name: str) -> te.Tensor:
            inner = [te.reduce_axis((0, extent), f"r{k}") for k, extent in enumerate(x.shape[rows:])]
            return te.compute(x.shape[:rows], lambda *i: te.sum(term(i, (*i, *inner)), axis=inner), name=name)

        def value(index: Any) -> Any:
            return x(*index).astype(work)

        if centre:
            total = over_row(lambda _, index: value(index), "total")
        divisor = prim(count).astype(work)

        def centred(row: Any, index: Any) -> Any:
            return value(index) - total(*row) / divisor if centre else value(index)

        squares = over_row(lambda row, index: centred(row, index) * centred(row, index), "squares")

        def result(*index: Any) -> Any:
            row = index[:rows]
            deviation = tirx.sqrt(squares(*row) / divisor + tirx.const(epsilon, work))
            normal = centred(row, index) / deviation
            for tensor in scales:
                normal = normal * _broadcast_element(tensor, index).astype(work)
            for tensor in shifts:
                normal = normal + _broadcast_element(tensor, index).astype(work)
            return normal.astype(dtype)

        return te.compute(x.shape, result, name="normalize")

    operands = [[] if v is None else [ctx.tensor(v)] for v in (scale, shift)]
    normal = ctx.emit_te(normalize, ctx.tensor(data), *operands)
    return reshape(ctx, normal, dims) if first == 0 else normal


def _aligned(ctx: Context, dims: Sequence[Any], *factors: Value | None) -> tuple[list[Any], Value | None, Value | None]:
    """The data's dims, and the factors with dims that are the constant 1 or read as the data's do."""
    dims = list(dims)
    what = "the dims that are normalized and those of the scale or bias"
    for factor in factors:
        own = [] if factor is None else ctx.shape(factor)
        if len(own) > len(dims):
            raise InvalidModelError(f"{ctx.label}: its scale or bias has a higher rank than the data")
        for k, dim in enumerate(own, len(dims) - len(own)):
            if not (isinstance(dim, int) and dim == 1):
                dims[k] = ctx.require_equal(dims[k], dim, what)
    scale, shift = (
        None
        if factor is None
        else ctx.cast_shape(
            factor,
            [
                d if isinstance(d, int) and d == 1 else dims[len(dims) - ctx.rank(factor) + k]
                for k, d in enumerate(ctx.shape(factor))
            ],
        )
        for factor in factors
    )
    return dims, scale, shift


def _broadcast_element(tensor: te.Tensor, index: Sequence[Any]) -> Any:
    """The element of a tensor that lines up with the last axes; extents of 1 broadcast."""
    here = index[len(index) - len(tensor.shape) :]
    ones = [isinstance(e, int | tirx.IntImm) and int(e) == 1 for e in tensor.shape]
    return tensor(*[0 if one else i for one, i in zip(ones, here, strict=True)])


def _first_axis(ctx: Context, node: Node) -> int:
    rank, axis = ctx.rank(node.data()), node.attr("axis", -1)
    if not -rank <= axis < rank:
        raise InvalidModelError(f"{node.label}: axis {axis} does not exist in data of rank {rank}")
    return axis % rank


@converter("LayerNormalization", since=17)
def layer_normalization(ctx: Context, node: Node) -> Any:
    data, first, epsilon = node.data(), _first_axis(ctx, node), node.attr("epsilon", 1e-5)
    result = _normalize_rows(ctx, data, first, epsilon, (node.data(1), node.input(2)))
    if not any(node.outputs[1:]):
        return [result, *[None] * (len(node.outputs) - 1)]
    work = _work_dtype(data.dtype)
    axes = range(first, ctx.rank(data))
    mean, _, variance = _statistics(ctx, ctx.tensor(_as(ctx, data, work)), axes)
    inverse = _inverse_deviation(ctx, variance, epsilon, work)
    return [result, Value(expr=mean), Value(expr=inverse)][: len(node.outputs)]


@converter("RMSNormalization", since=23)
def rms_normalization(ctx: Context, node: Node) -> Value:
    epsilon, factors = node.attr("epsilon", 1e-5), (node.data(1), None)
    return _normalize_rows(ctx, node.data(), _first_axis(ctx, node), epsilon, factors, centre=False)


@converter("InstanceNormalization", since=6)
def instance_normalization(ctx: Context, node: Node) -> Value:
    data = node.data()
    dims = ctx.shape(data)
    what = "the channels and the scale and bias"
    factors = [_per_channel(ctx, node.data(k), dims[1], len(dims), what) for k in (1, 2)]
    return _normalize_rows(ctx, data, 2, node.attr("epsilon", 1e-5), factors)


@converter("GroupNormalization", since=18)
def group_normalization(ctx: Context, node: Node) -> Value:
    """(n, c, ...) is normalized as (n, groups, c / groups, ...).

    Up to opset 20 scale and bias are per group, then per channel.
    """
    data, groups = node.data(), node.attr("num_groups")
    dims = ctx.shape(data)
    members = floor_div(ctx.facts, dims[1], groups)
    ctx.require_equal(dims[1], product([members, groups]), "the channels and those of all groups")
    grouped = reshape(ctx, data, [dims[0], groups, members, *dims[2:]])
    factors = [_grouped_factor(ctx, node, node.data(k), groups, members, len(dims)) for k in (1, 2)]
    return reshape(ctx, _normalize_rows(ctx, grouped, 2, node.attr("epsilon", 1e-5), factors), dims)


def _grouped_factor(ctx: Context, node: Node, value: Value, groups: int, members: Any, rank: int) -> Value:
    own = [groups, 1] if node.opset < 21 else [groups, members]
    ctx.require_equal(ctx.shape(value)[0], product(own), "the scale and bias and what they belong to")
    return reshape(ctx, value, [*own, *[1] * (rank - 2)])


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

        def number(value: float) -> Any:
            return tirx.const(value, x.dtype)

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
