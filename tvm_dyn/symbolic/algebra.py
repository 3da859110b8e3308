"""Algebra of symbolic shape expressions: simplify, substitute, divide, evaluate, print.

Expressions are TVM scalars (`tvm.ir.Expr`, int64) or Python ints; values are mathematical integers that stay
below 2**62. ``facts`` arguments are optional `tvm_dyn.symbolic.facts.SymbolicFacts`; without them nothing is
assumed of a variable, not even that it is non-negative.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import tvm_ffi
from tvm import ir

from . import convert, evaluation, polynomial, rules, text
from .bounds import Bounds
from .convert import Number, Reader, int_of, unwrap
from .polynomial import Poly

if TYPE_CHECKING:
    from .facts import SymbolicFacts

_log = logging.getLogger(__name__)


def reader(facts: Bounds | None) -> Reader:
    """A reader under ``facts``; under no facts at all when None (a fresh one: nothing is kept alive)."""
    return Reader(facts if facts is not None else Bounds())


def from_poly(poly: Poly) -> Number:
    """A Python int of a constant, else the int64 expression."""
    constant = poly.as_constant()
    return constant if constant is not None else convert.poly_to_expr(poly)


def simplify(expr: Number, facts: SymbolicFacts | None = None) -> Number:
    """The simplest equal expression known: an int when constant, else a canonical int64 expression.

    The result is compared with ``expr`` on sampled values; should they ever differ, that is reported as an
    error of the algebra in the log and ``expr`` is returned as it came.
    """
    value = int_of(expr)
    if value is not None:
        return value
    assert isinstance(expr, ir.Expr)
    if isinstance(expr, ir.Var) and (facts is None or not facts.rewrites(expr)):
        return expr
    if facts is None:
        return _simplified(expr, None)
    return facts.memo(("simplified", expr), lambda: _simplified(expr, facts))


def _simplified(expr: ir.Expr, facts: SymbolicFacts | None) -> Number:
    poly = reader(facts).poly(unwrap(expr))
    if facts is not None:
        poly = facts.canonical_poly(poly)
    result = from_poly(poly)
    if not check_on_samples(expr, result, facts):
        _log.error("wrong simplification discarded: %s -> %s", expr, result)
        return expr
    return result


def substitute(expr: Number, values: Mapping[ir.Var, Number]) -> ir.Expr:
    """``expr`` with every variable of ``values`` replaced (at once, not one after the other)."""
    if isinstance(expr, int):
        return convert.int64(expr)

    def replace(var: ir.Var) -> ir.Expr:
        new = values.get(var)
        return var if new is None else convert.int64(new) if isinstance(new, int) else new

    return tvm_ffi.structural_map(expr, (ir.Var, replace))


def evaluate(expr: Number, values: Mapping[ir.Var, int]) -> int:
    """The value of ``expr``; KeyError for a missing variable, ArithmeticError for a division by zero."""
    return evaluation.evaluate(expr, values)


def free_vars(expr: Number) -> list[ir.Var]:
    """The variables of ``expr``, each once, in the order met."""
    found: dict[ir.Var, None] = {}
    if isinstance(expr, ir.Var):
        return [expr]
    if not isinstance(expr, int):
        tvm_ffi.structural_walk(expr, (ir.Var, lambda var: found.setdefault(var)))
    return list(found)


def as_int(expr: Number) -> int | None:
    """The value of ``expr`` if it is constant, else None."""
    value = int_of(expr)
    if value is not None or isinstance(expr, ir.Var):
        return value
    return reader(None).poly(expr).as_constant()


def divide_exact(a: Number, b: Number, facts: SymbolicFacts | None = None) -> Number | None:
    """``q`` with ``a == q * b`` wherever ``b`` is not 0, or None when no such expression is found."""
    read = reader(facts)
    dividend, divisor = read.poly(a), read.poly(b)
    if facts is not None:
        dividend, divisor = facts.canonical_poly(dividend), facts.canonical_poly(divisor)
    quotient = polynomial.divide_exact(dividend, divisor)
    return None if quotient is None else from_poly(quotient)


def broadcast_dim(a: Number, b: Number, facts: SymbolicFacts | None = None) -> Number:
    """The extent of two broadcast dims, ``b if a == 1 else a``.

    Right whenever the two are compatible (equal, or one is 1), which the caller checks or proves. The join is
    idempotent, associative and absorbing, so a dim joined again changes nothing; it commutes when
    ``facts`` know that the dims are compatible.
    """
    read = reader(facts)
    return from_poly(rules.join([read.poly(a), read.poly(b)], read.facts))


def to_text(expr: Number, facts: SymbolicFacts | None = None) -> str:
    """Python source of the simplified expression over the names of its variables.

    What the algebra does not read (division that rounds to zero, unless ``facts`` tell that operands are
    non-negative) is printed as TVM prints it.
    """
    return text.poly_to_text(reader(facts).poly(unwrap(expr)))


def check_on_samples(lhs: object, rhs: object, facts: SymbolicFacts | None = None) -> bool:
    """Whether ``lhs`` and ``rhs`` agree on sampled values that satisfy ``facts``."""
    variables = list(dict.fromkeys([*free_vars(unwrap(lhs)), *free_vars(unwrap(rhs))]))
    samples = evaluation.plain_samples(variables, 1) if facts is None else facts.samples(variables)
    return evaluation.agree(lhs, rhs, samples)
