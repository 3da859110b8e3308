"""Elementwise operators with numpy broadcasting over symbolic dims (equal or 1, decided at run time where unknown)."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import onnx
import tvm
from tvm import relax, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.cast import FORMATS, cast_float8
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import SUB_BYTE, Value

op = relax.op

_RELAX_BINARY: dict[str, Callable[..., relax.Expr]] = {
    "Add": op.add,
    "Sub": op.subtract,
    "Mul": op.multiply,
    "Equal": op.equal,
    "Less": op.less,
    "LessOrEqual": op.less_equal,
    "Greater": op.greater,
    "GreaterOrEqual": op.greater_equal,
    "And": op.logical_and,
    "Or": op.logical_or,
    "Xor": op.logical_xor,
    "BitwiseAnd": op.bitwise_and,
    "BitwiseOr": op.bitwise_or,
    "BitwiseXor": op.bitwise_xor,
}


@converter(*_RELAX_BINARY)
def binary(ctx: Context, node: Node) -> Value:
    if node.opset < 7:
        return _legacy_binary(ctx, node)
    if node.op_type == "Mul" and ctx.rounds_activations and node.data().dtype == "float32":
        return ctx.elementwise("multiply", _rounded_product, node.data(0), node.data(1))
    operands, _ = ctx.align(node.data(0), node.data(1))
    return ctx.emit(_RELAX_BINARY[node.op_type](*operands))


def _rounded_product(a: Any, b: Any) -> Any:
    """a * b, rounded before a sum takes it: where results are quantized, a last bit may become a whole code.

    The comparison keeps LLVM from contracting the two; all it changes is -inf, to the lowest number.
    """
    product, lowest = a * b, tirx.min_value("float32")
    return tirx.Select(product < lowest, lowest, product)


def _legacy_binary(ctx: Context, node: Node) -> Any:
    """Before opset 7 the second operand's dims line up with `axis` of the first."""
    a, b = node.data(0), node.data(1)
    if node.attr("broadcast", 0) and "axis" in node.attrs:
        trailing = ctx.rank(a) - node.attr("axis") % ctx.rank(a) - ctx.rank(b)
        b = ctx.emit(op.reshape(ctx.tensor(b), relax.ShapeExpr([*ctx.shape(b), *[1] * trailing])))
    operands, _ = ctx.align(a, b)
    return ctx.emit(_RELAX_BINARY[node.op_type](*operands))


def _is_float(dtype: str) -> bool:
    return "float" in dtype


@converter("Div", since=7)
def div(ctx: Context, node: Node) -> Value:
    if _is_float(node.data().dtype):
        operands, _ = ctx.align(node.data(0), node.data(1))
        return ctx.emit(op.divide(*operands))

    def divide(a: Any, b: Any) -> Any:
        return tirx.truncdiv(a, _nonzero(b))

    return ctx.elementwise("divide", divide, node.data(0), node.data(1))


def _nonzero(divisor: Any) -> Any:
    """Integer division by zero traps on x86; ONNX leaves its result undefined."""
    return tirx.Select(divisor == 0, tirx.const(1, divisor.ty.dtype), divisor)


def float_fmod(a: Any, b: Any) -> Any:
    """C's fmod, which is exact; TVM has no lowering for its own."""
    dtype = str(a.ty.dtype)
    if dtype == "float64":
        return tirx.call_pure_extern(dtype, "fmod", a, b)
    return tirx.call_pure_extern("float32", "fmodf", a.astype("float32"), b.astype("float32")).astype(dtype)


@converter("Mod")
def mod(ctx: Context, node: Node) -> Value:
    floating = _is_float(node.data().dtype)

    def modulo(a: Any, b: Any) -> Any:
        if floating:
            rest = float_fmod(a, b)
            zero = tirx.const(0, rest.ty.dtype)
            other_sign = tirx.any(tirx.all(rest < zero, b > zero), tirx.all(rest > zero, b < zero))
            return rest if node.attr("fmod", 0) else tirx.Select(other_sign, rest + b, rest)
        return tirx.truncmod(a, _nonzero(b)) if node.attr("fmod", 0) else tirx.floormod(a, _nonzero(b))

    return ctx.elementwise("mod", modulo, node.data(0), node.data(1))


@converter("Pow", since=7)
def pow_(ctx: Context, node: Node) -> Value:
    base, exponent = node.data(0), node.data(1)
    if exponent.is_const and exponent.const.size == 1 and _is_float(base.dtype) and exponent.const.item() in (2.0, 0.5):
        tensor = ctx.tensor(base)
        if exponent.const.ndim <= ctx.rank(base):
            return ctx.emit(op.multiply(tensor, tensor) if exponent.const.item() == 2.0 else op.sqrt(tensor))

    def power(a: Any, b: Any) -> Any:
        if _is_float(base.dtype):
            return tirx.power(a, b.astype(base.dtype))
        return tirx.power(a.astype("float64"), b.astype("float64")).astype(base.dtype)

    return ctx.elementwise("power", power, base, exponent)


