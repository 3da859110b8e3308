"""Elementwise operators of one operand, computed in float32 (float64 stays as it is)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value

Formula = Callable[[Any], Any]


def _k(value: float, like: Any) -> Any:
    return tirx.const(value, like.ty.dtype)


def emit_unary(ctx: Context, name: str, value: Value, formula: Formula) -> Value:
    """`formula` of every element; half precision is computed in float32."""
    dtype = value.dtype
    work = "float32" if dtype in ("float16", "bfloat16") else dtype

    def apply(x: Any) -> Any:
        result = formula(x.astype(work) if work != dtype else x)
        return result.astype(dtype) if work != dtype and str(result.ty.dtype) == work else result

    return ctx.elementwise(name, apply, value)


def _expm1(x: Any) -> Any:
    return tirx.exp(x) - _k(1, x)


def _softplus(x: Any) -> Any:
    return tirx.max(x, _k(0, x)) + tirx.log(_k(1, x) + tirx.exp(-tirx.abs(x)))


def _normal_cdf(x: Any) -> Any:
    """Distribution function of the normal distribution."""
    return _k(0.5, x) * (_k(1, x) + tirx.erf(x * _k(math.sqrt(0.5), x)))


def _bounded(x: Any, low: float, high: float) -> Any:
    return tirx.min(tirx.max(x, _k(low, x)), _k(high, x))


def _sign(x: Any) -> Any:
    zero, one = _k(0, x), _k(1, x)
    negative = zero if str(x.ty.dtype).startswith("uint") else tirx.Select(x < zero, zero - one, zero)
    return tirx.Select(x > zero, one, negative)


# name -> formula with the node's attributes; these keep the operand's type
_FORMULAS: dict[str, Callable[[Any, Callable[[str, float], float]], Any]] = {
    "Celu": lambda x, a: (
        tirx.max(x, _k(0, x)) + tirx.min(_k(0, x), _k(a("alpha", 1.0), x) * _expm1(x / _k(a("alpha", 1.0), x)))
    ),
    "Elu": lambda x, a: tirx.Select(x < _k(0, x), _k(a("alpha", 1.0), x) * _expm1(x), x),
    "Selu": lambda x, a: (
        _k(a("gamma", 1.05070102214813232421875), x)
        * tirx.Select(x > _k(0, x), x, _k(a("alpha", 1.67326319217681884765625), x) * _expm1(x))
    ),
    "LeakyRelu": lambda x, a: tirx.Select(x < _k(0, x), x * _k(a("alpha", 0.01), x), x),
    "ThresholdedRelu": lambda x, a: tirx.Select(x > _k(a("alpha", 1.0), x), x, _k(0, x)),
    "HardSigmoid": lambda x, a: _bounded(x * _k(a("alpha", 0.2), x) + _k(a("beta", 0.5), x), 0, 1),
    "HardSwish": lambda x, a: x * _bounded(x * _k(1 / 6, x) + _k(0.5, x), 0, 1),
    "Swish": lambda x, a: x * tirx.sigmoid(x * _k(a("alpha", 1.0), x)),
    "Mish": lambda x, a: _mish(x),
    "Softplus": lambda x, a: _softplus(x),
    "Softsign": lambda x, a: x / (_k(1, x) + tirx.abs(x)),
    "Shrink": lambda x, a: tirx.Select(
        x < _k(-a("lambd", 0.5), x),
        x + _k(a("bias", 0.0), x),
        tirx.Select(x > _k(a("lambd", 0.5), x), x - _k(a("bias", 0.0), x), _k(0, x)),
    ),
    "Round": lambda x, a: tirx.nearbyint(x),
    "Sign": lambda x, a: _sign(x),
    "Sinh": lambda x, a: _sinh(x),
    "Cosh": lambda x, a: _k(0.5, x) * (tirx.exp(x) + tirx.exp(-x)),
    "Asinh": lambda x, a: tirx.asinh(x),
    "Acosh": lambda x, a: tirx.acosh(x),
    "Atanh": lambda x, a: tirx.atanh(x),
}


def _mish(x: Any) -> Any:
    """x tanh(log(1 + e)) with e = exp x, which is x w / (w + 2) with w = e (e + 2); it is x where e is huge."""

    def ratio(w: Any) -> Any:
        return w / (w + _k(2, w))

    e = tirx.exp(tirx.min(x, _k(20, x)))
    return x * ratio(e * (e + _k(2, x)))


def _sinh(x: Any) -> Any:
    return _k(0.5, x) * (tirx.exp(x) - tirx.exp(-x))


@converter(*_FORMULAS)
def unary(ctx: Context, node: Node) -> Any:
    return emit_unary(ctx, node.op_type.lower(), node.data(), lambda x: _FORMULAS[node.op_type](x, node.attr))


# A minimax rational of 1 / (1 + e**-x) - 1/2 on [-18, 18] from Eigen, to 1.3e-7; odd and even powers from the highest.
_SIGMOID_ODD = (
    *(4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05),
    *(8.51377133304701e-03, 0.248287947061529),
)
_SIGMOID_EVEN = (
    *(6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03),
    *(0.116817656904453, 0.993151921023180),
)


@converter("Sigmoid")
def sigmoid(ctx: Context, node: Node) -> Any:
    """In models that round what they compute, the rational that onnxruntime has too: there a difference in the last
    bit becomes one of a whole code, which grows from layer to layer.
    """
    if not ctx.rounds_activations or node.data().dtype != "float32":
        return NotImplemented

    def rational(x: Any) -> Any:
        bounded = _bounded(x, -18, 18)
        square = bounded * bounded
        odd, even = (_horner(powers, square) for powers in (_SIGMOID_ODD, _SIGMOID_EVEN))
        return tirx.Select(tirx.isnan(x), x, _bounded(odd * bounded / even + _k(0.5, x), 0, 1))

    return emit_unary(ctx, "sigmoid", node.data(), rational)


def _horner(coefficients: Sequence[float], x: Any) -> Any:
    value = _k(coefficients[0], x)
    for coefficient in coefficients[1:]:
        value = value * x + _k(coefficient, x)
    return value


@converter("Gelu")
def gelu(ctx: Context, node: Node) -> Value:
    """x times the normal distribution function, or its approximation by tanh (Hendrycks and Gimpel, 2016)."""
    if node.attr("approximate", "none") == "tanh":

        def approximate(x: Any) -> Any:
            inner = _k(math.sqrt(2 / math.pi), x) * (x + _k(0.044715, x) * x * x * x)
            return _k(0.5, x) * x * (_k(1, x) + tirx.tanh(inner))

        return emit_unary(ctx, "gelu", node.data(), approximate)
    return emit_unary(ctx, "gelu", node.data(), lambda x: x * _normal_cdf(x))


@converter("IsInf")
def is_inf(ctx: Context, node: Node) -> Value:
    negative, positive = node.attr("detect_negative", 1), node.attr("detect_positive", 1)

    def test(x: Any) -> Any:
        x = x if str(x.ty.dtype) == "float64" else x.astype("float32")
        signs = ([float("inf")] if positive else []) + ([float("-inf")] if negative else [])
        if not signs:
            return tirx.const(False, "bool")
        return tirx.any(*[x == _k(s, x) for s in signs]) if len(signs) > 1 else x == _k(signs[0], x)

    return ctx.elementwise("is_inf", test, node.data())


@converter("IsNaN")
def is_nan(ctx: Context, node: Node) -> Value:
    return ctx.elementwise(
        "is_nan", lambda x: tirx.isnan(x.astype("float32") if x.ty.dtype != "float64" else x), node.data()
    )


@converter("Not")
def not_(ctx: Context, node: Node) -> Value:
    return ctx.elementwise("not", tirx.Not, node.data())


@converter("BitwiseNot")
def bitwise_not(ctx: Context, node: Node) -> Value:
    return ctx.elementwise("bitwise_not", tvm.tirx.bitwise_not, node.data())
