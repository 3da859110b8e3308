"""Proof by cases: a claim about ``min(a, b)`` holds if it holds where ``a <= b`` and where ``b <= a``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import rules
from .normalize import Rewriting
from .polynomial import FALSE, Atom, Condition, Poly

if TYPE_CHECKING:
    from .facts import SymbolicFacts


def case_split(facts: SymbolicFacts, condition: Condition, splits: int) -> bool:
    """Whether ``condition`` follows in every case of its first conditional atom."""
    atom = next(_conditional_atoms(condition), None)
    if atom is None:
        return False
    for premise, value in _alternatives(atom):
        premise = facts.canonical_condition(premise)
        if premise == FALSE:
            continue
        narrowed = facts.clone()
        narrowed.assume_condition(premise)

        def replace(other: Atom, value: Poly = value) -> Poly | None:
            return value if other == atom else None

        claim = narrowed.canonical_condition(Rewriting(narrowed, replace).condition(condition))
        if not narrowed.derive(claim, splits - 1):
            return False
    return True


def _conditional_atoms(value: Poly | Atom | Condition) -> Iterator[Atom]:
    """Conditional atoms, innermost first."""
    if isinstance(value, Poly):
        for atom in sorted(value.atoms(), key=lambda atom: atom.order):
            yield from _conditional_atoms(atom)
        return
    for arg in value.args:
        if isinstance(arg, Poly | Condition):
            yield from _conditional_atoms(arg)
    if isinstance(value, Atom) and value.kind in ("min", "max", "join", "select"):
        yield value


def _alternatives(atom: Atom) -> Iterator[tuple[Condition, Poly]]:
    """(premise, value) pairs; the premises cover everything."""
    if atom.kind == "select":
        condition, a, b = atom.args
        yield condition, a
        yield rules.negation(condition), b
    elif atom.kind == "join":
        first, *rest = atom.args
        is_one = rules.equals_zero(first - 1)
        yield is_one, rest[0] if len(rest) == 1 else Poly.atom("join", *rest)
        yield rules.negation(is_one), first
    else:
        sign = 1 if atom.kind == "min" else -1
        for chosen in atom.args:
            others = [rules.at_least_zero((other - chosen) * sign) for other in atom.args if other != chosen]
            yield rules.connect("and", others), chosen
