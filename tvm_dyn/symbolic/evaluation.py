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

from .convert import op_name, unwrap


class Undefined(ArithmeticError):
    """The expression has no value here: division by zero."""


def evaluate(expr: object, values: Mapping[ir.Var, int]) -> Any:
    """The value of a scalar expression; ints of int and bool expressions.

    Raises KeyError for a variable without a value, `Undefined` (an ArithmeticError) for a division by 0 and
    NotImplementedError for an operator that is not scalar arithmetic.
    """
    return _evaluate(unwrap(expr), values)


def _evaluate(expr: Any, values: Mapping[ir.Var, int]) -> Any:
    evaluator = _EVALUATORS.get(type(expr))
    if evaluator is None:
        raise NotImplementedError(f"no value for {type(expr).__name__}: {expr}")
    return evaluator(expr, values)


def _evaluate_binary(expr: Any, values: Mapping[ir.Var, int]) -> Any:
    result = _BINARY[type(expr)](_evaluate(expr.a, values), _evaluate(expr.b, values))
    return result if isinstance(result, int) else _as_type(result, expr)


def _evaluate_comparison(expr: Any, values: Mapping[ir.Var, int]) -> int:
    return int(_COMPARE[type(expr)](_evaluate(expr.a, values), _evaluate(expr.b, values)))


def _evaluate_select(expr: prim.Select, values: Mapping[ir.Var, int]) -> Any:
    return _evaluate(expr.true_value if _evaluate(expr.condition, values) else expr.false_value, values)


def _evaluate_call(expr: ir.Call, values: Mapping[ir.Var, int]) -> Any:
    name = op_name(expr)
    if name == "if_then_else":
        return _evaluate(expr.args[1] if _evaluate(expr.args[0], values) else expr.args[2], values)
    if name not in _FUNCTIONS:
        raise NotImplementedError(f"no value for a call of {name or expr.op}: {expr}")
    return _as_type(_FUNCTIONS[name](*(_evaluate(arg, values) for arg in expr.args)), expr)


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
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": lambda a: math.floor(abs(a) + 0.5) * (1 if a >= 0 else -1),
    "nearbyint": np.rint,
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

_Evaluator = Callable[[Any, Mapping[ir.Var, int]], Any]
_EVALUATORS: dict[type, _Evaluator] = {
    int: lambda e, values: e,
    bool: lambda e, values: int(e),
    prim.IntImm: lambda e, values: e.value,
    prim.FloatImm: lambda e, values: _as_type(e.value, e),
    ir.Var: lambda e, values: values[e],
    prim.And: lambda e, values: int(bool(_evaluate(e.a, values) and _evaluate(e.b, values))),
    prim.Or: lambda e, values: int(bool(_evaluate(e.a, values) or _evaluate(e.b, values))),
    prim.Not: lambda e, values: int(not _evaluate(e.a, values)),
    prim.Cast: lambda e, values: _as_type(_evaluate(e.value, values), e),
    prim.Select: _evaluate_select,
    ir.Call: _evaluate_call,
    **dict.fromkeys(_BINARY, _evaluate_binary),
    **dict.fromkeys(_COMPARE, _evaluate_comparison),
}

SMALL_VALUES = (0, 1, 2, 3, 5, 7, 16, 31, 32, 97)


def plain_samples(variables: list[ir.Var], count: int) -> list[dict[ir.Var, int]]:
    """Assignments of small non-negative values, repeatable: the corners first, then pseudo-random ones."""
    rng = random.Random(len(variables))
    corners = [dict.fromkeys(variables, value) for value in (1, 2, 0)]
    return corners + [{v: rng.choice(SMALL_VALUES) for v in variables} for _ in range(count)]


def agree(lhs: object, rhs: object, samples: list[dict[ir.Var, int]]) -> bool:
    """Whether the two expressions have the same value on every sample on which ``lhs`` has one."""
    lhs, rhs = unwrap(lhs), unwrap(rhs)
    for values in samples:
        try:
            expected = _evaluate(lhs, values)
        except Undefined:
            continue
        except NotImplementedError:
            return True
        try:
            if _evaluate(rhs, values) != expected:
                return False
        except Undefined:
            return False
    return True
