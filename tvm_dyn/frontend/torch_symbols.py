"""Dims of a torch ExportedProgram as symbols: Dim names back from the export's records, ranges as facts.

input_ids: (s18, s41)       batch: Dim(0), seq: Dim(0, 255)
image: (s99, 3, 8*s30)  ->  batch: Dim(0), dim_8_rows: Dim(0, divisor=8), with s30 = dim_8_rows // 8
"""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from tvm import tirx

from tvm_dyn.dims import Dim
from tvm_dyn.errors import ModelImportError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.symbols import SymbolTable
from tvm_dyn.symbolic import simplify

# torch.export traces at extents >= 2 and keeps that as a bound; it does not mean that 0 and 1 are wrong.
_TRACED_MIN = 2


class ProgramDims:
    """The dims of a program's inputs over one import: torch's sympy expressions as prim expressions."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        inputs: list[tuple[str, torch.Tensor]],
        table: SymbolTable,
    ):
        self._ranges = {str(expr): _fact(bounds) for expr, bounds in program.range_constraints.items()}
        self._names = _dim_names(inputs)
        self._table = table
        self._known: dict[str, Any] = {}
        self.exact: list[tuple[Any, int, str]] = []  # (dim, divisor, its text): dims that must divide without remainder
        dims = [(name, axis, _sympy(dim)) for name, t in inputs for axis, dim in enumerate(t.shape)]
        for name, axis, expr in dims:
            if isinstance(expr, sympy.Symbol) and str(expr) not in self._known:
                self._known[str(expr)] = self._declare(str(expr), name, axis)
        for name, axis, expr in dims:
            if not all(str(s) in self._known for s in expr.free_symbols):
                self._solve(expr, name, axis)

    def _declare(self, text: str, input_name: str, axis: int) -> Any:
        return self._symbol(self._names.get(text, text), self._ranges.get(text, Dim()), input_name, axis)

    def _symbol(self, label: str, fact: Dim, input_name: str, axis: int) -> Any:
        self._table.resolve(label, input_name, axis)
        self._table.restrict(label, fact, f"torch exported '{label}' with that range")
        return self._table.resolve(label, input_name, axis)

    def _solve(self, expr: Any, input_name: str, axis: int) -> None:
        """A dim a*s + b, where nothing else tells s, becomes a symbol d, and s = (d - b) // a."""
        unknown: list[Any] = [s for s in expr.free_symbols if str(s) not in self._known]
        factor: Any = expr.coeff(unknown[0]) if len(unknown) == 1 else sympy.Integer(0)
        rest: Any = sympy.expand(expr - factor * unknown[0])
        if not (factor.is_Integer and factor > 0) or unknown[0] in rest.free_symbols:
            raise ModelImportError(f"input '{input_name}': the dim {expr} at axis {axis} does not tell {unknown}")
        divisor = int(factor) if rest == 0 else 1
        label = self._names.get(str(expr), str(expr))
        fact = self._ranges.get(str(expr), Dim())
        dim = self._symbol(label, Dim(fact.min, fact.max, divisor), input_name, axis)
        offset = dim - self.expr(rest)
        if divisor != factor:
            self.exact.append((offset, int(factor), label))
        self._known[str(unknown[0])] = simplify(_floordiv(offset, int(factor)))
        self._known[f"({expr})"] = dim

    def bind(self, dim: Any, value: Any) -> None:
        """Note what a data-dependent size of torch is here."""
        if isinstance(dim, torch.SymInt) and isinstance(_sympy(dim), sympy.Symbol):
            self._known.setdefault(str(_sympy(dim)), value)

    def dim(self, dim: int | torch.SymInt) -> Any:
        """One extent of an input as an int or prim expression."""
        expr = _sympy(dim)
        return self._known.get(f"({expr})", self.expr(expr))

    def expr(self, expr: Any) -> Any:
        """A sympy expression as an int or prim expression."""
        if expr.is_Integer:
            return int(expr)
        if isinstance(expr, sympy.Symbol):
            if str(expr) not in self._known:
                raise ModelImportError(f"torch's size symbol {expr} is not told by any input")
            return self._known[str(expr)]
        arguments = [self.expr(a) for a in expr.args]
        kind = type(expr).__name__
        if kind not in _FUNCTIONS:
            raise ModelImportError(f"the size {expr} is not supported ({kind})")
        result = arguments[0]
        for argument in arguments[1:]:
            result = _FUNCTIONS[kind](result, argument)
        return simplify(result)

    def check(self, ctx: Context) -> None:
        """State the assumptions of the signature."""
        for dim, divisor, label in self.exact:
            message = f"the dim '{label}' leaves a remainder"
            if not isinstance(dim, int):
                ctx.require(tirx.floormod(dim, divisor) == 0, [dim], message)
            elif dim % divisor:
                raise ModelImportError(f"{message} at the given extent")


def _floordiv(a: Any, b: Any) -> Any:
    return a // b if isinstance(a, int) and isinstance(b, int) else tirx.floordiv(a, b)


def _floormod(a: Any, b: Any) -> Any:
    return a % b if isinstance(a, int) and isinstance(b, int) else tirx.floormod(a, b)


def _extremum(function: Any, prim: Any) -> Any:
    def pick(a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return function(a, b)
        return prim(*(tirx.const(i, "int64") if isinstance(i, int) else i for i in (a, b)))

    return pick


def _power(a: Any, b: int) -> Any:
    result: Any = 1
    for _ in range(b):
        result = result * a
    return result


_FUNCTIONS: dict[str, Any] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Pow": _power,
    "FloorDiv": _floordiv,
    "CleanDiv": _floordiv,
    "Mod": _floormod,
    "PythonMod": _floormod,
    "Max": _extremum(max, tirx.max),
    "Min": _extremum(min, tirx.min),
}


def _sympy(dim: Any) -> Any:
    return dim.node.expr if isinstance(dim, torch.SymInt) else sympy.Integer(dim)


def _fact(bounds: Any) -> Dim:
    low, high = bounds.lower, bounds.upper
    low = int(low) if low.is_Integer else 0
    return Dim(low if low > _TRACED_MIN else 0, int(high) if high.is_Integer and high < 2**62 else None)


def _dim_names(inputs: list[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Torch's symbol or expression -> the name of the user's `Dim`, where the program still knows."""
    env = next((d.node.shape_env for _, t in inputs for d in t.shape if isinstance(d, torch.SymInt)), None)
    labels = getattr(env, "source_name_to_debug_name", None) or {}
    names: dict[str, str] = {}
    for source, symbol in (getattr(env, "source_to_var", None) or {}).items():
        label = labels.get(source, "")
        expr = env.replacements.get(symbol, symbol) if env is not None else symbol
        if re.search(r"[A-Za-z]", label):
            names.setdefault(str(expr), label)
    return names
