"""What is known of symbolic dims, and what follows from it: the decision procedure.

Facts are kept solved: every variable has an interval and a residue class, equations are triangular
substitutions (or rewrite a monomial where no variable can be isolated), and what remains are polynomials
known to be non-negative or non-zero. A claim is made only when it follows, and only when no sampled
assignment that satisfies the facts contradicts it.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, sym

from . import evaluation, normalize, rules
from .algebra import from_poly
from .bounds import Interval, intersect
from .convert import Number, Reader, condition_to_expr, int_of, poly_to_expr, unwrap
from .modular import Residue, residue_of
from .polynomial import FALSE, TRUE, Condition, Leaf, Poly, divide_exact, nested_leaves
from .solver import Solver
from .splitting import case_split

_SPLITS = 2


class SymbolicFacts(Solver):
    """Ranges, divisors, equations and inequalities of variables, and proofs from them.

    A variable that was never declared is taken to be at least ``default_min`` (a dim); pass None where
    undeclared variables may be negative.
    """

    # ---- stating facts

    def declare(
        self, var: ir.Var, dim: Any = None, *, min: int | None = 0, max: int | None = None, divisor: int = 1
    ) -> None:
        """State the range and the divisor of ``var``, from keywords or from an object with such attributes.

        Declaration order decides which of two equal variables stands for both: the earlier one.
        """
        if dim is not None:
            min, max, divisor = dim.min, dim.max, dim.divisor
        leaf = Leaf(var)
        self.order.setdefault(leaf, len(self.order))
        known = self.ranges.get(leaf)
        self.ranges[leaf] = (min, max) if known is None else intersect(known, (min, max))
        self._changed()
        if divisor > 1:
            self.refine_residue(leaf, (divisor, 0))
        self.settle(leaf)

    def define(self, var: ir.Var, value: Number) -> None:
        """State that ``var`` stands for ``value`` (which does not contain it) and is to be replaced by it."""
        leaf, poly = Leaf(var), self._read(value)
        if leaf in self.equations:
            self.assume_condition(rules.equals_zero(self.equations[leaf] - poly))
        else:
            self.eliminate(leaf, poly)

    def assume(self, condition: object) -> None:
        """State that a boolean expression holds; what the procedure cannot use is dropped."""
        self.assume_condition(Reader(self).condition(condition))

    def assume_compatible(self, a: Number, b: Number) -> None:
        """State that two dims broadcast: they are equal, or one of them is 1."""
        self.assume_compatible_polys(*(self._read(side) for side in (a, b)))

    def _read(self, expr: Number) -> Poly:
        return self.canonical_poly(Reader(self).poly(unwrap(expr)))

    def canonical(self, expr: Number) -> Number:
        """The simplest expression known to be equal: an int when constant."""
        value = int_of(expr)
        return value if value is not None else from_poly(self._read(expr))

    # ---- questions

    def bound(self, expr: Number) -> Interval:
        """(lower, upper) of an expression; None where no bound is known."""
        return self.bounds(self._read(expr))

    def modular(self, expr: Number) -> Residue:
        """(divisor, remainder): the value is ``remainder`` modulo ``divisor`` (0 of a constant)."""
        return residue_of(self._read(expr), self._residue)

    def prove(self, condition: object) -> bool:
        """True only if the condition follows from the facts; False says nothing."""
        condition = unwrap(condition)
        value = int_of(condition)
        if value is not None:
            return bool(value)
        return self._proved(Reader(self).condition(condition))

    def prove_equal(self, a: Number, b: Number) -> bool:
        """True only if ``a == b`` follows from the facts."""
        x, y = int_of(a), int_of(b)
        if x is not None and y is not None:
            return x == y
        if a is b or (isinstance(a, ir.Var) and isinstance(b, ir.Var) and a.same_as(b)):
            return True
        return self._proved(rules.equals_zero(self._read(a) - self._read(b)))

    def known_unequal(self, a: Number, b: Number) -> bool:
        """True only if ``a != b`` follows from the facts."""
        return self._proved(rules.negation(rules.equals_zero(self._read(a) - self._read(b))))

    def _proved(self, condition: Condition) -> bool:
        key = ("proved", condition)
        cached = self._cache.get(key)
        if cached is None:
            canonical = self.canonical_condition(condition)
            cached = canonical == TRUE or (canonical != FALSE and self._search(canonical))
            self._cache[key] = cached
        return cached

    def _search(self, condition: Condition) -> bool:
        if condition.kind == "and":
            return all(self._search(part) for part in condition.args)
        expr = condition_to_expr(condition)
        if not evaluation.agree(expr, 1, self.samples(_variables(condition))):
            return False
        return self.derive(condition, _SPLITS) or self._analyzer(condition).can_prove(expr)

    def derive(self, condition: Condition, splits: int) -> bool:
        """Whether the canonical condition follows, by at most ``splits`` nested case distinctions."""
        if self.truth(condition) is True:
            return True
        if condition.kind == "or":
            return any(self.derive(part, 0) for part in condition.args)
        if condition.kind in ("eq", "ge"):
            strong = normalize.decision_form(self._scaled(condition.args[0]), self)
            multiples = (divide_exact(strong, zero) is not None for zero in self.zeros)
            if condition.kind == "eq" and (not strong.terms or any(multiples)):
                return True
            if condition.kind == "ge" and self.nonnegative(strong):
                return True
        if condition.kind == "not" and condition.args[0].kind == "eq":
            strong = normalize.decision_form(self._scaled(condition.args[0].args[0]), self)
            if self._zero_truth(strong) is False:
                return True
        return splits > 0 and case_split(self, condition, splits)

    def _scaled(self, poly: Poly) -> Poly:
        return normalize.scale(poly, self.residues, self) if self.residues else poly

    def _analyzer(self, condition: Condition) -> sym.Analyzer:
        """TVM's analyzer, told the intervals of the variables of a condition."""
        analyzer = sym.Analyzer()
        for var in _variables(condition):
            low, high = self.leaf_range(Leaf(var))
            low = sym.ConstIntBound.NEG_INF if low is None else low
            high = sym.ConstIntBound.POS_INF if high is None else high
            analyzer.update(var, sym.ConstIntBound(low, high))
        return analyzer

    def equalities(self) -> dict[ir.Var, Number]:
        """Variables that stand for something else: variable -> canonical value."""
        return {leaf.node: from_poly(value) for leaf, value in self.equations.items()}

    def inequalities(self) -> list[ir.Expr]:
        """Expressions known to be non-negative beyond the ranges of variables."""
        return [poly_to_expr(poly) for poly in self.nonnegatives]


def _variables(condition: Condition) -> list[ir.Var]:
    nodes = (leaf.node for leaf in nested_leaves(condition))
    return list(dict.fromkeys(node for node in nodes if isinstance(node, ir.Var)))
