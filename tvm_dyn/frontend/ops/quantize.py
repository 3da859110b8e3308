"""Quantized operators: exact integer sums (int32), results rounded half to even as the standard says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from tvm import relax, te, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.cast import FORMATS, decode, encode
from tvm_dyn.frontend.ops.conv import conv
from tvm_dyn.frontend.ops.matmul import emit_matmul
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value, constant

op = relax.op
_STORED = ("uint8", "int8", "uint16", "int16", "int32")


@converter("QuantizeLinear")
def quantize_linear(ctx: Context, node: Node) -> Any:
    """saturate(round(x / scale) + zero point), scales per tensor, per axis or per block."""
    x, scale, zero = node.data(0), node.data(1), node.input(2)
    dtype = _output_dtype(node, zero)
    if dtype not in _STORED and dtype not in FORMATS:
        raise UnsupportedOperatorError(f"{node.label}: results of type {dtype} are not supported")
    dims = ctx.shape(x)
    pick = _granularity(ctx, node, len(dims))
    work = "float64" if x.dtype == "float64" else "float32"
    saturate = bool(node.attr("saturate", 1))

    def quantize(data: te.Tensor, scales: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            ratio = data(*index).astype(work) / scales(*pick(scales, index)).astype(work)
            if dtype in FORMATS:
                return tirx.reinterpret(dtype, encode(ratio.astype("float32"), FORMATS[dtype], saturate))
            offset = zeros[0](*pick(zeros[0], index)).astype(work) if zeros else tirx.const(0, work)
            return saturated(tirx.nearbyint(ratio) + offset, dtype)

        return te.compute(dims, at, name="quantize")

    zeros = [] if zero is None or dtype in FORMATS else [zero]  # 8-bit floats have 0 for their zero point
    return ctx.emit_te(quantize, *[ctx.tensor(v) for v in (x, scale, *zeros)])


@converter("DequantizeLinear")
def dequantize_linear(ctx: Context, node: Node) -> Any:
    """(x - zero point) * scale."""
    x, scale, zero = node.data(0), node.data(1), node.input(2)
    if x.dtype not in _STORED and x.dtype not in FORMATS:
        raise UnsupportedOperatorError(f"{node.label}: operands of type {x.dtype} are not supported")
    target = scale.dtype
    if node.attr("output_dtype", 0):
        target = str(onnx.helper.tensor_dtype_to_np_dtype(node.attr("output_dtype")))
    dims = ctx.shape(x)
    pick = _granularity(ctx, node, len(dims))

    def dequantize(data: te.Tensor, scales: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        def at(*index: Any) -> Any:
            if x.dtype in FORMATS:
                value = decode(tirx.reinterpret("uint8", data(*index)), FORMATS[x.dtype])
                return (value * scales(*pick(scales, index)).astype("float32")).astype(target)
            value = data(*index).astype("int32")
            if zeros:
                value = value - zeros[0](*pick(zeros[0], index)).astype("int32")
            return (value.astype("float32") * scales(*pick(scales, index)).astype("float32")).astype(target)

        return te.compute(dims, at, name="dequantize")

    zeros = [] if zero is None or x.dtype in FORMATS else [zero]
    return ctx.emit_te(dequantize, *[ctx.tensor(v) for v in (x, scale, *zeros)])


def _output_dtype(node: Node, zero: Value | None) -> str:
    if zero is not None:
        return zero.dtype
    if node.attr("output_dtype", 0):
        return str(onnx.helper.tensor_dtype_to_np_dtype(node.attr("output_dtype")))
    return "uint8"


def _granularity(ctx: Context, node: Node, rank: int) -> Callable[[te.Tensor, Any], list[Any]]:
    """The index of the scale (or zero point) that belongs to an index of the data."""
    scale = ctx.shape(node.data(1))
    axis = node.attr("axis", 1) % max(rank, 1)
    block = node.attr("block_size", 0)
    if scale and not block and scale[0] != 1:
        ctx.require_equal(ctx.shape(node.data(0))[axis], scale[0], "the axis and the number of its scales")

    def pick(table: te.Tensor, index: Any) -> list[Any]:
        if not table.shape:
            return []
        if block:
            return [tirx.floordiv(i, block) if k == axis else i for k, i in enumerate(index)]
        single = isinstance(table.shape[0], tirx.IntImm) and int(table.shape[0].value) == 1
        return [tirx.const(0, "int64")] if single else [index[axis]]

    return pick


def saturated(value: Any, dtype: str) -> Any:
    """A float, rounded already, as an integer within the range of `dtype`."""
    info = np.iinfo(dtype)
    source = str(value.ty.dtype)
    clamped = tirx.min(tirx.max(value, tirx.const(float(info.min), source)), tirx.const(float(info.max), source))
    return clamped.astype("int32").astype(dtype)


@converter("DynamicQuantizeLinear")
def dynamic_quantize_linear(ctx: Context, node: Node) -> list[Value]:
    """uint8 with scale and zero point from the tensor's own range, widened to hold 0."""
    x = ctx.tensor(node.data())
    low, high = (ctx.emit(reduce(x, None)) for reduce in (op.min, op.max))

    def range_scale(smallest: te.Tensor, largest: te.Tensor) -> te.Tensor:
        zero = tirx.const(0.0, "float32")

        def at() -> Any:
            span = tirx.max(largest(), zero) - tirx.min(smallest(), zero)
            return tirx.Select(span == zero, tirx.const(1.0, "float32"), span / tirx.const(255.0, "float32"))

        return te.compute((), at, name="range_scale")

    def range_zero(smallest: te.Tensor, scale: te.Tensor) -> te.Tensor:
        zero = tirx.const(0.0, "float32")
        return te.compute(
            (),
            lambda: saturated(tirx.nearbyint(zero - tirx.min(smallest(), zero) / scale()), "uint8"),
            name="range_zero",
        )

    def quantize(data: te.Tensor, scale: te.Tensor, zero: te.Tensor) -> te.Tensor:
        return te.compute(
            data.shape,
            lambda *i: saturated(tirx.nearbyint(data(*i) / scale()) + zero().astype("float32"), "uint8"),
            name="quantize",
        )

    scale = ctx.emit_te(range_scale, ctx.tensor(low), ctx.tensor(high))
    zero = ctx.emit_te(range_zero, ctx.tensor(low), ctx.tensor(scale))
    return [ctx.emit_te(quantize, x, ctx.tensor(scale), ctx.tensor(zero)), scale, zero]


