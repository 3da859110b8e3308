"""Integer polynomials over atoms: the normal form of shape expressions.

A shape expression is a sum of monomials with integer coefficients; a monomial is a product of atoms; an
atom is a symbolic variable or a non-polynomial operation (``floordiv``, ``min``, ``select``...) on
polynomials. Two expressions that expand to the same sum are equal; everything beyond that is the business
of `rules` (rewriting when an atom is built) and of `facts` (decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from math import gcd
from typing import Any

import tvm_ffi
from tvm import ir


class Atom:
    """An indivisible factor: operation ``kind`` on ``args``, which are polynomials, conditions or a leaf."""

    __slots__ = ("_hash", "args", "kind", "order")

    def __init__(self, kind: str, args: tuple):
        self.kind = kind
        self.args = args
        self._hash = hash((kind, args))
        self.order = (kind != "var", kind, *(_order_of(arg) for arg in args))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Atom)
            and self._hash == other._hash
            and self.kind == other.kind
            and self.args == other.args
        )

    def __repr__(self) -> str:
        return f"{self.kind}{self.args}"


class Leaf:
    """A hashable, ordered handle of a TVM node: a variable, or an unread expression of ``inner`` ones."""

    __slots__ = ("_hash", "inner", "node", "order")

    def __init__(self, node: ir.Expr):
        self.node: Any = node
        self.inner: list[Leaf] = []
        if isinstance(node, ir.Var):
            self._hash = hash(node)
            self.order = (node.name, self._hash)
        else:
            self._hash = tvm_ffi.structural_hash(node)
            self.order = (str(node), self._hash)
            tvm_ffi.structural_walk(node, (ir.Var, lambda var: self.inner.append(Leaf(var))))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Leaf):
            return False
        if isinstance(self.node, ir.Var) or isinstance(other.node, ir.Var):
            return self.node.same_as(other.node)
        return self._hash == other._hash and tvm_ffi.structural_equal(self.node, other.node)

    def __repr__(self) -> str:
        return str(self.node)


class Condition:
    """A normalised truth value: ``eq``/``ge`` of a polynomial and 0, ``and``/``or``/``not``, or a leaf."""

    __slots__ = ("_hash", "args", "kind", "order")

    def __init__(self, kind: str, args: tuple):
        self.kind = kind
        self.args = args
        self._hash = hash((kind, args))
        self.order = (kind, *(_order_of(arg) for arg in args))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.kind == other.kind and self.args == other.args

    def __repr__(self) -> str:
        return f"{self.kind}{self.args}"


TRUE = Condition("true", ())
FALSE = Condition("false", ())

Monomial = tuple[Atom, ...]
Coefficient = int | Fraction


def _order_of(arg: Any) -> tuple:
    return arg.order if hasattr(arg, "order") else (str(arg),)


def monomial_order(monomial: Monomial) -> tuple:
    """Sort key: higher degree first, then atoms by name; the constant comes last."""
    return (-len(monomial), tuple(atom.order for atom in monomial))


def _merge(left: Monomial, right: Monomial) -> Monomial:
    if not left:
        return right
    if not right:
        return left
    return tuple(sorted(left + right, key=lambda atom: atom.order))


class Poly:
    """An immutable polynomial; ``terms`` maps monomials to non-zero coefficients."""

    __slots__ = ("_hash", "_order", "terms")

    def __init__(self, terms: dict[Monomial, Any]):
        self.terms = terms
        self._hash: int | None = None
        self._order: tuple | None = None

    @staticmethod
    def of(value: Coefficient) -> Poly:
        return Poly({(): value} if value else {})

    @staticmethod
    def atom(kind: str, *args: Any) -> Poly:
        return Poly({(Atom(kind, args),): 1})

    @staticmethod
    def var(var: ir.Var) -> Poly:
        return Poly({(Atom("var", (Leaf(var),)),): 1})

    @property
    def order(self) -> tuple:
        if self._order is None:
            self._order = tuple((monomial_order(m), self.terms[m]) for m in self.sorted_monomials())
        return self._order

    def sorted_monomials(self) -> list[Monomial]:
        return sorted(self.terms, key=monomial_order)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __repr__(self) -> str:
        return f"Poly({self.terms})"

    def __add__(self, other: Poly | Coefficient) -> Poly:
        other = other if isinstance(other, Poly) else Poly.of(other)
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total = terms.get(monomial, 0) + coefficient
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Poly(terms)

    def __sub__(self, other: Poly | Coefficient) -> Poly:
        return self + (other * -1 if isinstance(other, Poly) else -other)

    def __mul__(self, other: Poly | Coefficient) -> Poly:
        if not isinstance(other, Poly):
            return Poly({m: c * other for m, c in self.terms.items()}) if other else ZERO
        terms: dict[Monomial, Any] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                key = _merge(left, right)
                terms[key] = terms.get(key, 0) + a * b
        return Poly({m: c for m, c in terms.items() if c})

    def __neg__(self) -> Poly:
        return self * -1

    def as_constant(self) -> Any:
        """The value if this is a constant, else None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def constant(self) -> Any:
        """The constant term."""
        return self.terms.get((), 0)

    def single_atom(self, kind: str | None = None) -> Atom | None:
        """The atom if this is exactly one atom with coefficient 1 (of ``kind``, where given)."""
        if len(self.terms) != 1:
            return None
        ((monomial, coefficient),) = self.terms.items()
        if coefficient != 1 or len(monomial) != 1 or (kind is not None and monomial[0].kind != kind):
            return None
        return monomial[0]

    def linear_atoms(self, *kinds: str) -> Iterator[tuple[Atom, Any]]:
        """(atom, coefficient) of every degree-1 term whose atom is of one of ``kinds``."""
        for monomial, coefficient in self.terms.items():
            if len(monomial) == 1 and monomial[0].kind in kinds:
                yield monomial[0], coefficient

    def without(self, atom: Atom) -> Poly:
        """This polynomial less its degree-1 term in ``atom``."""
        return Poly({m: c for m, c in self.terms.items() if m != (atom,)})

    def content(self) -> int:
        """The gcd of all coefficients (0 of the zero polynomial)."""
        return gcd(*self.terms.values()) if self.terms else 0

    def floordiv_coefficients(self, divisor: int) -> Poly:
        return Poly({m: q for m, c in self.terms.items() if (q := c // divisor)})

    def atoms(self) -> set[Atom]:
        """The atoms that occur as factors (not those nested in the arguments of other atoms)."""
        return {atom for monomial in self.terms for atom in monomial}


ZERO = Poly({})
ONE = Poly.of(1)


def total(polys: Iterable[Poly]) -> Poly:
    result = ZERO
    for poly in polys:
        result = result + poly
    return result


def nested_leaves(value: Any) -> Iterator[Leaf]:
    """All leaves (variables and uninterpreted expressions) below a polynomial, atom or condition."""
    if isinstance(value, Leaf):
        yield value
        yield from value.inner
    elif isinstance(value, Poly):
        for atom in value.atoms():
            yield from nested_leaves(atom)
    elif isinstance(value, Atom | Condition):
        for arg in value.args:
            yield from nested_leaves(arg)


def rebuild(poly: Poly, atom_value: Callable[[Atom], Poly]) -> Poly:
    """Replace every factor atom by ``atom_value(atom)`` and expand."""
    result = ZERO
    for monomial, coefficient in poly.terms.items():
        product = Poly.of(coefficient)
        for atom in monomial:
            product = product * atom_value(atom)
        result = result + product
    return result


def divide_monomial(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """``monomial / divisor`` if every factor of the divisor is present, else None."""
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def divide_exact(dividend: Poly, divisor: Poly) -> Poly | None:
    """The polynomial ``q`` with ``dividend == q * divisor``, or None (multivariate long division)."""
    if not divisor.terms:
        return None
    lead = divisor.sorted_monomials()[0]
    quotient, rest = ZERO, dividend
    for _ in range(4 * len(dividend.terms) + 4):
        if not rest.terms:
            return quotient
        step = None
        for monomial in rest.sorted_monomials():
            factor = divide_monomial(monomial, lead)
            if factor is not None and rest.terms[monomial] % divisor.terms[lead] == 0:
                step = Poly({factor: rest.terms[monomial] // divisor.terms[lead]})
            break
        if step is None:
            return None
        quotient = quotient + step
        rest = rest - step * divisor
    return None


def common_monomial(polys: Iterable[Poly]) -> Monomial:
    """The greatest monomial that divides every term of every polynomial."""
    monomials = [m for poly in polys for m in poly.terms]
    if not monomials:
        return ()
    shared = list(monomials[0])
    for monomial in monomials[1:]:
        rest = list(monomial)
        kept = []
        for atom in shared:
            if atom in rest:
                rest.remove(atom)
                kept.append(atom)
        shared = kept
    return tuple(shared)


def divide_by_monomial(poly: Poly, divisor: Monomial) -> Poly:
    terms = {}
    for monomial, coefficient in poly.terms.items():
        quotient = divide_monomial(monomial, divisor)
        assert quotient is not None
        terms[quotient] = coefficient
    return Poly(terms)
