"""From measurements to variants: which of them a backbone is compiled for, and which of these is for which shape.

    measured: 40 tiles x 12 shapes on one thread       --->     3 tiles, Split(rows, 7, Leaf(0), Split(rows, 90, ...))

Between shapes that were measured, and from one thread to many, the cost model tells how times change; it is corrected
by the ratio of measured to predicted time at the shapes nearby.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvm_dyn.runtime.distill import distill
from tvm_dyn.runtime.table import DEPTH
from tvm_dyn.runtime.variants import Leaf, Split, Tree
from tvm_dyn.schedules.choices import Choice
from tvm_dyn.schedules.matmul_packed import PackedTile
from tvm_dyn.schedules.replay import record
from tvm_dyn.schedules.space import run_time_fields
from tvm_dyn.tuning.learning import Predictor
from tvm_dyn.tuning.search import Candidate, TaskSearch
from tvm_dyn.tuning.variant_set import REGRET, choose_variants
from tvm_dyn.tuning.variants import variant_of_tile

_GRID = 40
"""Shapes at which variants are compared, about."""


@dataclass(frozen=True)
class Chosen:
    """The choice for a task, the candidates that its variants come from, and the expected regret on one thread."""

    choice: Choice
    candidates: tuple[Candidate, ...]
    regret: float


@dataclass(frozen=True)
class _Shape:
    extents: dict[str, int]
    weight: float


def choose(search: TaskSearch, predictor: Predictor, threads: int, source: str) -> Chosen | None:
    """The variants for a task; None where nothing was measured at any of its shapes.

    threads: of the calls to come; times were measured on one.
    """
    if not search.measured:
        return None
    weights = search.calls
    least = search.best
    measured = _of_one_layout(search)
    seconds = np.array([c.seconds_known for c in measured]).T
    best = [measured[n] for n in choose_variants(seconds, weights, REGRET / 10)]
    shapes = _grid(search)
    pool = _with_siblings(search, best)
    costs = _costs(search, predictor, [s.extents for s in shapes], pool, threads)
    share = np.array([shape.weight for shape in shapes])
    kept = choose_variants(costs, share, REGRET / 10)
    tree = distill([s.extents for s in shapes], costs[:, kept], list(share), 2**DEPTH).tree
    kept, tree = _used(kept, tree)
    tiles = [pool[n][1] for n in kept]
    traces = tuple(record(search.task.backbone, tile) for tile in tiles)
    own = seconds[:, [measured.index(pool[n][0]) for n in kept]].min(axis=1)
    regret = float(np.average(own / least - 1, weights=weights))
    return Chosen(Choice(traces, tree, source), tuple(pool[n][0] for n in kept), regret)


def _of_one_layout(search: TaskSearch) -> list[Candidate]:
    """The measured candidates that read constant weights in the same panels, those with the least regret together:
    a library holds its weights once.
    """
    groups: dict[int, list[Candidate]] = {}
    for candidate in search.measured:
        width = candidate.tile.width if isinstance(candidate.tile, PackedTile) else 0
        groups.setdefault(width, []).append(candidate)

    def regret(group: list[Candidate]) -> float:
        return float(search.calls @ (np.min([c.seconds_known for c in group], axis=0) / search.best))

    return min(groups.values(), key=regret)


def _grid(search: TaskSearch) -> list[_Shape]:
    """Shapes between those that were measured; each of these hands its weight out among the ones next to it."""
    points, names = search.task.points, [*search.task.space.symbolic]
    if not names:
        return [_Shape(dict(points[0].extents), 1.0)]
    steps = max(round(_GRID ** (1 / len(names))), 2)
    axes = [_axis(sorted({p.extents[name] for p in points}), steps) for name in names]
    shapes = [{**points[0].extents, **dict(zip(names, values, strict=True))} for values in itertools.product(*axes)]
    shapes += [dict(p.extents) for p in points if dict(p.extents) not in shapes]
    nearest = [min(range(len(points)), key=lambda n: distance(shape, points[n].extents)) for shape in shapes]
    return [_Shape(s, points[n].calls / nearest.count(n)) for s, n in zip(shapes, nearest, strict=True)]


def _axis(known: list[int], steps: int) -> list[int]:
    """Extents from the least to the greatest known one, evenly in their logarithms."""
    low, high = max(known[0], 1), known[-1]
    return sorted({round(low * (high / low) ** (n / (steps - 1))) for n in range(steps)})


def distance(left: Mapping[str, int], right: Mapping[str, int]) -> float:
    """How far apart two shapes are, in the logarithms of their extents."""
    return sum(abs(math.log((left[name] + 1) / (right[name] + 1))) for name in left)


def _with_siblings(search: TaskSearch, best: Sequence[Candidate]) -> list[tuple[Candidate, Any]]:
    """(measured candidate, tile): the tiles of candidates, and those that their code takes other numbers for."""
    pool: dict[Any, Candidate] = {c.tile: c for c in best}
    for tile in [*search.task.space.untuned, *search.task.space.candidates]:
        fields = run_time_fields(type(tile))
        for candidate in best if fields else ():
            same_kind = type(candidate.tile) is type(tile)
            if same_kind and replace(tile, **{f: getattr(candidate.tile, f) for f in fields}) == candidate.tile:
                pool.setdefault(tile, candidate)
    return [(candidate, tile) for tile, candidate in pool.items()]


def _costs(
    search: TaskSearch,
    predictor: Predictor,
    shapes: Sequence[Mapping[str, int]],
    pool: Sequence[tuple[Candidate, Any]],
    threads: int,
) -> np.ndarray:
    """Seconds on ``threads`` [shapes, pool], each from those of the measured candidate that it shares its code with."""
    points = search.task.points
    distances = np.array([[distance(shape, p.extents) for p in points] for shape in shapes])
    near = 1 / (distances + 1e-3) ** 2
    near /= near.sum(axis=1, keepdims=True)
    measured = np.array([candidate.seconds_known for candidate, _ in pool]).T
    if not predictor.knows(search):
        rates = measured / np.array([[p.operations] for p in points])
        return np.exp(near @ np.log(rates)) * np.array([[2 * math.prod(shape.values())] for shape in shapes])
    known = predictor.seconds([candidate.variant for candidate, _ in pool], [p.extents for p in points])
    predicted = predictor.seconds([variant_of_tile(tile) for _, tile in pool], shapes, threads)
    return predicted * np.exp(near @ np.log(measured / known))


def _used(kept: list[int], tree: Tree) -> tuple[list[int], Tree]:
    """The variants that the tree takes, in order, and the tree over them."""
    order: list[int] = []

    def visit(node: Tree) -> Tree:
        if isinstance(node, Split):
            return replace(node, below=visit(node.below), above=visit(node.above))
        if node.variant not in order:
            order.append(node.variant)
        return Leaf(order.index(node.variant))

    tree = visit(tree)
    return [kept[n] for n in order], tree
