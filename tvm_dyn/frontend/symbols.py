"""The symbols of a model: what its dims are called, what is known of them, which of them turned out to be one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

from tvm_dyn.dims import Dim
from tvm_dyn.errors import InvalidDimError, ModelImportError
from tvm_dyn.symbolic import free_vars, simplify, substitute, to_text

_ANONYMOUS = {"", "?", "-1", "None"}


@dataclass
class Symbol:
    """One canonical symbol: its variable, the user's facts, the names that the model uses for it."""

    var: tirx.Var
    fact: Dim = field(default_factory=Dim)
    aliases: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)


class SymbolTable:
    """Names of input dims -> symbols, over all passes of one import.

    Dims with one name share a symbol; unnamed dims get one each. `unify` replaces a symbol by an expression in
    the others, after which `resolve` gives the expression: the importer then starts over with fewer symbols.
    """

    def __init__(self, dims: Mapping[str, Dim | int] | None = None):
        self._facts = {name: Dim(fact, fact) if isinstance(fact, int) else fact for name, fact in (dims or {}).items()}
        self._used_facts: set[str] = set()
        self.symbols: dict[str, Symbol] = {}
        self._by_alias: dict[str, str] = {}
        self.replaced: dict[tirx.Var, Any] = {}

    def resolve(self, raw: str, input_name: str, axis: int) -> Any:
        """The int or expression for a dim that the model writes as `raw` at `axis` of an input."""
        anonymous = raw.strip() in _ANONYMOUS
        key = f"{input_name}[{axis}]" if anonymous else raw
        if key not in self._by_alias:
            hint = f"{input_name}_d{axis}" if anonymous else raw
            self._declare(key, self._canonical_name(hint))
        symbol = self.symbols[self._by_alias[key]]
        if symbol.fact.max is not None and symbol.fact.min == symbol.fact.max:
            return symbol.fact.min
        return self.apply(symbol.var)

    def restrict(self, raw: str, fact: Dim, why: str) -> None:
        """Add what the model itself tells of the dim that it writes as `raw`; restarts may repeat it."""
        symbol = self.symbols[self._by_alias[raw]]
        symbol.fact = _merge(symbol.fact, fact, why)

    def apply(self, expr: Any) -> Any:
        return simplify(substitute(expr, self.replaced)) if self.replaced else expr

    def _declare(self, key: str, name: str) -> None:
        fact = Dim()
        for known in (key, name):
            if known in self._facts:
                fact, _ = self._facts[known], self._used_facts.add(known)
        self._by_alias[key] = name
        self.symbols[name] = Symbol(tirx.Var(name, "int64"), fact, [key])

    def _canonical_name(self, raw: str) -> str:
        name = re.sub(r"\W+", "_", raw.replace("p2o.DynamicDimension.", "dim_")).strip("_") or "dim"
        name = f"dim_{name}" if name[0].isdigit() else name
        candidate, count = name, 1
        while candidate in self.symbols:
            candidate, count = f"{name}_{count}", count + 1
        return candidate

    def check_user_names(self) -> None:
        """Raise for a fact about a dim that the model does not have."""
        unknown = sorted(set(self._facts) - self._used_facts)
        if unknown:
            have = ", ".join(repr(a) for s in self.symbols.values() for a in s.aliases) or "none"
            raise InvalidDimError(f"no symbolic dim is named {', '.join(map(repr, unknown))}; the model has: {have}")

    def free(self) -> list[Symbol]:
        """The symbols that are left: not fixed, not replaced."""
        return [s for s in self.symbols.values() if s.var not in self.replaced and not _fixed(s.fact)]

    def solve(self, left: Any, right: Any) -> tuple[tirx.Var, Any] | None:
        """A symbol and the expression that it must be for left == right, if one stands linearly in the difference."""
        inputs = {s.var for s in self.free()}
        difference = simplify(left - right)
        candidates = [v for v in free_vars(difference) if v in inputs] if set(free_vars(difference)) <= inputs else []
        for var in sorted(candidates, key=lambda v: list(self.symbols).index(v.name), reverse=True):
            for solution in (simplify(var - difference), simplify(var + difference)):
                if var not in free_vars(solution) and _plain(solution):
                    return var, solution
        return None

    def unify(self, var: tirx.Var, solution: Any, why: str) -> None:
        """Replace `var` by `solution` everywhere; their facts and names merge when the solution is a symbol."""
        symbol = self.symbols[var.name]
        if isinstance(solution, tvm.ir.Var):
            target = self.symbols[solution.name]
            target.fact = _merge(target.fact, symbol.fact, why)
            target.aliases += symbol.aliases
            target.why.append(why)
        else:
            for used in free_vars(solution):
                self.symbols[used.name].why.append(why)
        self.replaced = {v: simplify(substitute(e, {var: solution})) for v, e in self.replaced.items()}
        self.replaced[var] = solution


def _fixed(fact: Dim) -> bool:
    return fact.max is not None and fact.min == fact.max


def _plain(expr: Any) -> bool:
    """An int, a symbol, or a sum of symbols and ints: what may replace a symbol in an input's shape."""
    if isinstance(expr, int | tvm.ir.Var):
        return True
    return not re.search(r"[*/%]|min|max|if", to_text(expr))


def _merge(a: Dim, b: Dim, why: str) -> Dim:
    uppers = [d.max for d in (a, b) if d.max is not None]
    low, high = max(a.min, b.min), min(uppers) if uppers else None
    if high is not None and low > high:
        raise ModelImportError(f"the facts given for two dims contradict each other ({a} and {b}), but {why}")
    return Dim(low, high, math.lcm(a.divisor, b.divisor))
