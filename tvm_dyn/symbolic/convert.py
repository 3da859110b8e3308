"""Between TVM integer expressions and the normal form.

Float detours that exporters write around sizes, such as ``cast(floor(cast(h) * 0.5))``, are read as exact
rational arithmetic where float arithmetic is exact or rounds to the same integer for every size below the
precision of the float type (2**24 for float32); any other float expression stays uninterpreted.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

from tvm import ir, tirx
from tvm.ir import prim

from . import rules
from .bounds import Bounds
from .polynomial import FALSE, ONE, TRUE, ZERO, Atom, Condition, Leaf, Monomial, Poly, divide_exact

Number = ir.Expr | int
_FLOATS = ("float32", "float64")
_FINEST = 2**10  # constants with a larger power of two below the fraction bar count as inexact


def unwrap(expr: object) -> ir.Expr | int:
    """Materialise deferred comparisons (``a == b``) and Python booleans."""
    if isinstance(expr, bool | int | ir.Expr):
        return expr
    return expr.asobject()  # type: ignore[attr-defined]


def int_of(expr: object) -> int | None:
    """The value of a Python or TVM integer constant, else None."""
    if isinstance(expr, int):
        return int(expr)
    return expr.value if isinstance(expr, prim.IntImm) else None


class Reader:
    """Reads expressions into polynomials and conditions; ``facts`` decides the side conditions of rules."""

    def __init__(self, facts: Bounds):
        self.facts = facts

    def poly(self, expr: Number) -> Poly:
        """The normal form of an integer (or boolean, as 0/1) expression."""
        value = int_of(expr)
        if value is not None:
            return Poly.of(value)
        assert isinstance(expr, ir.Expr), f"not an integer expression: {expr!r}"
        if isinstance(expr, ir.Var):
            return Poly.var(expr)
        reader = _POLY_READERS.get(type(expr))
        result = reader(self, expr) if reader is not None else None
        return result if result is not None else _opaque(expr)

    def condition(self, expr: object) -> Condition:
        """The normal form of a boolean expression."""
        expr = unwrap(expr)
        value = int_of(expr)
        if value is not None:
            return TRUE if value else FALSE
        if isinstance(expr, prim.CmpExpr):
            return self._comparison(expr)
        if isinstance(expr, prim.And | prim.Or):
            kind = "and" if isinstance(expr, prim.And) else "or"
            return rules.connect(kind, [self.condition(expr.a), self.condition(expr.b)])
        if isinstance(expr, prim.Not):
            return rules.negation(self.condition(expr.a))
        if isinstance(expr, ir.Call) and op_name(expr) == "likely":
            return self.condition(expr.args[0])
        assert isinstance(expr, ir.Expr)
        return Condition("leaf", (Leaf(expr),))

    def _comparison(self, expr: prim.CmpExpr) -> Condition:
        if not _is_integer(expr.a):
            return Condition("leaf", (Leaf(expr),))
        left, right = self.poly(expr.a), self.poly(expr.b)
        if isinstance(expr, prim.EQ | prim.NE):
            equal = rules.equals_zero(left - right)
            return equal if isinstance(expr, prim.EQ) else rules.negation(equal)
        if isinstance(expr, prim.LT | prim.LE):
            left, right = right, left
        strict = isinstance(expr, prim.LT | prim.GT)
        return rules.at_least_zero(left - right - (1 if strict else 0))

    # readers of one node class each; None means "leave uninterpreted"

    def _add(self, e: prim.Add) -> Poly:
        return rules.tidy(self.poly(e.a) + self.poly(e.b), self.facts)

    def _sub(self, e: prim.Sub) -> Poly:
        return rules.tidy(self.poly(e.a) - self.poly(e.b), self.facts)

    def _mul(self, e: prim.Mul) -> Poly:
        return rules.tidy(self.poly(e.a) * self.poly(e.b), self.facts)

    def _floordiv(self, e: prim.FloorDiv) -> Poly | None:
        divisor = self.poly(e.b)
        return rules.floordiv(self.poly(e.a), divisor, self.facts) if divisor.terms else None

    def _floormod(self, e: prim.FloorMod) -> Poly | None:
        divisor = self.poly(e.b)
        return rules.floormod(self.poly(e.a), divisor, self.facts) if divisor.terms else None

    def _truncdiv(self, e: prim.Div) -> Poly | None:
        a, b = self.poly(e.a), self.poly(e.b)
        exact = divide_exact(a, b)
        if exact is not None:
            return exact
        return rules.floordiv(a, b, self.facts) if self._truncates_down(a, b) else None

    def _truncmod(self, e: prim.Mod) -> Poly | None:
        a, b = self.poly(e.a), self.poly(e.b)
        return rules.floormod(a, b, self.facts) if self._truncates_down(a, b) else None

    def _truncates_down(self, a: Poly, b: Poly) -> bool:
        return bool(b.terms) and self.facts.nonnegative(a) and self.facts.nonnegative(b)

    def _min(self, e: prim.Min) -> Poly:
        return rules.minimum([self.poly(e.a), self.poly(e.b)], self.facts)

    def _max(self, e: prim.Max) -> Poly:
        return rules.maximum([self.poly(e.a), self.poly(e.b)], self.facts)

    def _select(self, e: prim.Select) -> Poly:
        return self._choose(e.condition, e.true_value, e.false_value)

    def _choose(self, condition: object, a: Number, b: Number) -> Poly:
        return rules.select(self.condition(condition), self.poly(a), self.poly(b), self.facts)

    def _truth(self, e: ir.Expr) -> Poly:
        return rules.select(self.condition(e), ONE, ZERO, self.facts)

    def _call(self, e: ir.Call) -> Poly | None:
        name = op_name(e)
        if name == "if_then_else":
            return self._choose(*e.args)
        if name == "likely":
            return self.poly(e.args[0])
        bits = int_of(e.args[1]) if name in ("shift_left", "shift_right") else None
        if bits is None or not 0 <= bits < 62:
            return None
        value, power = self.poly(e.args[0]), Poly.of(2**bits)
        return value * power if name == "shift_left" else rules.floordiv(value, power, self.facts)

    def _cast(self, e: prim.Cast) -> Poly | None:
        target, source = str(e.ty), str(e.value.ty)
        if target not in ("int64", "int32", "uint64", "uint32"):
            return None
        if source == "bool":
            return self._truth(e.value)
        if source.startswith(("int", "uint")):
            return self.poly(e.value)
        real = self._real(e.value)
        return self._truncate(real) if real is not None else None

    # float detours

    def _real(self, e: ir.Expr) -> _Real | None:
        if str(e.ty) not in _FLOATS:
            return None
        if isinstance(e, prim.FloatImm):
            value = Fraction(e.value)
            exact = value.denominator <= _FINEST
            return _Real(Poly.of(value.numerator), Poly.of(value.denominator)) if exact else None
        if isinstance(e, prim.Cast):
            if str(e.value.ty).startswith(("int", "uint")):
                return _Real(self.poly(e.value), ONE)
            return self._real(e.value)
        if isinstance(e, prim.Add | prim.Sub | prim.Mul | prim.Div):
            return self._real_arithmetic(e)
        if isinstance(e, ir.Call) and op_name(e) in ("floor", "ceil", "trunc", "round", "nearbyint"):
            inner = self._real(e.args[0])
            rounded = self._round(op_name(e), inner) if inner is not None else None
            return _Real(rounded, ONE) if rounded is not None else None
        return None

    def _real_arithmetic(self, e: prim.BinaryOpExpr) -> _Real | None:
        a, b = self._real(e.a), self._real(e.b)
        if a is None or b is None or a.rounded or b.rounded:
            return None
        if isinstance(e, prim.Div):
            return _reduced(a.above * b.below, a.below * b.above)
        if isinstance(e, prim.Mul):
            return _reduced(a.above * b.above, a.below * b.below)
        c, d = a.below.as_constant(), b.below.as_constant()
        if c is None or d is None:
            return None
        common = lcm(c, d)
        left, right = a.above * (common // c), b.above * (common // d)
        return _reduced(left - right if isinstance(e, prim.Sub) else left + right, Poly.of(common))

    def _round(self, how: str, real: _Real) -> Poly | None:
        if how == "floor":
            return rules.floordiv(real.above, real.below, self.facts)
        if how == "ceil":
            return rules.tidy(-rules.floordiv(-real.above, real.below, self.facts))
        return self._truncate(real) if how == "trunc" else divide_exact(real.above, real.below)

    def _truncate(self, real: _Real) -> Poly | None:
        exact = divide_exact(real.above, real.below)
        if exact is not None:
            return exact
        down = self._truncates_down(real.above, real.below)
        return rules.floordiv(real.above, real.below, self.facts) if down else None


@dataclass(frozen=True)
class _Real:
    """``above / below`` computed in floating point; ``rounded`` where the quotient need not be exact."""

    above: Poly
    below: Poly
    rounded: bool = False


def _reduced(above: Poly, below: Poly) -> _Real | None:
    if not below.terms:
        return None
    constant = below.as_constant()
    if constant is not None and constant < 0:
        above, below, constant = -above, -below, -constant
    exact = divide_exact(above, below)
    if exact is not None:
        return _Real(exact, ONE)
    return _Real(above, below, rounded=constant is None or constant & (constant - 1) != 0)


_POLY_READERS = {
    prim.Add: Reader._add,
    prim.Sub: Reader._sub,
    prim.Mul: Reader._mul,
    prim.FloorDiv: Reader._floordiv,
    prim.FloorMod: Reader._floormod,
    prim.Div: Reader._truncdiv,
    prim.Mod: Reader._truncmod,
    prim.Min: Reader._min,
    prim.Max: Reader._max,
    prim.Select: Reader._select,
    prim.Cast: Reader._cast,
    ir.Call: Reader._call,
    **dict.fromkeys((prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE), Reader._truth),
    **dict.fromkeys((prim.And, prim.Or, prim.Not), Reader._truth),
}


def op_name(call: ir.Call) -> str:
    """The name of a called operator without its dialect, '' for anything else."""
    return call.op.name.rpartition(".")[2] if isinstance(call.op, ir.Op) else ""


def _is_integer(expr: ir.Expr) -> bool:
    return str(expr.ty).startswith(("int", "uint"))


def _opaque(expr: ir.Expr) -> Poly:
    return Poly.atom("opaque", Leaf(expr))


def int64(value: int) -> prim.IntImm:
    return tirx.IntImm("int64", value)


def poly_to_expr(poly: Poly) -> ir.Expr:
    """The int64 expression of a normal form."""
    result: Any = None
    for monomial, coefficient in signed_terms(poly):
        term: Any = _term_to_expr(monomial, abs(coefficient))
        if result is None:
            result = term if coefficient > 0 else int64(0) - term if monomial else int64(coefficient)
        else:
            result = result + term if coefficient > 0 else result - term
    return result if result is not None else int64(0)


def signed_terms(poly: Poly) -> list[tuple[Monomial, int]]:
    """The terms in canonical order, positive ones first so that a sum starts without a sign."""
    terms = [(m, poly.terms[m]) for m in poly.sorted_monomials()]
    return sorted(terms, key=lambda term: term[1] < 0)


def _term_to_expr(monomial: Monomial, coefficient: int) -> ir.Expr:
    result: Any = None
    for atom in monomial:
        factor: Any = atom_to_expr(atom)
        result = factor if result is None else result * factor
    if result is None:
        return int64(coefficient)
    return result if coefficient == 1 else result * int64(coefficient)


def atom_to_expr(atom: Atom) -> ir.Expr:
    """The int64 expression of an atom."""
    if atom.kind in ("var", "opaque"):
        node = atom.args[0].node
        return node if str(node.ty) == "int64" else tirx.Cast("int64", node)
    if atom.kind == "select":
        condition, a, b = atom.args
        return tirx.Select(condition_to_expr(condition), poly_to_expr(a), poly_to_expr(b))
    parts = [poly_to_expr(arg) for arg in atom.args]
    if atom.kind == "floordiv":
        return prim.FloorDiv(parts[0], parts[1])
    if atom.kind == "floormod":
        return prim.FloorMod(parts[0], parts[1])
    result = parts.pop()
    while parts:
        other = parts.pop()
        if atom.kind == "join":
            result = tirx.Select(prim.EQ(other, int64(1)), result, other)
        else:
            result = (prim.Min if atom.kind == "min" else prim.Max)(other, result)
    return result


def split_sides(poly: Poly) -> tuple[Poly, Poly]:
    """(left, right) with ``poly == left - right`` and only positive coefficients on both sides."""
    left = Poly({m: c for m, c in poly.terms.items() if c > 0})
    return left, left - poly


def condition_to_expr(condition: Condition) -> ir.Expr:
    """The boolean expression of a normalised condition."""
    if condition.kind in ("true", "false"):
        return tirx.IntImm("bool", int(condition.kind == "true"))
    if condition.kind == "leaf":
        return condition.args[0].node
    if condition.kind in ("eq", "ge"):
        left, right = (poly_to_expr(side) for side in split_sides(condition.args[0]))
        return (prim.EQ if condition.kind == "eq" else prim.GE)(left, right)
    parts = [condition_to_expr(arg) for arg in condition.args]
    if condition.kind == "not":
        return prim.Not(parts[0])
    result = parts[0]
    for part in parts[1:]:
        result = (prim.And if condition.kind == "and" else prim.Or)(result, part)
    return result
