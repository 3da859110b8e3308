"""Quantized operators of the domain com.microsoft: integer products with scales, and activations on 8-bit codes.

QLinearAdd(a, b)  ->  QuantizeLinear(DequantizeLinear(a) + DequantizeLinear(b))
"""

from __future__ import annotations

from typing import Any

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.composition import Operators, composed
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.integer_products import aligned, emit_matmul_integer
from tvm_dyn.frontend.ops.quantize import requantized
from tvm_dyn.frontend.value import Value, constant

_DOMAIN = "com.microsoft"


@composed("QuantizeLinear", "DequantizeLinear", domain=_DOMAIN)
def quantize(o: Operators, node: Node) -> Value:
    """As ONNX's own; the axis only counts where the scale has one."""
    return o(node.op_type, *node.inputs, axis=node.attr("axis"))


# -- products ------------------------------------------------------------------------------------------------


@composed("MatMulIntegerToFloat", domain=_DOMAIN)
def matmul_integer_to_float(o: Operators, node: Node) -> Value:
    """Inputs: a, b, their scales, their zero points or none, bias or none."""
    scales, zeros = (node.data(2), node.data(3)), (node.input(4), node.input(5))
    return _scaled_product(o, node.data(0), node.data(1), scales, zeros, node.input(6))


@composed("DynamicQuantizeMatMul", domain=_DOMAIN)
def dynamic_quantize_matmul(o: Operators, node: Node) -> Value:
    """Inputs: a in float32, b, b's scale, b's zero point or none, bias or none."""
    codes, scale, zero = o("DynamicQuantizeLinear", node.data(0), outputs=3)
    return _scaled_product(o, codes, node.data(1), (scale, node.data(2)), (zero, node.input(3)), node.input(4))


def _scaled_product(
    o: Operators,
    a: Value,
    b: Value,
    scales: tuple[Value, Value],
    zeros: tuple[Value | None, Value | None],
    bias: Value | None,
) -> Value:
    total = o.cast(emit_matmul_integer(o.ctx, a, b, *zeros), "float32")
    rank = o.ctx.rank(total)
    scale = o("Mul", aligned(o.ctx, scales[0], rank, -2), aligned(o.ctx, scales[1], rank, -1))
    result = o("Mul", total, scale)
    return result if bias is None else o("Add", result, bias)


@composed("QGemm", domain=_DOMAIN)
def qgemm(o: Operators, node: Node) -> Value:
    """Inputs: a, its scale and zero point, b, its scale and zero point, c (int32) or none, the result's scale and zero
    point or neither, for a result in float32.
    """
    a, a_scale, a_zero, b, b_scale, b_zero = (node.data(k) for k in range(6))
    a, b = (o("Transpose", v, perm=[1, 0]) if node.attr(f"trans{s}", 0) else v for v, s in ((a, "A"), (b, "B")))
    total = emit_matmul_integer(o.ctx, a, b, a_zero, b_zero)
    if node.input(6) is not None:
        total = o("Add", total, node.data(6))
    alpha = constant(node.attr("alpha", 1.0), "float32")
    scales = [o("Mul", a_scale, alpha), aligned(o.ctx, b_scale, 2, -1)]
    if node.input(7) is None:
        return o("Mul", o.cast(total, "float32"), o("Mul", *scales))
    return requantized(o.ctx, total, [*scales, node.data(7)], node.data(8))


# -- activations ---------------------------------------------------------------------------------------------


@composed("QLinearAdd", "QLinearMul", domain=_DOMAIN)
def qlinear_binary(o: Operators, node: Node) -> Value:
    """Inputs: a, b, c, each with its scale and zero point but for c, which is the result's alone."""
    a, b = _dequantized(o, node, 0), _dequantized(o, node, 3)
    return _quantized(o, o(node.op_type.removeprefix("QLinear"), a, b), node, 6)


@composed("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=_DOMAIN)
def qlinear_unary(o: Operators, node: Node) -> Value:
    """Inputs: x, its scale and zero point, the result's scale and zero point."""
    last = (node.attr("axis", -1) + 1) % o.ctx.rank(node.data(0)) == 0
    if node.op_type == "QLinearSoftmax" and node.attr("opset", 13) < 13 and not last:
        raise UnsupportedOperatorError(
            f"{node.label}: QLinearSoftmax as of opset {node.attr('opset')}, which flattens its input first, is not "
            "supported: convert the model to opset 13 or later"
        )
    attrs = {name: node.attr(name) for name in ("alpha", "axis")}
    return _quantized(o, o(node.op_type.removeprefix("QLinear"), _dequantized(o, node, 0), **attrs), node, 3)


@composed("QLinearAveragePool", "QLinearGlobalAveragePool", domain=_DOMAIN)
def qlinear_pool(o: Operators, node: Node) -> Value:
    """Inputs: x, its scale and zero point, the result's scale and zero point."""
    x, last = _dequantized(o, node, 0), node.attr("channels_last", 0)
    rank = o.ctx.rank(x)
    x = o("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]) if last else x
    attrs = {name: value for name, value in node.attrs.items() if name != "channels_last"}
    pooled = o(node.op_type.removeprefix("QLinear"), x, **attrs)
    pooled = o("Transpose", pooled, perm=[0, *range(2, rank), 1]) if last else pooled
    return _quantized(o, pooled, node, 3)


@composed("QLinearConcat", domain=_DOMAIN)
def qlinear_concat(o: Operators, node: Node) -> Value:
    """Inputs: the result's scale and zero point, then each part with its scale and zero point."""
    parts = [_dequantized(o, node, k) for k in range(2, len(node.inputs), 3)]
    return _quantized(o, o("Concat", *parts, axis=node.attr("axis")), node, 0)


@composed("QLinearWhere", domain=_DOMAIN)
def qlinear_where(o: Operators, node: Node) -> Value:
    """Inputs: condition, x and y with their scales and zero points, the result's scale and zero point."""
    chosen = o("Where", node.data(0), _dequantized(o, node, 1), _dequantized(o, node, 4))
    return _quantized(o, chosen, node, 7)


def _dequantized(o: Operators, node: Node, position: int) -> Any:
    """The operand at a position as float32; its scale and zero point follow it."""
    return o("DequantizeLinear", node.data(position), node.data(position + 1), node.input(position + 2))


def _quantized(o: Operators, value: Value, node: Node, position: int) -> Any:
    """Codes of the result, whose scale and zero point are at ``position``; without one they are as the operand's."""
    zero = node.input(position + 1)
    if zero is None:
        codes = next(v for v in node.inputs if v is not None and v.dtype in ("uint8", "int8"))
        zero = constant(0, codes.dtype)
    return o("QuantizeLinear", value, node.data(position), zero)
