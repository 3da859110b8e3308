"""Intervals of shape polynomials, given intervals of their variables.

Three sources of precision beyond term-by-term interval arithmetic: variables are shifted to their lower
bound, so that ``x*y - x`` is non-negative when ``y >= 1``; ``x // c`` is also seen as ``x/c - e`` with
``0 <= e < 1``, so that ``c * (x // c) <= x``; and a ``min``, ``max``, ``select`` or ``join`` is split into
its cases, so that ``min(a, b) <= a``.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

from .polynomial import Atom, Condition, Leaf, Poly

Interval = tuple[Any, Any]  # (lower, upper); None means unbounded
ANY: Interval = (None, None)
_CASE_KINDS = ("min", "max", "select", "join")
_MAX_DEPTH = 4


def intersect(a: Interval, b: Interval) -> Interval:
    low = a[0] if b[0] is None else b[0] if a[0] is None else max(a[0], b[0])
    high = a[1] if b[1] is None else b[1] if a[1] is None else min(a[1], b[1])
    return low, high


def hull(intervals: list[Interval]) -> Interval:
    lows = [low for low, _ in intervals]
    highs = [high for _, high in intervals]
    return (None if None in lows else min(lows), None if None in highs else max(highs))


def cases(atom: Atom) -> list[Poly]:
    """The polynomials one of which a min, max, select or join atom is equal to."""
    if atom.kind == "select":
        return [atom.args[1], atom.args[2]]
    return list(atom.args)


class Bounds:
    """Bounds under no facts at all; `SymbolicFacts` extends it with what is known of variables."""

    def __init__(self) -> None:
        self._bound_cache: dict[Any, Interval] = {}

    def leaf_range(self, leaf: Leaf) -> Interval:
        """The interval of a variable."""
        return ANY

    def compatible(self, a: Poly, b: Poly) -> bool:
        """Whether ``a`` and ``b`` are known to broadcast: equal, or one of them is 1."""
        return a == b

    def truth(self, condition: Condition) -> bool | None:
        """True or False when the condition is decided, else None."""
        if condition.kind in ("true", "false"):
            return condition.kind == "true"
        if condition.kind == "ge":
            low, high = self.bounds(condition.args[0])
            return True if low is not None and low >= 0 else False if high is not None and high < 0 else None
        if condition.kind == "eq":
            return self._zero_truth(condition.args[0])
        return None

    def _zero_truth(self, poly: Poly) -> bool | None:
        if not poly.terms:
            return True
        low, high = self.bounds(poly)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        return True if low == 0 and high == 0 else None

    def nonnegative(self, poly: Poly) -> bool:
        low = self.bounds(poly)[0]
        return low is not None and low >= 0

    def bounds(self, poly: Poly, depth: int = 0) -> Interval:
        """An interval that holds every value of ``poly``; integers, or None where unbounded."""
        constant = poly.as_constant()
        if constant is not None:
            return constant, constant
        if depth > _MAX_DEPTH:
            return ANY
        cached = self._bound_cache.get(poly)
        if cached is not None:
            return cached
        low, high = self._plain(poly, depth)
        if low is None or high is None or low != high:
            low, high = intersect((low, high), self._relaxed(poly, depth))
            low, high = intersect((low, high), self._by_cases(poly, depth))
        result = (None if low is None else ceil(low), None if high is None else floor(high))
        if depth == 0:
            self._bound_cache[poly] = result
        return result

    def _plain(self, poly: Poly, depth: int) -> Interval:
        ranges = {atom: self.atom_bounds(atom, depth + 1) for atom in poly.atoms()}
        high = _shifted_lower(-poly, ranges)
        return _shifted_lower(poly, ranges), None if high is None else -high

    def _relaxed(self, poly: Poly, depth: int) -> Interval:
        """Bounds with every ``k * (x // c)`` seen as ``k/c * x - k/c * [0, c-1]``."""
        slack_low = slack_high = Fraction(0)
        relaxed = poly
        for atom, _ in list(poly.linear_atoms("floordiv")):
            divisor = atom.args[1].as_constant()
            k = relaxed.terms.get((atom,), 0)  # the argument of an earlier one may hold this one too
            if divisor is None or divisor <= 0 or not k:
                continue
            factor = Fraction(k) / divisor
            relaxed = relaxed.without(atom) + atom.args[0] * factor
            spread = -factor * (divisor - 1)
            slack_low += min(spread, 0)
            slack_high += max(spread, 0)
        if relaxed is poly:
            return ANY
        low, high = self.bounds_rational(relaxed, depth + 1)
        return (None if low is None else low + slack_low, None if high is None else high + slack_high)

    def bounds_rational(self, poly: Poly, depth: int) -> Interval:
        if depth > _MAX_DEPTH:
            return ANY
        result = self._plain(poly, depth)
        if result[0] is None or result[1] is None:
            result = intersect(result, self._relaxed(poly, depth))
        return result

    def _by_cases(self, poly: Poly, depth: int) -> Interval:
        result = ANY
        for atom, k in list(poly.linear_atoms(*_CASE_KINDS)):
            rest = poly.without(atom)
            parts = [self.bounds(rest + case * k, depth + 1) for case in cases(atom)]
            interval = hull(parts)
            if atom.kind in ("min", "max") and (atom.kind == "min") == (k > 0):
                highs = [high for _, high in parts if high is not None]
                interval = (interval[0], min(highs, default=None))
            elif atom.kind in ("min", "max"):
                lows = [low for low, _ in parts if low is not None]
                interval = (max(lows, default=None), interval[1])
            result = intersect(result, interval)
        return result

    def atom_bounds(self, atom: Atom, depth: int = 0) -> Interval:
        """An interval that holds every value of ``atom``."""
        if atom.kind == "var":
            return self.leaf_range(atom.args[0])
        if depth > _MAX_DEPTH:
            return ANY
        if atom.kind in _CASE_KINDS:
            return self._by_cases(Poly({(atom,): 1}), depth)
        if atom.kind == "floordiv":
            return self._floordiv_bounds(atom, depth)
        if atom.kind == "floormod":
            return self._floormod_bounds(atom, depth)
        return ANY

    def _floordiv_bounds(self, atom: Atom, depth: int) -> Interval:
        low, high = self.bounds(atom.args[0], depth + 1)
        divisor_low, divisor_high = self.bounds(atom.args[1], depth + 1)
        if divisor_low is None or divisor_low <= 0:
            return ANY
        divisor = (divisor_low, divisor_high)
        return _divided(low, divisor, upper=False), _divided(high, divisor, upper=True)

    def _floormod_bounds(self, atom: Atom, depth: int) -> Interval:
        divisor_low, divisor_high = self.bounds(atom.args[1], depth + 1)
        if divisor_low is None or divisor_low <= 0:
            return ANY
        low, high = self.bounds(atom.args[0], depth + 1)
        result: Interval = (0, None if divisor_high is None else divisor_high - 1)
        if low is not None and low >= 0:
            result = intersect(result, (0, high))
        return result


def _divided(value: Any, divisor: Interval, upper: bool) -> Any:
    """The least (or ``upper``: the greatest) ``value // d`` over the positive ``d`` in an interval."""
    if value is None:
        return None
    smallest, largest = divisor
    if (value >= 0) == upper:
        return value // smallest
    if largest is None:
        return 0 if value >= 0 else -1
    return value // largest


def _shifted_lower(poly: Poly, ranges: dict[Atom, Interval]) -> Any:
    """A lower bound of ``poly``: each atom is replaced by its lower bound plus a non-negative rest."""
    index = {atom: i for i, atom in enumerate(ranges)}
    intervals = list(ranges.values())
    shifted: dict[tuple[int, ...], Any] = {}
    for monomial, coefficient in poly.terms.items():
        parts: dict[tuple[int, ...], Any] = {(): coefficient}
        for atom in monomial:
            low = ranges[atom][0]
            if low is None:
                return _signed_lower(poly, ranges)
            grown: dict[tuple[int, ...], Any] = {}
            for factors, c in parts.items():
                key = tuple(sorted((*factors, index[atom])))
                grown[key] = grown.get(key, 0) + c
                if low:
                    grown[factors] = grown.get(factors, 0) + c * low
            parts = grown
        for factors, c in parts.items():
            shifted[factors] = shifted.get(factors, 0) + c
    return _sum_lower(shifted, intervals)


def _sum_lower(shifted: dict[tuple[int, ...], Any], intervals: list[Interval]) -> Any:
    """A lower bound of a sum of products of non-negative rests ``atom - lower bound``."""
    result: Any = 0
    for factors, c in shifted.items():
        if c < 0:
            for i in factors:
                low, high = intervals[i]
                if high is None:
                    return None
                c *= high - low
        elif factors:
            continue
        result += c
    return result


def _signed_lower(poly: Poly, ranges: dict[Atom, Interval]) -> Any:
    """A lower bound where some atom has none: term by term, degree-1 terms only for unbounded atoms."""
    result: Any = 0
    for monomial, coefficient in poly.terms.items():
        low, high = coefficient, coefficient
        for atom in monomial:
            product = _product((low, high), ranges[atom])
            if product[0] is None and product[1] is None:
                return None
            low, high = product
        if low is None:
            return None
        result += low
    return result


def _product(a: Interval, b: Interval) -> Interval:
    """The interval of a product; exact for finite intervals and for one-sided ones of known sign."""
    if None not in a and None not in b:
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    if a == (0, 0) or b == (0, 0):
        return 0, 0
    a_sign, b_sign = _sign(a), _sign(b)
    if a_sign == 0 or b_sign == 0:
        return ANY
    (a_small, a_large), (b_small, b_large) = _magnitude(a), _magnitude(b)
    small = a_small * b_small
    large = None if a_large is None or b_large is None else a_large * b_large
    if a_sign == b_sign:
        return small, large
    return None if large is None else -large, -small


def _sign(a: Interval) -> int:
    if a[0] is not None and a[0] >= 0:
        return 1
    return -1 if a[1] is not None and a[1] <= 0 else 0


def _magnitude(a: Interval) -> Interval:
    if a[0] is not None and a[0] >= 0:
        return a
    return -a[1], None if a[0] is None else -a[0]
