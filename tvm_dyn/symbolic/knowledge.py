"""The state of what is known of symbolic dims: the oracle of the rewriting rules, and canonical forms.

`SymbolicFacts` fills it. Every entry is a fact; entries are kept solved, so that questions are cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from tvm import ir

from . import normalize, rules
from .bounds import Bounds, Interval
from .modular import Residue, residue_of
from .polynomial import FALSE, TRUE, Atom, Condition, Leaf, Monomial, Poly
from .sampling import draw_samples

_T = TypeVar("_T", bound="Knowledge")


class Knowledge(Bounds):
    """Solved facts.

    ``ranges`` and ``residues`` of variables; ``equations``: variable -> what stands for it; ``reductions``:
    monomial -> smaller polynomial; ``zeros``, ``nonnegatives``, ``nonzeros``: polynomials known to be so;
    ``compatibles``: pairs of dims that broadcast; ``order``: variables by age.
    """

    def __init__(self, default_min: int | None = 0):
        super().__init__()
        self._default: Interval = (default_min, None)
        self.order: dict[Leaf, int] = {}
        self.ranges: dict[Leaf, Interval] = {}
        self.residues: dict[Leaf, Residue] = {}
        self.equations: dict[Leaf, Poly] = {}
        self.reductions: dict[Monomial, Poly] = {}
        self.zeros: list[Poly] = []
        self.nonnegatives: list[Poly] = []
        self.nonzeros: set[Poly] = set()
        self.compatibles: set[frozenset[Poly]] = set()
        self.leaf_truths: dict[Condition, bool] = {}
        self._cache: dict[Any, Any] = {}

    def clone(self: _T) -> _T:
        """An independent copy."""
        other = type(self)(self._default[0])
        for name in ("order", "ranges", "residues", "equations", "reductions", "zeros", "nonnegatives"):
            setattr(other, name, getattr(self, name).copy())
        for name in ("nonzeros", "compatibles", "leaf_truths"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def _changed(self) -> None:
        self._cache.clear()
        self._bound_cache.clear()

    # ---- the oracle of the rewriting rules

    def leaf_range(self, leaf: Leaf) -> Interval:
        if not isinstance(leaf.node, ir.Var):
            return None, None
        low, high = self.ranges.get(leaf, self._default)
        divisor, remainder = self.residues.get(leaf, (1, 0))
        if divisor > 1:
            low = None if low is None else low + (remainder - low) % divisor
            high = None if high is None else high - (high - remainder) % divisor
        return low, high

    def atom_bounds(self, atom: Atom, depth: int = 0) -> Interval:
        if atom.kind == "part":
            leaf, divisor, remainder = atom.args
            low, high = self.leaf_range(leaf)
            return tuple(None if x is None else (x - remainder) // divisor for x in (low, high))  # type: ignore
        return super().atom_bounds(atom, depth)

    def nonnegative(self, poly: Poly) -> bool:
        """Whether ``poly >= 0`` by its interval, or less a multiple of a polynomial known to be >= 0."""
        if super().nonnegative(poly):
            return True
        for known in self.nonnegatives:
            for monomial in known.terms:
                k = poly.terms.get(monomial, 0) // known.terms[monomial] if monomial else 0
                if k > 0 and super().nonnegative(poly - known * k):
                    return True
        return False

    def compatible(self, a: Poly, b: Poly) -> bool:
        if a == b or a.as_constant() == 1 or b.as_constant() == 1:
            return True
        return frozenset((a, b)) in self.compatibles

    def truth(self, condition: Condition) -> bool | None:
        kind = condition.kind
        if kind == "ge":
            poly = condition.args[0]
            return True if self.nonnegative(poly) else False if self.nonnegative(-poly - 1) else None
        if kind == "not":
            inner = self.truth(condition.args[0])
            return None if inner is None else not inner
        if kind in ("and", "or"):
            truths = [self.truth(part) for part in condition.args]
            deciding = kind == "or"
            return deciding if deciding in truths else None if None in truths else not deciding
        return self.leaf_truths[condition] if condition in self.leaf_truths else super().truth(condition)

    def _zero_truth(self, poly: Poly) -> bool | None:
        if not poly.terms:
            return True
        remainder = residue_of(poly, self._residue)[1]
        if remainder or (self.nonzeros and rules.equals_zero(poly).args[0] in self.nonzeros):
            return False
        if self.nonnegatives and (self.nonnegative(poly - 1) or self.nonnegative(-poly - 1)):
            return False
        return super()._zero_truth(poly)

    def _residue(self, leaf: Leaf) -> Residue:
        return self.residues.get(leaf, (1, 0))

    # ---- canonical forms

    def rewrites(self, var: ir.Var) -> bool:
        """Whether ``var`` is known to equal something simpler."""
        return Leaf(var) in self.equations

    def canonical_poly(self, poly: Poly) -> Poly:
        """``poly`` with equal variables replaced by their representative, and simplified."""
        if not self.equations and not self.reductions and not self.residues:
            return poly
        cached = self._cache.get(poly)
        if cached is None:
            cached = self._cache[poly] = self._rewrite(poly)
        return cached

    def _rewrite(self, poly: Poly) -> Poly:
        reduce = partial(normalize.reduce_monomials, reductions=self.reductions) if self.reductions else None
        poly = normalize.substitution(self.equations, self, reduce).poly(poly)
        if self.residues and any(atom.kind != "var" for atom in poly.atoms()):
            poly = normalize.unscale(normalize.scale(poly, self.residues, self), self)
        return poly

    def canonical_condition(self, condition: Condition) -> Condition:
        """`canonical_poly` below a condition, decided where it can be."""
        if condition.kind in ("eq", "ge"):
            poly = self.canonical_poly(condition.args[0])
            condition = rules.equals_zero(poly) if condition.kind == "eq" else rules.at_least_zero(poly)
        elif condition.kind == "not":
            condition = rules.negation(self.canonical_condition(condition.args[0]))
        elif condition.kind in ("and", "or"):
            condition = rules.connect(condition.kind, [self.canonical_condition(c) for c in condition.args])
        truth = self.truth(condition)
        return condition if truth is None else TRUE if truth else FALSE

    def samples(self, variables: Iterable[ir.Var]) -> list[dict[ir.Var, int]]:
        """A few assignments that satisfy the facts, of ``variables`` and all they are related to."""
        key = ("samples", frozenset(Leaf(var) for var in variables))
        if key not in self._cache:
            self._cache[key] = draw_samples(self, key[1])
        return self._cache[key]

    def memo(self, key: Any, compute: Callable[[], Any]) -> Any:
        """``compute()``, remembered under ``key`` until the facts change."""
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]
