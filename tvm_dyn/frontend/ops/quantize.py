"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear: rounded half to even as the standard says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from tvm import relax, te, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.cast import FORMATS, decode, encode
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value

op = relax.op
STORED = ("uint8", "int8", "uint16", "int16", "int32")


@converter("QuantizeLinear")
def quantize_linear(ctx: Context, node: Node) -> Any:
    """saturate(round(x / scale) + zero point), scales per tensor, per axis or per block."""
    x, scale, zero = node.data(0), node.data(1), node.input(2)
    dtype = _output_dtype(node, zero)
    if dtype not in STORED and dtype not in FORMATS:
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
    if x.dtype not in STORED and x.dtype not in FORMATS:
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


def requantized(ctx: Context, total: Value, scales: list[Value], zero: Value) -> Value:
    """round(total * scale * scale / result scale) + zero point, saturated to the type of the zero point."""
    dtype = zero.dtype
    if dtype not in STORED:
        raise UnsupportedOperatorError(f"{ctx.label}: results of type {dtype} are not supported")

    def requantize(t: Any, a: Any, b: Any, y: Any, z: Any) -> Any:
        factor = a.astype("float32") * b.astype("float32") / y.astype("float32")
        return saturated(tirx.nearbyint(t.astype("float32") * factor) + z.astype("float32"), dtype)

    return ctx.elementwise("requantize", requantize, total, *scales, zero)
