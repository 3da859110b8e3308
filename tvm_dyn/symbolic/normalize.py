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


def map_poly(poly: Poly, replace: Replace, facts: Bounds) -> Poly:
    """Replace atoms: ``replace(atom)`` gives a polynomial, or None to rebuild the atom through its rule."""
    if all(atom.kind == "var" and replace(atom) is None for atom in poly.atoms()):
        return poly
    return rules.tidy(rebuild(poly, lambda atom: _map_atom(atom, replace, facts)), facts)


def _map_atom(atom: Atom, replace: Replace, facts: Bounds) -> Poly:
    new = replace(atom)
    if new is not None:
        return new
    if atom.kind in ("var", "part"):
        return Poly({(atom,): 1})
    if atom.kind == "opaque":
        return _map_opaque(atom, replace, facts)
    if atom.kind == "select":
        condition, a, b = atom.args
        mapped = map_condition(condition, replace, facts)
        return rules.select(mapped, map_poly(a, replace, facts), map_poly(b, replace, facts), facts)
    args = [map_poly(arg, replace, facts) for arg in atom.args]
    return apply_rule(atom.kind, args, facts)


def apply_rule(kind: str, args: list[Poly], facts: Bounds) -> Poly:
    """Build an operation of ``kind`` through its rewriting rule."""
    if kind in ("floordiv", "floormod"):
        if not args[1].terms:  # a division by 0 stays as it is: it has no value
            return Poly.atom(kind, *args)
        return (rules.floordiv if kind == "floordiv" else rules.floormod)(args[0], args[1], facts)
    return {"min": rules.minimum, "max": rules.maximum, "join": rules.join}[kind](args, facts)


def _map_opaque(atom: Atom, replace: Replace, facts: Bounds) -> Poly:
    def visit(var: ir.Var) -> ir.Expr:
        new = replace(Atom("var", (Leaf(var),)))
        if new is None or any(factor.kind == "part" for factor in new.atoms()):
            return var
        constant = new.as_constant()
        value = poly_to_expr(new) if constant is None else int64(constant)
        return value if str(var.ty) == "int64" else var

    old = atom.args[0].node
    new = tvm_ffi.structural_map(old, (ir.Var, visit))
    return Poly({(atom,): 1}) if new.same_as(old) else Reader(facts).poly(new)


def map_condition(condition: Condition, replace: Replace, facts: Bounds) -> Condition:
    """`map_poly` below a condition."""
    if condition.kind == "eq":
        return rules.equals_zero(map_poly(condition.args[0], replace, facts))
    if condition.kind == "ge":
        return rules.at_least_zero(map_poly(condition.args[0], replace, facts))
    if condition.kind == "not":
        return rules.negation(map_condition(condition.args[0], replace, facts))
    if condition.kind in ("and", "or"):
        return rules.connect(condition.kind, [map_condition(arg, replace, facts) for arg in condition.args])
    return condition


def substitute_vars(poly: Poly, values: Mapping[Leaf, Poly], facts: Bounds) -> Poly:
    """Replace variables and re-apply the rules above them."""
    return map_poly(poly, lambda atom: values.get(atom.args[0]) if atom.kind == "var" else None, facts)


def scale(poly: Poly, divisors: Mapping[Leaf, tuple[int, int]], facts: Bounds) -> Poly:
    """Write each variable known to be ``r`` modulo ``d`` as ``d*part + r``, so that divisions by ``d`` go."""

    def replace(atom: Atom) -> Poly | None:
        known = divisors.get(atom.args[0]) if atom.kind == "var" else None
        return None if known is None else Poly.atom("part", atom.args[0], *known) * known[0] + known[1]

    return map_poly(poly, replace, facts)


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
    return rebuild(poly, lambda atom: _map_atom(atom, replace, facts))