# -- integer products ----------------------------------------------------------------------------------------


@converter("MatMulInteger")
def matmul_integer(ctx: Context, node: Node) -> Value:
    a = _centred(ctx, node.data(0), node.input(2), -2)
    b = _centred(ctx, node.data(1), node.input(3), -1)
    return emit_matmul(ctx, a, b)


@converter("ConvInteger")
def conv_integer(ctx: Context, node: Node) -> Value:
    x = _centred(ctx, node.data(0), node.input(2), 1)
    w = _centred(ctx, node.data(1), node.input(3), 0)
    return conv(ctx, dataclasses.replace(node, inputs=[x, w]))


def _centred(ctx: Context, value: Value, zero: Value | None, axis: int) -> Value:
    """value - zero point as int32; a zero point of more than one element belongs to `axis`."""
    if value.is_const and (zero is None or zero.is_const):
        array = value.array.astype("int32")
        return constant(array if zero is None else array - _along(zero.array, array.ndim, axis).astype("int32"))
    if zero is None or (zero.is_const and not zero.const.any()):
        return ctx.emit(op.astype(ctx.tensor(value), "int32"))
    table = _aligned(ctx, zero, ctx.rank(value), axis)
    return ctx.elementwise("centred", lambda v, z: v.astype("int32") - z.astype("int32"), value, table)


def _along(table: np.ndarray, rank: int, axis: int) -> np.ndarray:
    if table.size == 1:
        return table.reshape(())
    return table.reshape([-1 if k == axis % rank else 1 for k in range(rank)]) if table.ndim == 1 else table


def _aligned(ctx: Context, table: Value, rank: int, axis: int) -> Value:
    """A vector of scales or zero points, shaped so that it broadcasts along `axis`."""
    dims = ctx.shape(table)
    if len(dims) != 1:
        return table
    shape = [dims[0] if k == axis % rank else 1 for k in range(rank)]
    if table.is_const:
        return constant(table.const.reshape(shape))
    return ctx.emit(op.reshape(ctx.tensor(table), relax.ShapeExpr(shape)))


@converter("QLinearMatMul")
def qlinear_matmul(ctx: Context, node: Node) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.data(k) for k in range(8))
    total = emit_matmul(ctx, _centred(ctx, a, a_zero, -2), _centred(ctx, b, b_zero, -1))
    rank = ctx.rank(total)
    scales = [
        _aligned(ctx, a_scale, rank, -2),
        _aligned(ctx, b_scale, rank, -1),
        _aligned(ctx, y_scale, rank, -2),
    ]
    return _requantized(ctx, total, scales, _aligned(ctx, y_zero, rank, -2))


@converter("QLinearConv")
def qlinear_conv(ctx: Context, node: Node) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.data(k) for k in range(8))
    inputs = [_centred(ctx, x, x_zero, 1), _centred(ctx, w, w_zero, 0), node.input(8)]
    total = conv(ctx, dataclasses.replace(node, inputs=inputs))
    rank = ctx.rank(total)
    return _requantized(ctx, total, [x_scale, _aligned(ctx, w_scale, rank, 1), y_scale], y_zero)


def _requantized(ctx: Context, total: Value, scales: list[Value], zero: Value) -> Value:
    """round(total * scale * scale / result scale) + zero point, saturated to the type of the zero point."""
    dtype = zero.dtype
    if dtype not in _STORED:
        raise UnsupportedOperatorError(f"{ctx.label}: results of type {dtype} are not supported")

    def requantize(t: Any, a: Any, b: Any, y: Any, z: Any) -> Any:
        factor = a.astype("float32") * b.astype("float32") / y.astype("float32")
        return saturated(tirx.nearbyint(t.astype("float32") * factor) + z.astype("float32"), dtype)

    return ctx.elementwise("requantize", requantize, total, *scales, zero)