@converter("BitShift")
def bit_shift(ctx: Context, node: Node) -> Value:
    """An amount outside 0..bits-1 moves every bit out; a right shift of a signed number leaves its sign."""
    dtype = node.data().dtype
    left = node.attr("direction") == "LEFT"

    def shift(a: Any, b: Any) -> Any:
        most = tirx.const(tvm.runtime.DataType(dtype).bits - 1, b.ty.dtype)
        outside = tirx.any(b > most, b < tirx.const(0, b.ty.dtype))
        amount = tirx.Select(outside, most, b)
        shifted = a << amount if left else a >> amount
        keeps_sign = not left and not dtype.startswith("u")
        return shifted if keeps_sign else tirx.Select(outside, tirx.const(0, a.ty.dtype), shifted)

    return ctx.elementwise("bit_shift", shift, node.data(0), node.data(1))


@converter("Min", "Max", since=6)
def extremum(ctx: Context, node: Node) -> Value:
    """NaN wins, as in numpy."""
    pick = tirx.min if node.op_type == "Min" else tirx.max
    floating = _is_float(node.data().dtype)

    def choose(so_far: Any, item: Any) -> Any:
        # `so_far` stands here once: a chain of these operators is fused into one expression. Where it is NaN the
        # comparison is false, which leaves it.
        plain = pick(item, so_far)
        return tirx.Select(tirx.isnan(item), item, plain) if floating else plain

    values = [v for v in node.inputs if v is not None]
    return ctx.elementwise(node.op_type.lower(), lambda *items: reduce(choose, items), *values)


@converter("Sum", "Mean", since=6)
def variadic(ctx: Context, node: Node) -> Value:
    values = [v for v in node.inputs if v is not None]

    def total(*items: Any) -> Any:
        result = reduce(lambda a, b: a + b, items)
        return result / tirx.const(len(items), result.ty.dtype) if node.op_type == "Mean" else result

    return ctx.elementwise(node.op_type.lower(), total, *values)


@converter("Where")
def where(ctx: Context, node: Node) -> Value:
    operands, _ = ctx.align(node.data(0), node.data(1), node.data(2))
    return ctx.emit(op.where(*operands))


@converter("PRelu", since=7)
def prelu(ctx: Context, node: Node) -> Value:
    def leaky(x: Any, slope: Any) -> Any:
        return tirx.Select(x < tirx.const(0, x.ty.dtype), x * slope, x)

    return ctx.elementwise("prelu", leaky, node.data(0), node.data(1))


@converter("Clip", since=11)
def clip(ctx: Context, node: Node) -> Value:
    """Limits may be absent, constants or run-time scalars."""
    low, high = node.input(1), node.input(2)
    limits = [v for v in (low, high) if v is not None]

    def clamp(x: Any, *bounds: Any) -> Any:
        remaining = list(bounds)
        result = tirx.max(x, remaining.pop(0)) if low is not None else x
        result = tirx.min(result, remaining.pop(0)) if high is not None else result
        return tirx.Select(tirx.isnan(x), x, result) if _is_float(node.data().dtype) else result

    return ctx.elementwise("clip", clamp, node.data(), *limits) if limits else node.data()


@converter("Clip", since=1, until=10)
def clip_attributes(ctx: Context, node: Node) -> Value:
    low, high = node.attr("min", float("-inf")), node.attr("max", float("inf"))
    return ctx.emit(op.clip(ctx.tensor(node.data()), low, high))


_PLAIN_CASTS = ("float", "bfloat", "int", "uint", "bool")


@converter("Cast", "CastLike", since=6)
def cast(ctx: Context, node: Node) -> Any:
    source = node.data().dtype
    if node.op_type == "CastLike":
        target = node.data(1).dtype
    else:
        if node.attr("to") == onnx.TensorProto.STRING:
            return NotImplemented
        target = str(onnx.helper.tensor_dtype_to_np_dtype(node.attr("to")))
    if source == target:
        return node.data()
    plain = [d.startswith(_PLAIN_CASTS) and not d.startswith("float8") and d not in SUB_BYTE for d in (source, target)]
    if not all(known or d in FORMATS for known, d in zip(plain, (source, target), strict=True)):
        raise UnsupportedOperatorError(f"{node.label}: a cast from {source} to {target} is not supported")
    if source in FORMATS or target in FORMATS:
        return cast_float8(ctx, node, source, target)
    tensor = ctx.tensor(node.data())
    if target == "bool":
        return ctx.emit(op.not_equal(tensor, relax.const(0, source)))
    return ctx.emit(op.astype(tensor, target))


@converter("Dropout", since=7)
def dropout(ctx: Context, node: Node) -> list[Value]:
    """Nothing is dropped in inference; the mask keeps every element."""
    ratio, training = node.input(1), node.input(2)
    drops = training is not None and not (training.is_const and not training.array.any())
    if drops and not (ratio is not None and ratio.is_const and ratio.array.item() == 0):
        raise UnsupportedOperatorError(f"{node.label}: dropout in training mode is not supported")
    mask = ctx.emit(op.full(relax.ShapeExpr(ctx.shape(node.data())), relax.const(True, "bool"), "bool"))
    return [node.data(), mask]
