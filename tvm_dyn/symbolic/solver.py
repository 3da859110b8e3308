"""Statements into solved facts: an equation is solved for a variable, the rest kept in canonical form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations
from typing import Any

from . import normalize, rules
from .bounds import intersect
from .knowledge import Knowledge
from .modular import Residue, meet, solve
from .polynomial import Condition, Leaf, Monomial, Poly, nested_leaves


class Solver(Knowledge):
    """`Knowledge` that takes in normalised conditions."""

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
            self.assume_compatible_polys(*min(readings)[3:])

    def assume_compatible_polys(self, a: Poly, b: Poly) -> None:
        """State that two dims broadcast (canonical polynomials)."""
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
        if operation is not None and self._equate_part(poly):
            return
        solved = self._isolate(poly) if operation is None else None
        if solved is not None:
            self.eliminate(*solved)
            return
        lead = operation or poly.sorted_monomials()[0]
        coefficient = poly.terms[lead]
        if abs(coefficient) == 1 and not self._occurs(lead, poly):
            rest = Poly({m: c for m, c in poly.terms.items() if m != lead})
            self.reductions[lead] = rest * -coefficient
            self._changed()
            self._restate(leaf for atom in lead for leaf in nested_leaves(atom))
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
            self.refine_residue(leaf, found)
        return True

    def _equate_part(self, poly: Poly) -> bool:
        """Use ``x // d == y``, where ``x`` is ``r`` modulo ``d``, as ``x == d*y + r``."""
        scaled = normalize.scale(poly, self.residues, self) if self.residues else poly
        for atom, k in scaled.linear_atoms("part"):
            leaf, divisor, remainder = atom.args
            rest = scaled.without(atom)
            if abs(k) == 1 and leaf not in set(nested_leaves(rest)):
                self.eliminate(leaf, normalize.unscale(rest * -k * divisor + remainder, self))
                return True
        return False

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

    def eliminate(self, leaf: Leaf, value: Poly) -> None:
        """Replace ``leaf`` by ``value`` everywhere and hand what was known of it on to ``value``."""
        low, high = self.leaf_range(leaf)
        residue = self.residues.pop(leaf, (1, 0))
        self.ranges.pop(leaf, None)
        self.equations[leaf] = value
        self._changed()
        for other, old in list(self.equations.items()):
            if other != leaf:
                self.equations[other] = self._rewrite(old)
        self._restate([leaf])
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
                self.refine_residue(leaf, found)
        elif residue[0] > 1:
            remainder = rules.floormod(self.canonical_poly(value), Poly.of(residue[0]), self)
            self.assume_condition(rules.equals_zero(remainder - residue[1]))

    def _restate(self, touched: Iterable[Leaf]) -> None:
        """Bring the unsolved facts that hold all of ``touched`` into canonical form after a new equation."""
        wanted = set(touched)

        def stale(poly: Poly) -> bool:
            return wanted <= set(nested_leaves(poly)) and self.canonical_poly(poly) != poly

        pending = [rules.equals_zero(p) for p in self._take(self.zeros, stale)]
        pending += [rules.at_least_zero(p) for p in self._take(self.nonnegatives, stale)]
        pending += [rules.negation(rules.equals_zero(p)) for p in self._take(self.nonzeros, stale)]
        for lead, rest in list(self.reductions.items()):
            others = {m: p for m, p in self.reductions.items() if m != lead}
            equation = Poly({lead: 1}) - rest
            if wanted <= set(nested_leaves(equation)):
                self.reductions = others
                self._changed()
                if self.canonical_poly(equation) != equation:
                    pending.append(rules.equals_zero(equation))
                else:
                    self.reductions = {**others, lead: rest}
        pairs = self._take(self.compatibles, lambda pair: any(stale(side) for side in pair))
        self._changed()
        for condition in pending:
            self.assume_condition(condition)
        for pair in pairs:
            self.assume_compatible_polys(*(self.canonical_poly(side) for side in pair))

    @staticmethod
    def _take(facts: list | set, wanted: Callable[[Any], bool]) -> list:
        """Remove the wanted facts from a collection and return them."""
        taken = [fact for fact in facts if wanted(fact)]
        for fact in taken:
            facts.remove(fact)
        return taken

    def _at_least(self, poly: Poly) -> None:
        """Use ``poly >= 0`` (canonical)."""
        leaf, k, constant = _affine(poly)
        if leaf is not None:
            bound = (-(constant // k), None) if k > 0 else (None, constant // -k)
            self.ranges[leaf] = intersect(self.leaf_range(leaf), bound)
            self._changed()
            self.settle(leaf)
        elif -poly in self.nonnegatives:
            self.assume_condition(rules.equals_zero(poly))
        elif poly not in self.nonnegatives and not self.nonnegative(poly):
            self.nonnegatives.append(poly)
            self._changed()

    def refine_residue(self, leaf: Leaf, residue: Residue) -> None:
        """State the residue class of a variable."""
        if leaf in self.equations:
            self._hand_on_residue(self.equations[leaf], residue)
            return
        found = meet(self.residues.get(leaf, (1, 0)), residue)
        if found is not None and found[0] > 1:
            self.residues[leaf] = found
        elif found is not None and found[0] == 0:
            self._equate(Poly.var(leaf.node) - found[1])
        self._changed()
        self.settle(leaf)

    def settle(self, leaf: Leaf) -> None:
        """A declared equal variable hands its facts on; a range of one value becomes an equation."""
        value = self.equations.get(leaf)
        low, high = self.leaf_range(leaf)
        if value is not None and leaf in self.ranges:
            del self.ranges[leaf]
            for poly in ([] if low is None else [value - low]) + ([] if high is None else [-value + high]):
                self.assume_condition(rules.at_least_zero(poly))
        elif value is None and low is not None and low == high:
            self.eliminate(leaf, Poly.of(low))


def _affine(poly: Poly) -> tuple[Leaf | None, int, int]:
    """(variable, k, c) of ``k*variable + c``; the variable is None for any other polynomial."""
    parts = [(m, c) for m, c in poly.terms.items() if m]
    if len(parts) == 1 and len(parts[0][0]) == 1 and parts[0][0][0].kind == "var":
        return parts[0][0][0].args[0], parts[0][1], poly.constant
    return None, 0, 0
