"""Rewriting rules: constructors that return the simplest polynomial for each non-polynomial operation.

Every constructor takes `Bounds` (plain, or `SymbolicFacts`), which decides side conditions such as
``a <= b``; the rules hold wherever the original is defined (divisors are not 0). No shape value reaches
2**62, so a constant from there on (``INT64_MAX`` as "to the end") never wins a ``min``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from .bounds import Bounds
from .polynomial import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Condition,
    Poly,
    common_monomial,
    divide_by_monomial,
    divide_exact,
    divide_monomial,
)

_UNREACHABLE = 2**62


def floordiv(a: Poly, b: Poly, facts: Bounds) -> Poly:
    """``a // b`` (rounding down)."""
    exact = divide_exact(a, b)
    if exact is not None:
        return exact
    divisor = b.as_constant()
    if divisor is None:
        return _floordiv_symbolic(a, b, facts)
    if divisor < 0:
        return floordiv(-a, Poly.of(-divisor), facts)
    quotient, rest, divisor = _split_quotient(a, divisor)
    if _leads_negative(rest, divisor):
        return quotient - floordiv(-rest + (divisor - 1), Poly.of(divisor), facts)
    low, high = facts.bounds(rest)
    if low is not None and high is not None and low // divisor == high // divisor:
        return quotient + low // divisor
    if not any(rest.terms):
        return quotient + rest.constant // divisor
    return quotient + Poly.atom("floordiv", rest, Poly.of(divisor))


def _split_quotient(a: Poly, divisor: int) -> tuple[Poly, Poly, int]:
    """(q, r, d) with ``a // divisor == q + r // d``: coefficients of r in [0, d), no common factor,
    one nested ``x // c`` merged into ``x // (c*d)``."""
    quotient = a.floordiv_coefficients(divisor)
    rest = a - quotient * divisor
    factor = gcd(divisor, *(c for m, c in rest.terms.items() if m))
    if factor > 1:
        rest, divisor = rest.floordiv_coefficients(factor), divisor // factor
    nested = [item for item in rest.linear_atoms("floordiv") if item[1] == 1]
    if len(nested) != 1 or divisor == 1:
        return quotient, rest, divisor
    inner, inner_divisor = nested[0][0], nested[0][0].args[1].as_constant()
    if inner_divisor is None or inner_divisor <= 0:
        return quotient, rest, divisor
    merged = rest.without(inner) * inner_divisor + inner.args[0]
    more, rest, divisor = _split_quotient(merged, inner_divisor * divisor)
    return quotient + more, rest, divisor


def _leads_negative(rest: Poly, divisor: int) -> bool:
    """Whether ``-x // d`` is the simpler way to write it; it is then kept as ``-((x + d-1) // d)``."""
    lead = rest.sorted_monomials()[0] if rest.terms else ()
    return bool(lead) and 2 * rest.terms[lead] > divisor


def _floordiv_symbolic(a: Poly, b: Poly, facts: Bounds) -> Poly:
    a, b = _cancel_common(a, b)
    if b.as_constant() is not None:
        return floordiv(a, b, facts)
    quotient, rest = _split_symbolic(a, b)
    if facts.nonnegative(rest) and facts.nonnegative(b - rest - 1):
        return quotient
    return quotient + Poly.atom("floordiv", rest, b)


