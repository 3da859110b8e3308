"""Matrix products: contraction dims are unified, batch dims broadcast."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value

op = relax.op


@converter("MatMul")
def matmul(ctx: Context, node: Node) -> Value:
    return emit_matmul(ctx, node.data(0), node.data(1))


def emit_matmul(ctx: Context, a: Value, b: Value) -> Value:
    """numpy.matmul, operands of rank 1 included."""
    a_dims, b_dims = ctx.shape(a), ctx.shape(b)
    row = b_dims[-2] if len(b_dims) > 1 else b_dims[0]
    inner = ctx.require_equal(a_dims[-1], row, "the contraction dims")
    batch = ctx.broadcast_shape(a_dims[:-2], b_dims[:-2])
    a_target = [*batch, a_dims[-2], inner] if len(a_dims) > 1 else [inner]
    b_target = [*batch, inner, b_dims[-1]] if len(b_dims) > 1 else [inner]
    operands = [ctx.tensor(ctx.broadcast_to(v, t[len(t) - ctx.rank(v) :])) for v, t in ((a, a_target), (b, b_target))]
    return ctx.emit(op.matmul(*operands))


@converter("Gemm", since=7)
def gemm(ctx: Context, node: Node) -> Value:
    """alpha * A' B' + beta * C."""
    dtype = node.data().dtype
    a, b = (_transposed(ctx, node.data(k), node.attr(name, 0)) for k, name in enumerate(("transA", "transB")))
    result = emit_matmul(ctx, a, b)
    result = _scaled(ctx, result, node.attr("alpha", 1.0), dtype)
    if node.input(2) is None:
        return result
    bias = _scaled(ctx, node.data(2), node.attr("beta", 1.0), dtype)
    return ctx.emit(op.add(*ctx.align(result, bias)[0]))


def _transposed(ctx: Context, value: Value, flag: int) -> Value:
    if not flag:
        return value
    if value.is_const:
        return Value(const=np.ascontiguousarray(value.const.T))
    return ctx.emit(op.permute_dims(ctx.tensor(value)))


def _scaled(ctx: Context, value: Value, factor: float, dtype: str) -> Value:
    if factor == 1.0:
        return value
    if value.is_const:
        return Value(const=(value.const * factor).astype(dtype))
    return ctx.emit(op.multiply(ctx.tensor(value), relax.const(factor, dtype)))
