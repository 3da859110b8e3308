"""Operators of generation: a cache that is written in place, a causal convolution that carries its last elements."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.conv import add_bias
from tvm_dyn.frontend.ops.slicing import strided_slice
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value


@converter("TensorScatter", since=24)
def tensor_scatter(ctx: Context, node: Node) -> Value:
    """The cache with an update behind each row's write index; circular ones go on at the front."""
    cache, update, first = node.data(0), node.data(1), node.input(2)
    rank = ctx.rank(cache)
    axis, circular = node.attr("axis", -2) % rank, node.attr("mode", "linear") == "circular"

    def scattered(old: te.Tensor, new: te.Tensor, starts: list[te.Tensor]) -> te.Tensor:
        def at(*index: Any) -> Any:
            start = starts[0](index[0]).astype("int64") if starts else tirx.const(0, "int64")
            place = index[axis] - start
            place = tirx.floormod(place, old.shape[axis]) if circular else place
            source = (*index[:axis], place, *index[axis + 1 :])
            written = tirx.all(place >= 0, place < new.shape[axis])
            return tirx.if_then_else(written, new(*source), old(*index))

        return te.compute(old.shape, at, name="scattered")

    starts = [] if first is None else [ctx.tensor(first)]
    return ctx.emit_te(scattered, ctx.tensor(cache), ctx.tensor(update), starts)


@converter("CausalConvWithState", since=27)
def causal_conv(ctx: Context, node: Node) -> list[Value]:
    """Inputs: x (batch, channels, length), weights (channels, 1, k), bias or none, the last k - 1 elements of before or
    none; outputs: result, the last k - 1 elements now.
    """
    x, weight, past = node.data(0), node.data(1), node.input(3)
    batch, channels, length = ctx.shape(x)
    taps = ctx.shape(weight)[2]
    if past is None:
        shape = relax.ShapeExpr([prim(d) for d in (batch, channels, taps - 1)])
        past = ctx.emit(relax.op.zeros(shape, x.dtype))
    ctx.require_equal(ctx.shape(past)[2], taps - 1, "the elements of before and the taps less one")
    joined = ctx.emit(relax.op.concat([ctx.tensor(past), ctx.tensor(x)], axis=2))
    result = add_bias(ctx, _depthwise(ctx, joined, weight, [batch, channels, length], taps), node.input(2))
    kept = strided_slice(ctx, joined, [0, 0, length], [batch, channels, taps - 1], [1, 1, 1])
    return [_activated(ctx, node, result), kept]


def _depthwise(ctx: Context, x: Value, weight: Value, dims: list[Any], taps: Any) -> Value:
    work = "float32" if x.dtype in ("float16", "bfloat16") else x.dtype

    def causal(data: te.Tensor, kernel: te.Tensor, extents: list[Any], count: Any) -> te.Tensor:
        tap = te.reduce_axis((0, prim(count)), "tap")

        def at(b: Any, c: Any, t: Any) -> Any:
            return te.sum(data(b, c, t + tap).astype(work) * kernel(c, 0, tap).astype(work), axis=tap)

        return te.compute(extents, at, name="causal")

    result = ctx.emit_te(causal, ctx.tensor(x), ctx.tensor(weight), dims, taps)
    return result if work == x.dtype else ctx.emit(relax.op.astype(ctx.tensor(result), x.dtype))


def _activated(ctx: Context, node: Node, value: Value) -> Value:
    name = node.attr("activation", "none")
    if name == "none":
        return value
    if name not in ("silu", "swish"):
        raise UnsupportedOperatorError(f"{node.label}: activation {name} is not supported")
    return ctx.emit(relax.op.nn.silu(ctx.tensor(value)))