def _cancel_common(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    shared = common_monomial((a, b))
    if shared:
        a, b = divide_by_monomial(a, shared), divide_by_monomial(b, shared)
    factor = gcd(a.content(), b.content())
    if factor > 1:
        a, b = a.floordiv_coefficients(factor), b.floordiv_coefficients(factor)
    return a, b


def _split_symbolic(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """(q, r) with ``a == q*b + r``; terms that a single-term ``b`` divides go to ``q``."""
    if len(b.terms) != 1:
        return ZERO, a
    ((monomial, coefficient),) = b.terms.items()
    quotient = {}
    for term, c in a.terms.items():
        factor = divide_monomial(term, monomial)
        if factor is not None and (share := c // coefficient):
            quotient[factor] = share
    result = Poly(quotient)
    return result, a - result * b


def floormod(a: Poly, b: Poly, facts: Bounds) -> Poly:
    """``a % b`` with the sign of the divisor."""
    if divide_exact(a, b) is not None:
        return ZERO
    divisor = b.as_constant()
    if divisor is None or divisor < 0:
        _, rest = _split_symbolic(a, b)
        if facts.nonnegative(rest) and facts.nonnegative(b - rest - 1):
            return rest
        return Poly.atom("floormod", rest, b)
    rest = a - a.floordiv_coefficients(divisor) * divisor
    factor = gcd(divisor, *rest.terms.values())
    if factor > 1:
        rest, divisor = rest.floordiv_coefficients(factor), divisor // factor
    if divisor == 1:
        return ZERO
    low, high = facts.bounds(rest)
    if low is not None and high is not None and low // divisor == high // divisor:
        return (rest - (low // divisor) * divisor) * factor
    return Poly.atom("floormod", rest, Poly.of(divisor)) * factor


def tidy(poly: Poly, facts: Bounds | None = None) -> Poly:
    """Merge terms of a sum that are parts of one simpler term."""
    if len(poly.terms) < 2:
        return poly
    kinds = {monomial[0].kind for monomial in poly.terms if len(monomial) == 1}
    if "floordiv" in kinds:
        poly = merge_halves(merge_div_mod(poly))
    if facts is not None and ("min" in kinds or "max" in kinds):
        poly = absorb_sum(poly, facts)
    return poly


def absorb_sum(poly: Poly, facts: Bounds) -> Poly:
    """``x - max(a, b) -> min(x - a, x - b)``, where that is shorter: ``n - max(n - 1, 0) -> min(n, 1)``."""
    extrema = [item for item in poly.linear_atoms("min", "max") if abs(item[1]) == 1]
    for atom, k in extrema:
        rest = poly.without(atom)
        merged = [rest + case * k for case in atom.args]
        build = minimum if (atom.kind == "min") == (k > 0) else maximum
        shorter = build(merged, facts)
        if _size(shorter) < _size(poly):
            return tidy(shorter, facts)
    return poly


def _size(poly: Poly) -> int:
    """The number of terms, those below ``min`` and ``max`` included."""
    nested = (arg for atom, _ in poly.linear_atoms("min", "max") for arg in atom.args)
    return len(poly.terms) + sum(_size(arg) for arg in nested)


def merge_div_mod(poly: Poly) -> Poly:
    """``c*(x // c) + x % c -> x``, wherever the two occur side by side in one sum."""
    for mod, k in list(poly.linear_atoms("floormod")):
        x, divisor = mod.args
        constant = divisor.as_constant()
        if constant is None:
            continue
        for div, m in list(poly.linear_atoms("floordiv")):
            if div.args == mod.args and m == k * constant:
                return merge_div_mod(poly.without(mod).without(div) + x * k)
    return poly


def merge_halves(poly: Poly) -> Poly:
    """``x - x // 2 -> (x + 1) // 2``, the one rounding-up division that `floordiv` cannot tell by sign."""
    for half, k in list(poly.linear_atoms("floordiv")):
        x, divisor = half.args
        if divisor.as_constant() != 2 or k >= 0:
            continue
        if all(c == 1 and poly.terms.get(m) == -k for m, c in x.terms.items() if m):
            other = Poly.atom("floordiv", x - 1 if x.constant else x + 1, divisor)
            return merge_halves(poly.without(half) + (x - x.constant) * k + other * -k)
    return poly


def minimum(args: Sequence[Poly], facts: Bounds) -> Poly:
    """``min`` of one or more polynomials."""
    return _extremum("min", args, facts)


def maximum(args: Sequence[Poly], facts: Bounds) -> Poly:
    """``max`` of one or more polynomials."""
    return _extremum("max", args, facts)


def _flatten(kind: str, args: Sequence[Poly]) -> list[Poly]:
    flat: list[Poly] = []
    for arg in args:
        nested = [item for item in arg.linear_atoms(kind) if item[1] == 1]
        if len(nested) == 1:
            inner = nested[0][0]
            rest = arg.without(inner)
            flat.extend(_flatten(kind, [case + rest for case in inner.args]))
        else:
            flat.append(arg)
    return flat


def _extremum(kind: str, args: Sequence[Poly], facts: Bounds) -> Poly:
    flat = list(dict.fromkeys(_flatten(kind, args)))
    if kind == "min" and len(flat) > 1:
        flat = [p for p in flat if (p.as_constant() or 0) < _UNREACHABLE] or flat
    kept: list[Poly] = []
    for index, candidate in enumerate(flat):
        others = kept + flat[index + 1 :]
        sign = 1 if kind == "min" else -1
        if not any(facts.nonnegative((candidate - other) * sign) for other in others):
            kept.append(candidate)
    if len(kept) == 1:
        return kept[0]
    shared = Poly({m: c for m, c in kept[0].terms.items() if all(p.terms.get(m) == c for p in kept[1:])})
    kept = [p - shared for p in kept]
    factor = gcd(*(p.content() for p in kept))
    kept = sorted((p.floordiv_coefficients(factor) for p in kept), key=lambda p: p.order)
    return shared + Poly.atom(kind, *kept) * factor


def join(args: Sequence[Poly], facts: Bounds) -> Poly:
    """The broadcast of dims: the first that is not 1, else 1.

    An idempotent, associative operation with identity 1 in which a repeated dim is absorbed; dims that are
    known to be compatible (equal, or one of them 1) also commute.
    """
    flat: list[Poly] = []
    for arg in args:
        inner = arg.single_atom("join")
        flat.extend(inner.args if inner is not None else [arg])
    kept: list[Poly] = []
    for arg in dict.fromkeys(flat):
        is_one = facts.truth(equals_zero(arg - 1))
        if is_one:
            continue
        kept.append(arg)
        if is_one is False:
            break
    last_decides = kept and facts.truth(equals_zero(kept[-1] - 1)) is False
    if last_decides and all(facts.compatible(arg, kept[-1]) for arg in kept[:-1]):
        return kept[-1]
    if len(kept) < 2:
        return kept[0] if kept else ONE
    if all(facts.compatible(a, b) for i, a in enumerate(kept) for b in kept[i + 1 :]):
        kept.sort(key=lambda p: p.order)
    return Poly.atom("join", *kept)


def select(condition: Condition, a: Poly, b: Poly, facts: Bounds) -> Poly:
    """``a if condition else b``."""
    truth = facts.truth(condition)
    if truth is not None:
        return a if truth else b
    if a == b:
        return a
    if condition.kind == "not":
        return select(condition.args[0], b, a, facts)
    if condition.kind == "eq" and condition.args[0] in (b - 1, ONE - b):
        return join([b, a], facts)
    return Poly.atom("select", condition, a, b)


def equals_zero(poly: Poly) -> Condition:
    """The condition ``poly == 0``."""
    constant = poly.as_constant()
    if constant is not None:
        return TRUE if constant == 0 else FALSE
    factor = gcd(*(c for m, c in poly.terms.items() if m))
    if poly.constant % factor:
        return FALSE
    lead = poly.terms[poly.sorted_monomials()[0]]
    return Condition("eq", (tidy(poly.floordiv_coefficients(factor if lead > 0 else -factor)),))


def at_least_zero(poly: Poly) -> Condition:
    """The condition ``poly >= 0``."""
    constant = poly.as_constant()
    if constant is not None:
        return TRUE if constant >= 0 else FALSE
    factor = gcd(*(c for m, c in poly.terms.items() if m))
    return Condition("ge", (tidy(poly.floordiv_coefficients(factor)),))


def negation(condition: Condition) -> Condition:
    if condition.kind in ("true", "false"):
        return FALSE if condition.kind == "true" else TRUE
    if condition.kind == "not":
        return condition.args[0]
    if condition.kind == "ge":
        return at_least_zero(-condition.args[0] - 1)
    if condition.kind in ("and", "or"):
        dual = "or" if condition.kind == "and" else "and"
        return connect(dual, [negation(arg) for arg in condition.args])
    return Condition("not", (condition,))


def connect(kind: str, args: Sequence[Condition]) -> Condition:
    """``and`` / ``or`` of conditions, flattened."""
    neutral, absorbing = (TRUE, FALSE) if kind == "and" else (FALSE, TRUE)
    flat: dict[Condition, None] = {}
    for arg in args:
        for part in arg.args if arg.kind == kind else (arg,):
            if part == absorbing:
                return absorbing
            if part != neutral:
                flat[part] = None
    if not flat:
        return neutral
    return next(iter(flat)) if len(flat) == 1 else Condition(kind, tuple(flat))
