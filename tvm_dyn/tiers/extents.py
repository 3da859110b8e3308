"""Expressions over symbolic extents as Python functions of their values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_dyn.errors import CompileError

Dims = dict[Any, int]

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod, "Min": min, "Max": max, "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt,
    "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "And": lambda a, b: a and b, "Or": lambda a, b: a or b,
}  # fmt: skip


def _truncdiv(a: int, b: int) -> int:
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _truncmod(a: int, b: int) -> int:
    return a - b * _truncdiv(a, b)


_DIVISION: dict[tuple[str, bool], Callable[[Any, Any], Any]] = {
    ("Div", True): operator.truediv, ("Mod", True): math.fmod, ("Div", False): _truncdiv, ("Mod", False): _truncmod,
}  # fmt: skip
"""By kind, and whether it is of floats; that of integers rounds towards zero."""


def extent_function(expr: Any) -> Callable[[Dims], Any]:
    """The value of ``expr`` where each symbol has the extent that the mapping says."""
    if isinstance(expr, int):
        return lambda dims: expr
    kind = type(expr).__name__
    if kind in ("IntImm", "FloatImm"):
        value = bool(expr.value) if str(expr.ty) == "bool" else expr.value
        return lambda dims: value
    if isinstance(expr, tirx.Var):
        return lambda dims: dims[expr]
    apply = _BINARY.get(kind) or _DIVISION.get((kind, "float" in str(expr.ty)))
    if apply:
        a, b = extent_function(expr.a), extent_function(expr.b)
        return lambda dims: apply(a(dims), b(dims))
    if kind == "Cast":
        value_of, convert = extent_function(expr.value), float if "float" in str(expr.ty) else int
        return lambda dims: convert(value_of(dims))
    if kind == "Not":
        truth = extent_function(expr.a)
        return lambda dims: not truth(dims)
    if kind == "Select" or getattr(getattr(expr, "op", None), "name", "").endswith(".if_then_else"):
        parts = expr.args if kind == "Call" else (expr.condition, expr.true_value, expr.false_value)
        condition, then, otherwise = map(extent_function, parts)
        return lambda dims: then(dims) if condition(dims) else otherwise(dims)
    raise CompileError(f"tier 'bytecode' cannot evaluate the extent {expr}")
