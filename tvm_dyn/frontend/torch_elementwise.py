"""ATen operators that work element by element, with torch's type promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_dyn.frontend.ops.elementwise import float_fmod
from tvm_dyn.frontend.torch_registry import TorchContext, aten
from tvm_dyn.frontend.value import Value, constant

op = relax.op

_UNARY = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "bitwise_not": "BitwiseNot",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "isinf": "IsInf",
    "isnan": "IsNaN",
    "log": "Log",
    "neg": "Neg",
    "reciprocal": "Reciprocal",
    "relu": "Relu",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "tan": "Tan",
    "tanh": "Tanh",
}


def _unary(op_type: str) -> Callable[..., Value]:
    def convert(t: TorchContext, self: Value) -> Value:
        if t.dtype == "bool" and self.dtype != "bool":  # isnan, isinf
            integral = "float" not in self.dtype
            return t.onnx(op_type, t.cast(self, "float32") if integral else self)
        if op_type == "BitwiseNot" and self.dtype == "bool":
            return t.onnx("Not", self)
        return t.onnx(op_type, t.cast(self, t.dtype))

    return convert


for _name, _op_type in _UNARY.items():
    aten(_name)(_unary(_op_type))


@aten("logical_not")
def logical_not(t: TorchContext, self: Value) -> Value:
    return t.onnx("Not", t.cast(self, "bool"))


def _scalar_function(function: Callable[[Any], Any]) -> Callable[..., Value]:
    def convert(t: TorchContext, self: Value) -> Value:
        return t.ctx.elementwise(str(t.node.target).split(".")[1], function, t.cast(self, t.dtype))

    return convert


for _name in ("exp2", "log1p", "log2", "log10", "trunc"):
    aten(_name)(_scalar_function(getattr(tirx, _name)))


@aten("expm1")
def expm1(t: TorchContext, self: Value) -> Value:
    """exp(x) - 1 as tanh(x/2) * (exp(x) + 1), which keeps the digits of small x."""
    x = t.cast(self, t.dtype)
    half = t.onnx("Tanh", t.onnx("Mul", x, t.value(0.5, t.dtype)))
    small = t.onnx("Mul", half, t.onnx("Add", t.onnx("Exp", x), t.value(1.0, t.dtype)))
    plain = t.onnx("Sub", t.onnx("Exp", x), t.value(1.0, t.dtype))
    return t.onnx("Where", t.onnx("Less", t.onnx("Abs", x), t.value(1.0, t.dtype)), small, plain)


@aten("rsqrt")
def rsqrt(t: TorchContext, self: Value) -> Value:
    return t.emit(op.rsqrt(t.tensor(t.cast(self, t.dtype))))


@aten("gelu")
def gelu(t: TorchContext, self: Value, approximate: str = "none") -> Value:
    function = op.nn.gelu_tanh if approximate == "tanh" else op.nn.gelu
    return t.emit(function(t.tensor(self)))


@aten("silu")
def silu(t: TorchContext, self: Value) -> Value:
    return t.emit(op.nn.silu(t.tensor(self)))


@aten("leaky_relu")
def leaky_relu(t: TorchContext, self: Value, negative_slope: float = 0.01) -> Value:
    return t.onnx("LeakyRelu", self, alpha=float(negative_slope))


@aten("elu")
def elu(t: TorchContext, self: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    """scale * x above 0, scale * alpha * (exp(input_scale * x) - 1) below."""
    factor = t.value(input_scale, t.dtype)
    result = t.onnx("Elu", t.onnx("Mul", self, factor) if input_scale != 1 else self, alpha=float(alpha))
    if input_scale != 1:
        result = t.onnx("Where", t.onnx("Greater", self, t.value(0, t.dtype)), self, result)
    return result if scale == 1 else t.onnx("Mul", result, t.value(scale, t.dtype))


@aten("hardsigmoid")
def hardsigmoid(t: TorchContext, self: Value) -> Value:
    return t.onnx("HardSigmoid", self, alpha=1 / 6, beta=0.5)


@aten("hardswish")
def hardswish(t: TorchContext, self: Value) -> Value:
    return t.onnx("Mul", self, hardsigmoid(t, self))


@aten("softplus")
def softplus(t: TorchContext, self: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = t.onnx("Mul", self, t.value(beta, t.dtype))
    smooth = t.onnx("Div", t.onnx("Softplus", scaled), t.value(beta, t.dtype))
    return t.onnx("Where", t.onnx("Greater", scaled, t.value(threshold, t.dtype)), self, smooth)


@aten("clamp", "clamp.Tensor", "hardtanh", "clamp_min", "clamp_max")
def clamp(t: TorchContext, self: Value, min: Any = None, max: Any = None, **limits: Any) -> Value:
    if str(t.node.target).startswith("aten.clamp_max"):
        min, max = None, min
    if str(t.node.target).startswith("aten.hardtanh"):
        min, max = (
            limits.get("min_val", -1.0 if min is None else min),
            limits.get("max_val", 1.0 if max is None else max),
        )
    result = t.cast(self, t.dtype)
    for bound, op_type in ((min, "Max"), (max, "Min")):
        if bound is not None:
            result = t.onnx(op_type, result, t.value(bound, t.dtype))
    return result


# -- two operands --------------------------------------------------------------------------------------------


def _pair(t: TorchContext, a: Any, b: Any, dtype: str) -> tuple[Value, Value]:
    return t.value(a, dtype), t.value(b, dtype)


@aten("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def add(t: TorchContext, self: Any, other: Any, alpha: Any = 1) -> Value:
    name = str(t.node.target).split(".")[1]
    if name == "rsub":
        self, other = other, self
    a, b = _pair(t, self, other, t.dtype)
    if alpha != 1:
        b = t.onnx("Mul", b, t.value(alpha, t.dtype))
    if t.dtype == "bool":
        return t.onnx("Or", a, b)
    return t.onnx("Add" if name == "add" else "Sub", a, b)


@aten("mul.Tensor", "mul.Scalar")
def mul(t: TorchContext, self: Any, other: Any) -> Value:
    return t.onnx("And" if t.dtype == "bool" else "Mul", *_pair(t, self, other, t.dtype))


@aten("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", "floor_divide")
def div(t: TorchContext, self: Any, other: Any, rounding_mode: str | None = None) -> Value:
    if str(t.node.target).startswith("aten.floor_divide"):
        rounding_mode = "floor"
    a, b = _pair(t, self, other, t.dtype)
    if "float" in t.dtype:
        quotient = t.onnx("Div", a, b)
        return (
            quotient
            if rounding_mode is None
            else t.onnx("Floor", quotient)
            if rounding_mode == "floor"
            else _trunc(t, quotient)
        )
    if rounding_mode == "trunc":
        return t.onnx("Div", a, b)

    def floordiv(x: Any, y: Any) -> Any:
        return tirx.floordiv(x, tirx.Select(y == 0, tirx.const(1, t.dtype), y))

    return t.ctx.elementwise("floor_divide", floordiv, a, b)


def _trunc(t: TorchContext, value: Value) -> Value:
    return t.ctx.elementwise("trunc", tirx.trunc, value)


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(t: TorchContext, self: Any, other: Any) -> Value:
    """The sign of the divisor wins."""
    a, b = _pair(t, self, other, t.dtype)
    if "float" not in t.dtype:
        return t.onnx("Mod", a, b)

    def modulo(x: Any, y: Any) -> Any:
        rest, zero = float_fmod(x, y), tirx.const(0, t.dtype)
        opposite = tirx.any(tirx.all(rest < zero, y > zero), tirx.all(rest > zero, y < zero))
        return tirx.Select(opposite, rest + y, rest)

    return t.ctx.elementwise("remainder", modulo, a, b)


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(t: TorchContext, self: Any, other: Any) -> Value:
    return t.onnx("Mod", *_pair(t, self, other, t.dtype), fmod=1)


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def pow(t: TorchContext, self: Any, exponent: Any) -> Value:
    if isinstance(exponent, int | float) and exponent in (-1, 1, 3):
        base = t.value(self, t.dtype)
        if exponent == 3:
            return t.onnx("Mul", t.onnx("Mul", base, base), base)
        return base if exponent == 1 else t.onnx("Reciprocal", base)
    return t.onnx("Pow", *_pair(t, self, exponent, t.dtype))


_PROMOTED = {"maximum.default": "Max", "minimum.default": "Min"}
_COMPARE = {
    "eq": ("Equal", False),
    "ne": ("Equal", True),
    "lt": ("Less", False),
    "le": ("LessOrEqual", False),
    "gt": ("Greater", False),
    "ge": ("GreaterOrEqual", False),
}


def _promoted(op_type: str, negate: bool = False) -> Callable[..., Value]:
    def convert(t: TorchContext, self: Any, other: Any) -> Value:
        result = t.onnx(op_type, *_pair(t, self, other, t.common_dtype))
        return t.onnx("Not", result) if negate else result

    return convert


for _name, _op_type in _PROMOTED.items():
    aten(_name)(_promoted(_op_type))
for _name, (_op_type, _negate) in _COMPARE.items():
    aten(f"{_name}.Tensor", f"{_name}.Scalar")(_promoted(_op_type, _negate))


def _logical(op_type: str, bitwise: bool) -> Callable[..., Value]:
    def convert(t: TorchContext, self: Any, other: Any) -> Value:
        if bitwise and t.dtype != "bool":
            return t.onnx(f"Bitwise{op_type}", *_pair(t, self, other, t.dtype))
        return t.onnx(op_type, *_pair(t, self, other, "bool"))

    return convert


for _name in ("and", "or", "xor"):
    aten(f"logical_{_name}")(_logical(_name.capitalize(), False))
    aten(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar")(_logical(_name.capitalize(), True))


@aten("atan2")
def atan2(t: TorchContext, self: Value, other: Value) -> Value:
    return t.ctx.elementwise("atan2", tirx.atan2, *_pair(t, self, other, t.dtype))


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(t: TorchContext, condition: Value, self: Any, other: Any) -> Value:
    return t.onnx("Where", t.cast(condition, "bool"), *_pair(t, self, other, t.dtype))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(t: TorchContext, self: Value, mask: Value, value: Any) -> Value:
    return t.onnx("Where", mask, t.value(value, t.dtype), self)


# -- types and copies ----------------------------------------------------------------------------------------


@aten("_to_copy", "to.dtype", "to.dtype_layout", "type_as")
def to_copy(t: TorchContext, self: Value, *_: Any, **__: Any) -> Value:
    return t.cast(self, t.dtype)


@aten("clone", "alias", "detach", "contiguous", "lift_fresh_copy", "dropout", "native_dropout")
def copy(t: TorchContext, self: Value, *_: Any, **__: Any) -> Value:
    return self


@aten("scalar_tensor")
def scalar_tensor(t: TorchContext, s: Any, **_: Any) -> Value:
    return t.value(s, t.dtype)


@aten("full", "zeros", "ones", "empty.memory_format", "new_full", "new_zeros", "new_ones", "new_empty")
@aten("full_like", "zeros_like", "ones_like", "empty_like")
def full(t: TorchContext, first: Any, *rest: Any, **_: Any) -> Value:
    """A tensor of one value; what `empty` holds is anybody's choice."""
    name = str(t.node.target).split(".")[1]
    if name.endswith("_like"):
        size, arguments = t.shape(first), list(rest)
    elif name.startswith("new_"):
        size, arguments = list(rest[0]), list(rest[1:])
    else:
        size, arguments = list(first), list(rest)
    fill = arguments[0] if "full" in name else 1 if "ones" in name else 0
    if isinstance(fill, Value | tvm.ir.Expr):
        return t.ctx.expand(t.value(fill, t.dtype), size)
    if not size:
        return constant(fill, t.dtype)
    return t.emit(
        op.full(
            relax.ShapeExpr([tirx.const(d, "int64") if isinstance(d, int) else d for d in size]),
            relax.const(fill, t.dtype),
            t.dtype,
        )
    )
