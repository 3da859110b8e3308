"""Arithmetic on extents, each an int or a prim expression; results are simplified under the known facts."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tvm_dyn.symbolic import SymbolicFacts, simplify

INT64_MAX = 2**63 - 1


def prim(extent: Any) -> Any:
    """The extent as a prim expression."""
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def extent_of(value: Any) -> Any:
    """An int for a number of any kind, else the expression itself."""
    if isinstance(value, int | np.integer):
        return int(value)
    return int(value.value) if isinstance(value, tirx.IntImm) else value


def is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def is_symbolic(*extents: Any) -> bool:
    return any(isinstance(e, tvm.ir.Expr) for e in extents)


def floor_div(facts: SymbolicFacts, a: Any, b: Any) -> Any:
    if not is_symbolic(a, b):
        return a // b
    return a if isinstance(b, int) and b == 1 else simplify(tirx.floordiv(prim(a), prim(b)), facts)


def ceil_div(facts: SymbolicFacts, a: Any, b: Any) -> Any:
    return floor_div(facts, a + b - 1, b)


def minimum(facts: SymbolicFacts, a: Any, b: Any) -> Any:
    return simplify(tirx.min(prim(a), prim(b)), facts) if is_symbolic(a, b) else min(a, b)


def maximum(facts: SymbolicFacts, a: Any, b: Any) -> Any:
    return simplify(tirx.max(prim(a), prim(b)), facts) if is_symbolic(a, b) else max(a, b)


def f32(value: Any) -> Any:
    """A number or an expression in float32."""
    return tirx.const(float(value), "float32") if isinstance(value, int | float) else value.astype("float32")


def clamp_index(index: Any, extent: Any) -> Any:
    """The index, or the nearest one within [0, extent)."""
    return tirx.max(tirx.min(index, prim(extent - 1)), tirx.const(0, "int64"))
