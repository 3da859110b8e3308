"""Transformations of whole normal forms: substitution, scaling by divisors, the decision form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import gcd

import tvm_ffi
from tvm import ir

from . import rules
from .bounds import Bounds
from .convert import Reader, int64, poly_to_expr
from .polynomial import Atom, Condition, Leaf, Monomial, Poly, divide_monomial, rebuild

Replace = Callable[[Atom], Poly | None]


class Rewriting:
    """Bottom-up replacement of atoms; every operation above one is rebuilt through its rule.

    ``replace(atom)`` gives the polynomial that takes the place of an atom, or None; ``finish`` is applied to
    every rebuilt polynomial, nested ones included.
    """

    def __init__(self, facts: Bounds, replace: Replace, finish: Callable[[Poly], Poly] | None = None):
        self._facts = facts
        self._replace = replace
        self._finish = finish

    def poly(self, poly: Poly) -> Poly:
        """The rewritten polynomial."""
        if not all(atom.kind == "var" and self._replace(atom) is None for atom in poly.atoms()):
            poly = rules.tidy(rebuild(poly, self.atom), self._facts)
        return poly if self._finish is None else self._finish(poly)

    def atom(self, atom: Atom) -> Poly:
        """The polynomial that takes the place of an atom."""
        new = self._replace(atom)
        if new is not None:
            return new
        if atom.kind in ("var", "part"):
            return Poly({(atom,): 1})
        if atom.kind == "opaque":
            return self._opaque(atom)
        if atom.kind == "select":
            condition, a, b = atom.args
            return rules.select(self.condition(condition), self.poly(a), self.poly(b), self._facts)
        return apply_rule(atom.kind, [self.poly(arg) for arg in atom.args], self._facts)

    def condition(self, condition: Condition) -> Condition:
        """The rewritten condition."""
        if condition.kind == "eq":
            return rules.equals_zero(self.poly(condition.args[0]))
        if condition.kind == "ge":
            return rules.at_least_zero(self.poly(condition.args[0]))
        if condition.kind == "not":
            return rules.negation(self.condition(condition.args[0]))
        if condition.kind in ("and", "or"):
            return rules.connect(condition.kind, [self.condition(arg) for arg in condition.args])
        return condition

    def _opaque(self, atom: Atom) -> Poly:
        def visit(var: ir.Var) -> ir.Expr:
            new = self._replace(Atom("var", (Leaf(var),)))
            if new is None or str(var.ty) != "int64" or any(factor.kind == "part" for factor in new.atoms()):
                return var
            constant = new.as_constant()
            return poly_to_expr(new) if constant is None else int64(constant)

        old = atom.args[0].node
        new = tvm_ffi.structural_map(old, (ir.Var, visit))
        return Poly({(atom,): 1}) if new.same_as(old) else Reader(self._facts).poly(new)


def apply_rule(kind: str, args: list[Poly], facts: Bounds) -> Poly:
    """Build an operation of ``kind`` through its rewriting rule."""
    if kind in ("floordiv", "floormod"):
        if not args[1].terms:  # a division by 0 stays as it is: it has no value
            return Poly.atom(kind, *args)
        return (rules.floordiv if kind == "floordiv" else rules.floormod)(args[0], args[1], facts)
    return {"min": rules.minimum, "max": rules.maximum, "join": rules.join}[kind](args, facts)


def substitution(values: Mapping[Leaf, Poly], facts: Bounds, finish: Callable[[Poly], Poly] | None = None) -> Rewriting:
    """Replace variables by polynomials."""
    return Rewriting(facts, lambda atom: values.get(atom.args[0]) if atom.kind == "var" else None, finish)


def scale(poly: Poly, divisors: Mapping[Leaf, tuple[int, int]], facts: Bounds) -> Poly:
    """Write each variable known to be ``r`` modulo ``d`` as ``d*part + r``, so that divisions by ``d`` go."""

    def replace(atom: Atom) -> Poly | None:
        known = divisors.get(atom.args[0]) if atom.kind == "var" else None
        return None if known is None else Poly.atom("part", atom.args[0], *known) * known[0] + known[1]

    return Rewriting(facts, replace).poly(poly)


def unscale(poly: Poly, facts: Bounds) -> Poly:
    """The inverse of `scale`: ``d*part`` back to ``x - r`` and ``k*part`` to ``x // (d/k)``."""
    result = Poly({})
    for monomial, coefficient in poly.terms.items():
        product, rest = Poly.of(1), coefficient
        for atom in monomial:
            if atom.kind != "part":
                product = product * _unscale_atom(atom, facts)
                continue
            leaf, divisor, remainder = atom.args
            if rest % divisor == 0:
                rest //= divisor
                product = product * (Poly.var(leaf.node) - remainder)
            else:
                factor = gcd(rest, divisor)
                rest, divisor = rest // factor, divisor // factor
                lone = Poly.atom("floordiv", Poly.var(leaf.node), Poly.of(divisor))
                product = product * (lone - remainder // divisor)
        result = result + product * rest
    return rules.tidy(result, facts)


def _unscale_atom(atom: Atom, facts: Bounds) -> Poly:
    if atom.kind in ("var", "opaque"):
        return Poly({(atom,): 1})
    if atom.kind == "select":
        condition, a, b = atom.args
        return rules.select(_unscale_condition(condition, facts), unscale(a, facts), unscale(b, facts), facts)
    return apply_rule(atom.kind, [unscale(arg, facts) for arg in atom.args], facts)


def _unscale_condition(condition: Condition, facts: Bounds) -> Condition:
    if condition.kind == "eq":
        return rules.equals_zero(unscale(condition.args[0], facts))
    if condition.kind == "ge":
        return rules.at_least_zero(unscale(condition.args[0], facts))
    if condition.kind in ("and", "or", "not"):
        return Condition(condition.kind, tuple(_unscale_condition(arg, facts) for arg in condition.args))
    return condition


def reduce_monomials(poly: Poly, reductions: Mapping[Monomial, Poly]) -> Poly:
    """Rewrite by equations ``monomial == polynomial`` (smaller in the monomial order) to a fixpoint."""
    for _ in range(16):
        step = next(_reducible(poly, reductions), None)
        if step is None:
            break
        monomial, factor, value = step
        rest = Poly({m: c for m, c in poly.terms.items() if m != monomial})
        poly = rest + Poly({factor: poly.terms[monomial]}) * value
    return poly


def _reducible(poly: Poly, reductions: Mapping[Monomial, Poly]) -> Iterator[tuple[Monomial, Monomial, Poly]]:
    """(monomial, factor, value): a monomial that is ``factor`` times the left side of an equation."""
    for monomial in poly.sorted_monomials():
        for left, value in reductions.items():
            factor = divide_monomial(monomial, left)
            if factor is not None:
                yield monomial, factor, value


def decision_form(poly: Poly, facts: Bounds) -> Poly:
    """A stronger, less readable form for comparisons: no ``%``, no two-sided ``max``, no ``(x+1) // 2``."""

    def replace(atom: Atom) -> Poly | None:
        if atom.kind == "floormod":
            a, b = (decision_form(arg, facts) for arg in atom.args)
            return a - b * decision_form(rules.floordiv(a, b, facts), facts) if b.terms else None
        if atom.kind == "max" and len(atom.args) == 2:
            a, b = (decision_form(arg, facts) for arg in atom.args)
            return a + b - rules.minimum([a, b], facts)
        if atom.kind == "floordiv" and atom.args[1].as_constant() == 2:
            half = decision_form(atom.args[0], facts)
            if half.constant == 1 and all(c == 1 for c in half.terms.values()):
                return half - 1 - Poly.atom("floordiv", half - 1, Poly.of(2))
        return None

    if all(atom.kind in ("var", "part") for atom in poly.atoms()):
        return poly
    return rebuild(poly, Rewriting(facts, replace).atom)
