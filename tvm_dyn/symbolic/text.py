"""Shape expressions as Python text: ``2*h + 1``, ``(h + 1)//2``, ``b if a == 1 else a``."""

from __future__ import annotations

from .convert import signed_terms, split_sides
from .polynomial import Atom, Condition, Monomial, Poly


def poly_to_text(poly: Poly) -> str:
    """Python source of a normal form; symbols by their names."""
    text = ""
    for monomial, coefficient in signed_terms(poly):
        leads_negative = not text and coefficient < 0
        term = _term_to_text(monomial, abs(coefficient), bracket=leads_negative)
        if not text:
            text = f"-{term}" if leads_negative else term
        else:
            text += f" + {term}" if coefficient > 0 else f" - {term}"
    return text or "0"


def _term_to_text(monomial: Monomial, coefficient: int, bracket: bool) -> str:
    alone = len(monomial) == 1 and coefficient == 1 and not bracket
    factors = [_atom_to_text(atom, alone) for atom in monomial]
    if coefficient != 1 or not factors:
        factors.insert(0, str(coefficient))
    return "*".join(factors)


def _atom_to_text(atom: Atom, alone: bool) -> str:
    if atom.kind == "var":
        return atom.args[0].node.name
    if atom.kind in ("min", "max"):
        return f"{atom.kind}({', '.join(poly_to_text(arg) for arg in atom.args)})"
    if atom.kind in ("floordiv", "floormod"):
        a, b = (_operand(arg) for arg in atom.args)
        text = f"{a}//{b}" if atom.kind == "floordiv" else f"{a} % {b}"
        return text if alone else f"({text})"
    if atom.kind == "join":
        *firsts, last = (poly_to_text(arg) for arg in atom.args)
        text = last
        for first in reversed(firsts):
            text = f"({text} if {first} == 1 else {first})"
        return text
    if atom.kind == "select":
        condition, a, b = atom.args
        return f"({poly_to_text(a)} if {condition_to_text(condition)} else {poly_to_text(b)})"
    return f"({atom.args[0].node})"


def _operand(poly: Poly) -> str:
    text = poly_to_text(poly)
    return text if poly.single_atom("var") or (poly.as_constant() or -1) >= 0 else f"({text})"


def condition_to_text(condition: Condition) -> str:
    """Python source of a normalised condition."""
    if condition.kind in ("true", "false"):
        return condition.kind.capitalize()
    if condition.kind == "leaf":
        return f"({condition.args[0].node})"
    if condition.kind in ("eq", "ge"):
        left, right = (poly_to_text(side) for side in split_sides(condition.args[0]))
        return f"{left} {'==' if condition.kind == 'eq' else '>='} {right}"
    parts = [f"({condition_to_text(arg)})" for arg in condition.args]
    return f"not {parts[0]}" if condition.kind == "not" else f" {condition.kind} ".join(parts)
