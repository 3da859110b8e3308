"""What is known of symbolic dims, and what follows from it: the decision procedure.

Facts are kept solved: every variable has an interval and a residue class, equations are triangular
substitutions (or rewrite a monomial where no variable can be isolated), and what remains are polynomials
known to be non-negative or non-zero. A claim is made only when it follows, and only when no sampled
assignment that satisfies the facts contradicts it.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

from tvm import ir, sym

from . import evaluation, normalize, rules
from .algebra import from_poly
from .bounds import Interval, intersect
from .convert import Number, Reader, condition_to_expr, int_of, poly_to_expr, unwrap
from .knowledge import Knowledge
from .modular import Residue, meet, residue_of, solve
from .polynomial import FALSE, TRUE, Condition, Leaf, Monomial, Poly, divide_exact, nested_leaves
from .splitting import case_split

_SPLITS = 3


class SymbolicFacts(Knowledge):
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
            self._refine_residue(leaf, (divisor, 0))
        self._settle(leaf)

    def define(self, var: ir.Var, value: Number) -> None:
        """State that ``var`` stands for ``value`` (which does not contain it) and is to be replaced by it."""
        leaf, poly = Leaf(var), self._read(value)
        if leaf in self.equations:
            self.assume_condition(rules.equals_zero(self.equations[leaf] - poly))
        else:
            self._eliminate(leaf, poly)

    def assume(self, condition: object) -> None:
        """State that a boolean expression holds; what the procedure cannot use is dropped."""
        self.assume_condition(Reader(self).condition(condition))

    def assume_compatible(self, a: Number, b: Number) -> None:
        """State that two dims broadcast: they are equal, or one of them is 1."""
        self._assume_compatible(*(self._read(side) for side in (a, b)))

    def assume_condition(self, condition: Condition) -> None:
        """`assume` of a normalised condition."""
        self._assume(self.canonical_condition(condition))

    def _assume(self, condition: Condition) -> None:
        if condition.kind == "and":
            for part in condition.args:
                self.assume_condition(part)
        elif condition.kind == "eq":
            self._equate(condition.args[0])
        elif condition.kind == "ge":
            self._at_least(condition.args[0])
        elif condition.kind == "not" and condition.args[0].kind == "eq":
            self.nonzeros.add(condition.args[0].args[0])
            self._changed()
        elif condition.kind == "or":
            self._assume_either(condition.args)
        elif condition.kind in ("leaf", "not"):
            positive = condition if condition.kind == "leaf" else condition.args[0]
            self.leaf_truths[positive] = condition.kind == "leaf"
            self._changed()

    def _assume_either(self, parts: tuple[Condition, ...]) -> None:
        """Use ``a == b or a == 1 or b == 1``, the condition of a broadcast (or two of the three)."""
        if len(parts) > 3 or any(part.kind != "eq" for part in parts):
            return
        readings = []
        for is_one, equal in permutations(parts, 2):
            x = is_one.args[0] + 1
            for y in (x - equal.args[0], x + equal.args[0]):
                if all(part in (is_one, equal, rules.equals_zero(y - 1)) for part in parts):
                    readings.append((len(x.terms) + len(y.terms), abs(x.constant), len(readings), x, y))
        if readings:
            self._assume_compatible(*min(readings)[3:])

    def _assume_compatible(self, a: Poly, b: Poly) -> None:
        if a == b or a.as_constant() == 1 or b.as_constant() == 1:
            return
        for x, y in ((a, b), (b, a)):
            if all(self.truth(rules.equals_zero(side - 1)) is False for side in (x, y)):
                self._assume(rules.equals_zero(x - y))
                return
        self.compatibles.add(frozenset((a, b)))
        self._changed()

    def _equate(self, poly: Poly) -> None:
        """Use ``poly == 0`` (canonical): isolate a variable, else a monomial, else keep it as it is."""
        constant = poly.as_constant()
        if constant is not None or self._equate_remainder(poly) or self._equate_extremum(poly):
            return
        operation = self._only_operation(poly)
        solved = self._isolate(poly) if operation is None else None
        if solved is not None:
            self._eliminate(*solved)
            return
        lead = operation or poly.sorted_monomials()[0]
        coefficient = poly.terms[lead]
        if abs(coefficient) == 1 and not self._occurs(lead, poly):
            rest = Poly({m: c for m, c in poly.terms.items() if m != lead})
            self.reductions[lead] = rest * -coefficient
        else:
            self.zeros.append(poly)
        self._changed()

    @staticmethod
    def _only_operation(poly: Poly) -> Monomial | None:
        """The one term of ``poly`` that is not a variable or a constant, where it can be isolated.

        ``n == (b*s) // 8`` is used to write ``n`` for the quotient, not the quotient for ``n``.
        """
        operations = [m for m in poly.terms if len(m) > 1 or (m and m[0].kind != "var")]
        if len(operations) != 1 or len(operations[0]) > 1 or abs(poly.terms[operations[0]]) != 1:
            return None
        return operations[0]

    def _equate_remainder(self, poly: Poly) -> bool:
        """Use ``x % d == r`` or ``x - d*(x // d) == r`` as the residue class of a variable."""
        for quotient, k in list(poly.linear_atoms("floordiv")):
            x, divisor = quotient.args
            modulus = divisor.as_constant()
            if modulus and k % modulus == 0:
                poly = poly.without(quotient) + (x - Poly.atom("floormod", x, divisor)) * (k // modulus)
        if poly.as_constant() is not None:
            return False
        ((monomial, scale),) = [(m, c) for m, c in poly.terms.items() if m][:1]
        if len(monomial) != 1 or monomial[0].kind != "floormod":
            return False
        if poly.without(monomial[0]).as_constant() is None:
            return False
        x, divisor = monomial[0].args
        leaf, k, constant = _affine(x)
        modulus = divisor.as_constant()
        if leaf is None or not modulus or poly.constant % scale:
            return False
        found = solve(k, constant, (modulus, -poly.constant // scale))
        if found is not None:
            self._refine_residue(leaf, found)
        return True

    def _equate_extremum(self, poly: Poly) -> bool:
        """Use ``min(x, y) == x`` as ``x <= y``, and likewise for max."""
        for atom, k in poly.linear_atoms("min", "max"):
            picked = poly.without(atom) * -k
            if abs(k) == 1 and picked in atom.args:
                for other in atom.args:
                    gap = other - picked if atom.kind == "min" else picked - other
                    self.assume_condition(rules.at_least_zero(gap))
                return True
        return False

    def _isolate(self, poly: Poly) -> tuple[Leaf, Poly] | None:
        """(variable, value) for the youngest variable that occurs once, alone and with coefficient +-1."""
        best = None
        for atom, coefficient in poly.linear_atoms("var"):
            leaf = atom.args[0]
            if abs(coefficient) != 1 or any(leaf == other for other in nested_leaves(poly.without(atom))):
                continue
            if best is None or self._age(leaf) > self._age(best[0]):
                best = leaf, poly.without(atom) * -coefficient
        return best

    def _age(self, leaf: Leaf) -> int:
        return self.order.setdefault(leaf, len(self.order))

    @staticmethod
    def _occurs(lead: Monomial, poly: Poly) -> bool:
        """Whether rewriting ``lead`` by the rest of ``poly`` could bring ``lead`` back below an atom."""
        others = [atom for atom in poly.atoms() if atom.kind != "var" and atom not in lead]
        below = {leaf for atom in others for leaf in nested_leaves(atom)}
        return any(leaf in below for atom in lead for leaf in nested_leaves(atom))

    def _eliminate(self, leaf: Leaf, value: Poly) -> None:
        """Replace ``leaf`` by ``value`` everywhere and hand what was known of it on to ``value``."""
        low, high = self.leaf_range(leaf)
        residue = self.residues.pop(leaf, (1, 0))
        self.ranges.pop(leaf, None)
        self.equations[leaf] = value
        self._changed()
        for other, old in list(self.equations.items()):
            if other != leaf:
                self.equations[other] = self._rewrite(old)
        self._restate()
        if low is not None:
            self.assume_condition(rules.at_least_zero(value - low))
        if high is not None:
            self.assume_condition(rules.at_least_zero(-value + high))
        self._hand_on_residue(value, residue)

    def _hand_on_residue(self, value: Poly, residue: Residue) -> None:
        leaf, k, constant = _affine(value)
        if leaf is not None:
            found = solve(k, constant, residue)
            if found is not None:
                self._refine_residue(leaf, found)
        elif residue[0] > 1:
            remainder = rules.floormod(self.canonical_poly(value), Poly.of(residue[0]), self)
            self.assume_condition(rules.equals_zero(remainder - residue[1]))

    def _restate(self) -> None:
        """Bring the unsolved facts into canonical form again after a new equation."""
        pending = [rules.equals_zero(p) for p in self.zeros]
        pending += [rules.equals_zero(Poly({m: 1}) - p) for m, p in self.reductions.items()]
        pending += [rules.at_least_zero(p) for p in self.nonnegatives]
        pending += [rules.negation(rules.equals_zero(p)) for p in self.nonzeros]
        pairs = [tuple(pair) for pair in self.compatibles]
        self.zeros, self.reductions, self.nonnegatives = [], {}, []
        self.nonzeros, self.compatibles = set(), set()
        self._changed()
        for condition in pending:
            self._assume(self.canonical_condition(condition))
        for a, b in pairs:
            self._assume_compatible(self.canonical_poly(a), self.canonical_poly(b))

    def _at_least(self, poly: Poly) -> None:
        """Use ``poly >= 0`` (canonical)."""
        leaf, k, constant = _affine(poly)
        if leaf is not None:
            bound = (-(constant // k), None) if k > 0 else (None, constant // -k)
            self.ranges[leaf] = intersect(self.leaf_range(leaf), bound)
            self._changed()
            self._settle(leaf)
        elif -poly in self.nonnegatives:
            self.assume_condition(rules.equals_zero(poly))
        elif poly not in self.nonnegatives and not self.nonnegative(poly):
            self.nonnegatives.append(poly)
            self._changed()

    def _refine_residue(self, leaf: Leaf, residue: Residue) -> None:
        if leaf in self.equations:
            self._hand_on_residue(self.equations[leaf], residue)
            return
        found = meet(self.residues.get(leaf, (1, 0)), residue)
        if found is not None and found[0] > 1:
            self.residues[leaf] = found
        elif found is not None and found[0] == 0:
            self._equate(Poly.var(leaf.node) - found[1])
        self._changed()
        self._settle(leaf)

    def _settle(self, leaf: Leaf) -> None:
        """A declared equal variable hands its facts on; a range of one value becomes an equation."""
        value = self.equations.get(leaf)
        low, high = self.leaf_range(leaf)
        if value is not None and leaf in self.ranges:
            del self.ranges[leaf]
            for poly in ([] if low is None else [value - low]) + ([] if high is None else [-value + high]):
                self.assume_condition(rules.at_least_zero(poly))
        elif value is None and low is not None and low == high:
            self._eliminate(leaf, Poly.of(low))

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


def _affine(poly: Poly) -> tuple[Leaf | None, int, int]:
    """(variable, k, c) of ``k*variable + c``; the variable is None for any other polynomial."""
    parts = [(m, c) for m, c in poly.terms.items() if m]
    if len(parts) == 1 and len(parts[0][0]) == 1 and parts[0][0][0].kind == "var":
        return parts[0][0][0].args[0], parts[0][1], poly.constant
    return None, 0, 0

