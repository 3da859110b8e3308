"""Concrete values of shape expressions, and identities checked on sampled values.

The evaluator walks the TVM expression itself, not the normal form, so it is an independent witness of every
rewriting. The sampling check follows the practice of JAX's ``shape_poly``: an identity that is wrong
almost always fails on a handful of small values.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import ir
from tvm.ir import prim

from .convert import op_name, int_of, unwrap


class Undefined(ArithmeticError):
    """The expression has no value here: division by zero."""


def evaluate(expr: object, values: Mapping[ir.Var, int]) -> Any:
    """The value of a scalar expression; ints of int and bool expressions.

    Raises KeyError for a variable without a value, `Undefined` (an ArithmeticError) for a division by 0 and
    NotImplementedError for an operator that is not scalar arithmetic.
    """
    expr = unwrap(expr)
    constant = int_of(expr)
    if constant is not None:
        return constant
    assert isinstance(expr, ir.Expr)
    if isinstance(expr, ir.Var):
        return values[expr]
    if isinstance(expr, prim.FloatImm):
        return _as_type(expr.value, expr)
    if isinstance(expr, prim.BinaryOpExpr):
        return _as_type(_BINARY[type(expr)](evaluate(expr.a, values), evaluate(expr.b, values)), expr)
    if isinstance(expr, prim.CmpExpr | prim.LogicalExpr | prim.Not):
        return _evaluate_truth(expr, values)
    if isinstance(expr, prim.Cast):
        return _as_type(evaluate(expr.value, values), expr)
    if isinstance(expr, prim.Select):
        return evaluate(expr.true_value if evaluate(expr.condition, values) else expr.false_value, values)
    if isinstance(expr, ir.Call):
        return _evaluate_call(expr, values)
    raise NotImplementedError(f"no value for {type(expr).__name__}: {expr}")


def _evaluate_truth(expr: Any, values: Mapping[ir.Var, int]) -> int:
    if isinstance(expr, prim.Not):
        return int(not evaluate(expr.a, values))
    a = evaluate(expr.a, values)
    if isinstance(expr, prim.And):
        return int(bool(a) and bool(evaluate(expr.b, values)))
    if isinstance(expr, prim.Or):
        return int(bool(a) or bool(evaluate(expr.b, values)))
    return int(_COMPARE[type(expr)](a, evaluate(expr.b, values)))


def _evaluate_call(expr: ir.Call, values: Mapping[ir.Var, int]) -> Any:
    name = op_name(expr)
    if name == "if_then_else":
        return evaluate(expr.args[1] if evaluate(expr.args[0], values) else expr.args[2], values)
    if name not in _FUNCTIONS:
        raise NotImplementedError(f"no value for a call of {name or expr.op}: {expr}")
    return _as_type(_FUNCTIONS[name](*(evaluate(arg, values) for arg in expr.args)), expr)


def _as_type(value: Any, expr: ir.Expr) -> Any:
    dtype = str(expr.ty)
    if dtype.startswith("float"):
        return getattr(np, dtype)(value)
    return int(value)


def _divide(a: Any, b: Any) -> Any:
    if b == 0:
        raise Undefined("division by zero")
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return a / b


def _floordiv(a: int, b: int) -> int:
    if b == 0:
        raise Undefined("division by zero")
    return a // b


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    prim.Add: lambda a, b: a + b,
    prim.Sub: lambda a, b: a - b,
    prim.Mul: lambda a, b: a * b,
    prim.Div: _divide,
    prim.Mod: lambda a, b: a - b * _divide(a, b),
    prim.FloorDiv: _floordiv,
    prim.FloorMod: lambda a, b: a - b * _floordiv(a, b),
    prim.Min: min,
    prim.Max: max,
}
_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    prim.EQ: lambda a, b: a == b,
    prim.NE: lambda a, b: a != b,
    prim.LT: lambda a, b: a < b,
    prim.LE: lambda a, b: a <= b,
    prim.GT: lambda a, b: a > b,
    prim.GE: lambda a, b: a >= b,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": lambda a: math.floor(abs(a) + 0.5) * (1 if a >= 0 else -1),
    "nearbyint": round,
    "sqrt": np.sqrt,
    "pow": lambda a, b: a**b,
    "likely": lambda a: a,
    "shift_left": lambda a, b: a << b,
    "shift_right": lambda a, b: a >> b,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "bitwise_not": lambda a: ~a,
}

SMALL_VALUES = (0, 1, 2, 3, 5, 7, 16, 31, 32, 97)


def plain_samples(variables: list[ir.Var], count: int) -> list[dict[ir.Var, int]]:
    """Assignments of small non-negative values, repeatable: the corners first, then pseudo-random ones."""
    rng = random.Random(len(variables))
    corners = [dict.fromkeys(variables, value) for value in (1, 2, 0)]
    return corners + [{v: rng.choice(SMALL_VALUES) for v in variables} for _ in range(count)]


def agree(lhs: object, rhs: object, samples: list[dict[ir.Var, int]]) -> bool:
    """Whether the two expressions have the same value on every sample on which ``lhs`` has one."""
    for values in samples:
        try:
            expected = evaluate(lhs, values)
        except Undefined:
            continue
        except NotImplementedError:
            return True
        if evaluate(rhs, values) != expected:
            return False
    return True
