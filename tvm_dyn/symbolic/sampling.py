"""Assignments that satisfy a set of facts, to contradict wrong claims."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tvm import ir

from .evaluation import SMALL_VALUES, Undefined, evaluate
from .polynomial import Atom, Condition, Leaf, Poly, nested_leaves

if TYPE_CHECKING:
    from .knowledge import Knowledge

_WANTED = 4
_ATTEMPTS = 24

Values = dict[Leaf, int]


def draw_samples(
    facts: Knowledge, leaves: Iterable[Leaf], steps: Sequence[int] = SMALL_VALUES, count: int = _WANTED
) -> list[dict[ir.Var, int]]:
    """Up to ``count`` assignments of ``leaves`` and of every variable that a fact ties to them.

    The equal-valued corners 1, 2, 0 come first, then repeatable pseudo-random values, ``steps`` above the least that
    each may take. There may be none.
    """
    wanted, constraints = _related(facts, leaves)
    free = sorted((leaf for leaf in wanted if leaf not in facts.equations), key=lambda leaf: leaf.order)
    rng = random.Random(len(free))
    found: list[dict[ir.Var, int]] = []
    for attempt in range(_ATTEMPTS * count // _WANTED):
        chosen = [(1, 2, 0)[attempt]] * len(free) if attempt < 3 else [rng.choice(steps) for _ in free]
        values = {leaf: _fit(facts, leaf, step) for leaf, step in zip(free, chosen, strict=True)}
        if _complete(facts, wanted, values) and all(_holds(c, values) for c in constraints):
            found.append({leaf.node: value for leaf, value in values.items()})  # type: ignore[misc]
            if len(found) == count:
                break
    return found


def _constraints(facts: Knowledge) -> list[Condition]:
    conditions = [Condition("eq", (poly,)) for poly in facts.zeros]
    conditions += [Condition("eq", (Poly({m: 1}) - poly,)) for m, poly in facts.reductions.items()]
    conditions += [Condition("ge", (poly,)) for poly in facts.nonnegatives]
    conditions += [Condition("not", (Condition("eq", (poly,)),)) for poly in facts.nonzeros]
    for pair in facts.compatibles:
        a, b = pair
        choices = (a - b, a - 1, b - 1)
        conditions.append(Condition("or", tuple(Condition("eq", (poly,)) for poly in choices)))
    return conditions


def _related(facts: Knowledge, leaves: Iterable[Leaf]) -> tuple[set[Leaf], list[Condition]]:
    """The variables tied to ``leaves`` by facts (these included), and the facts that tie them."""
    pending = [(c, {leaf for leaf in nested_leaves(c) if _is_var(leaf)}) for c in _constraints(facts)]
    wanted: set[Leaf] = set()
    used: list[Condition] = []
    todo = set(leaves)
    while todo:
        leaf = todo.pop()
        wanted.add(leaf)
        if leaf in facts.equations:
            todo.update(o for o in nested_leaves(facts.equations[leaf]) if _is_var(o) and o not in wanted)
        for item in [item for item in pending if leaf in item[1]]:
            pending.remove(item)
            used.append(item[0])
            todo.update(item[1] - wanted)
    return wanted, used


def _is_var(leaf: Leaf) -> bool:
    return isinstance(leaf.node, ir.Var)


def _fit(facts: Knowledge, leaf: Leaf, step: int) -> int:
    """A value of ``leaf`` that its range and residue class allow, near ``step`` above its lower bound."""
    low, high = facts.leaf_range(leaf)
    divisor = max(facts.residues.get(leaf, (1, 0))[0], 1)
    if low is None:
        low = -3 if high is None else high - 40
        low += (facts.residues.get(leaf, (1, 0))[1] - low) % divisor
    start = max(low, 0) if low < 0 and step > 2 else low
    value = low + ((start - low) // divisor + step) * divisor
    return value if high is None or value <= high else low + step % ((high - low) // divisor + 1) * divisor


def _complete(facts: Knowledge, wanted: set[Leaf], values: Values) -> bool:
    """Add the values that equations define; False where one is undefined or out of range."""
    try:
        for leaf in wanted:
            if leaf in facts.equations:
                values[leaf] = poly_value(facts.equations[leaf], values)
    except (Undefined, NotImplementedError):
        return False
    for leaf, value in values.items():
        low, high = facts.leaf_range(leaf)
        if (low is not None and value < low) or (high is not None and value > high):
            return False
    return True


def _holds(condition: Condition, values: Values) -> bool:
    try:
        return bool(condition_value(condition, values))
    except (Undefined, NotImplementedError):
        return False


def poly_value(poly: Poly, values: Values) -> int:
    """The value of a normal form."""
    result = 0
    for monomial, coefficient in poly.terms.items():
        for atom in monomial:
            coefficient *= _atom_value(atom, values)
        result += coefficient
    return result


def _atom_value(atom: Atom, values: Values) -> int:
    if atom.kind == "var":
        return values[atom.args[0]]
    if atom.kind == "opaque":
        return evaluate(atom.args[0].node, {leaf.node: value for leaf, value in values.items()})
    if atom.kind == "select":
        condition, a, b = atom.args
        return poly_value(a if condition_value(condition, values) else b, values)
    args = [poly_value(arg, values) for arg in atom.args]
    if atom.kind in ("min", "max"):
        return min(args) if atom.kind == "min" else max(args)
    if atom.kind == "join":
        return next((arg for arg in args if arg != 1), 1)
    if args[1] == 0:
        raise Undefined("division by zero")
    return args[0] // args[1] if atom.kind == "floordiv" else args[0] % args[1]


def condition_value(condition: Condition, values: Values) -> bool:
    """The truth of a normalised condition."""
    kind = condition.kind
    if kind in ("true", "false"):
        return kind == "true"
    if kind == "leaf":
        return bool(evaluate(condition.args[0].node, {leaf.node: value for leaf, value in values.items()}))
    if kind in ("eq", "ge"):
        value = poly_value(condition.args[0], values)
        return value == 0 if kind == "eq" else value >= 0
    parts = (condition_value(part, values) for part in condition.args)
    return not next(parts) if kind == "not" else all(parts) if kind == "and" else any(parts)
