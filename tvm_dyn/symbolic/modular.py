"""Residue classes of shape polynomials: ``(d, r)`` says that every value is ``r`` modulo ``d``.

``d == 0`` says that the value is the constant ``r``; ``(1, 0)`` says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from .bounds import cases
from .polynomial import Atom, Leaf, Poly

Residue = tuple[int, int]


def reduced(divisor: int, remainder: int) -> Residue:
    return (divisor, remainder % divisor) if divisor else (0, remainder)


def meet(a: Residue, b: Residue) -> Residue | None:
    """The class of values that are in both classes (Chinese remainder theorem); None if there is none."""
    (d, r), (e, s) = a, b
    if d == 0 or e == 0:
        (constant, other) = (r, b) if d == 0 else (s, a)
        fits = other[1] == constant if other[0] == 0 else (constant - other[1]) % other[0] == 0
        return (0, constant) if fits else None
    shared = gcd(d, e)
    if (s - r) % shared:
        return None
    step = (s - r) // shared * pow(d // shared, -1, e // shared)
    return reduced(d // shared * e, r + d * step)


def union(a: Residue, b: Residue) -> Residue:
    """The smallest class that holds the values of both."""
    return reduced(gcd(a[0], b[0], a[1] - b[1]), a[1])


def solve(coefficient: int, constant: int, residue: Residue) -> Residue | None:
    """The class of ``x`` for which ``coefficient*x + constant`` is in ``residue``; None if there is none."""
    divisor, remainder = residue
    shared = gcd(coefficient, divisor)
    if divisor == 0 or (remainder - constant) % shared:
        return None
    step, modulus = (remainder - constant) // shared, divisor // shared
    return reduced(modulus, step * pow(coefficient // shared, -1, modulus)) if modulus > 1 else (1, 0)


def residue_of(poly: Poly, known: Callable[[Leaf], Residue]) -> Residue:
    """The residue class of a polynomial, given those of its variables."""
    divisor, remainder = 0, 0
    for monomial, coefficient in poly.terms.items():
        term: Residue = (0, coefficient)
        for atom in monomial:
            term = _product(term, _atom_residue(atom, known))
        divisor, remainder = gcd(divisor, term[0]), remainder + term[1]
    return reduced(divisor, remainder)


def _product(a: Residue, b: Residue) -> Residue:
    return reduced(gcd(a[0] * b[0], a[0] * b[1], a[1] * b[0]), a[1] * b[1])


def _atom_residue(atom: Atom, known: Callable[[Leaf], Residue]) -> Residue:
    if atom.kind == "var":
        return known(atom.args[0])
    if atom.kind in ("floordiv", "floormod"):
        constant = atom.args[1].as_constant()
        if not constant:
            return 1, 0
        divisor, remainder = residue_of(atom.args[0], known)
        if atom.kind == "floormod":
            return reduced(gcd(divisor, constant), remainder)
        return reduced(divisor // abs(constant), remainder // constant) if divisor % constant == 0 else (1, 0)
    if atom.kind in ("min", "max", "join", "select"):
        classes = [residue_of(case, known) for case in cases(atom)]
        result = classes[0]
        for other in classes[1:]:
            result = union(result, other)
        return result
    return 1, 0
