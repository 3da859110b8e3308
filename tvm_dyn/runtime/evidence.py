"""What paired measurements have shown of the variants of one fusion group, and the table that follows from it.

A pair is two variants run in turns on the inputs of one call; only the logarithm of the ratio of their times is kept,
so that neither the clock of the moment nor the load of the machine counts. A variant that was not paired with the one
in use is no candidate: nothing but a measured loss takes a variant's place away.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .distill import WORTH_A_LEAF, distill, measured
from .variants import Tree, decide

PAIRS = 3
"""Pairs of two variants at a point before they count."""
_KEPT = 15
"""Pairs that are remembered, the latest."""
_MOST_POINTS = 256
_STEPS = 8
"""Extents are taken together that are as close as neighbours of so many steps in a power of two."""
_CLEARLY_WORSE = math.log(1.15)
"""A variant this much slower in its first two pairs is not tried again."""
_WORTH = 0.01
"""Mean gain from which on a table is exchanged."""
_UNSEEN_WEIGHT = 0.1
"""Weight of what was never paired beside all that was: there each change counts as a loss of as much."""
_UNSEEN_LOSS = 1.05


@dataclass
class Point:
    """Calls with about the same extents. ratios: log of b's time over a's, by (a, b) with a < b."""

    extents: dict[str, int]
    calls: int = 0
    ratios: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, a: int, b: int, ratio: float) -> None:
        """One pair: log of b's time over a's."""
        key, value = ((a, b), ratio) if a < b else ((b, a), -ratio)
        self.ratios[key] = [*self.ratios[key], value][-_KEPT:]

    def pairs(self, a: int, b: int) -> list[float]:
        """Of b's time over a's."""
        known = self.ratios.get((min(a, b), max(a, b)), [])
        return known if a < b else [-value for value in known]

    def relative(self, base: int) -> dict[int, float]:
        """Time of each variant over that of ``base``, through the fewest others, where pairs are enough."""
        found, waiting = {base: 0.0}, [base]
        while waiting:
            a = waiting.pop(0)
            for b in {n for key, known in self.ratios.items() if a in key and len(known) >= PAIRS for n in key}:
                if b not in found:
                    found[b] = found[a] + statistics.median(self.pairs(a, b))
                    waiting.append(b)
        return {variant: math.exp(value) for variant, value in found.items()}


class Evidence:
    """The points of one group that has ``variants`` variants."""

    def __init__(self, variants: int) -> None:
        self.variants = variants
        self.points: dict[tuple[int, ...], Point] = {}

    def point(self, extents: Mapping[str, int]) -> Point | None:
        """The point of a call, None for a new one where memory is full."""
        key = tuple(round(_STEPS * math.log2(value + 1)) for value in extents.values())
        if key not in self.points and len(self.points) < _MOST_POINTS:
            self.points[key] = Point(dict(extents))
        return self.points.get(key)

    def challenger(self, point: Point, tree: Tree, predict: Callable[[], Sequence[float]]) -> int | None:
        """The variant to pair next with the one that ``tree`` takes, None where all that may win have had their pairs.

        It is the one that did best against that one at this point, else at others, else by what ``predict`` says of
        the times of all.
        """
        base = decide(tree, point.extents)
        pairs = {n: point.pairs(base, n) for n in range(self.variants) if n != base}
        waiting = [n for n, known in pairs.items() if len(known) < PAIRS and not _hopeless(known)]
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        predicted = predict()

        def score(n: int) -> float:
            elsewhere = [statistics.median(known) for p in self.points.values() if (known := p.pairs(base, n))]
            if pairs[n] or elsewhere:
                return statistics.median(pairs[n] or elsewhere)
            return math.log(predicted[n] / predicted[base])

        return min(waiting, key=score)

    def better(self, tree: Tree, max_leaves: int) -> Tree | None:
        """A tree that beats ``tree`` where it was paired, by a mean of 1 % of the calls' time; None without."""
        seen = [point for point in self.points.values() if point.ratios]
        if not seen:
            return None
        extents = [point.extents for point in seen]
        costs = np.full((len(seen), self.variants), np.inf)
        for row, point in zip(costs, seen, strict=True):
            for variant, time in point.relative(decide(tree, point.extents)).items():
                row[variant] = time
        calls = np.array([max(point.calls, 1) for point in seen], "float64")
        around = _around(extents)
        resisting = np.full((len(around), self.variants), _UNSEEN_LOSS)
        resisting[np.arange(len(around)), [decide(tree, point) for point in around]] = 1.0
        weights = [*(calls / calls.sum()), *([_UNSEEN_WEIGHT / max(len(around), 1)] * len(around))]
        found = distill([*extents, *around], np.vstack([costs, resisting]), weights, max_leaves).tree
        before, after = (measured(t, extents, costs, calls.tolist()) for t in (tree, found))
        gain = (1 + before.expected) / (1 + after.expected) - 1
        return found if gain > _WORTH and after.worst <= before.worst + WORTH_A_LEAF else None

    def to_plain(self) -> list[dict[str, Any]]:
        """As JSON has it."""
        return [
            {"extents": p.extents, "calls": p.calls, "ratios": [[*key, known] for key, known in p.ratios.items()]}
            for p in self.points.values()
        ]

    @staticmethod
    def from_plain(plain: Sequence[Mapping[str, Any]], variants: int) -> Evidence:
        """What `to_plain` made; raises KeyError, TypeError or ValueError on anything else."""
        found = Evidence(variants)
        for entry in plain:
            point = found.point({str(name): int(value) for name, value in entry["extents"].items()})
            if point is None:
                break
            point.calls = int(entry["calls"])
            for a, b, ratios in entry["ratios"]:
                if not 0 <= int(a) < int(b) < variants:
                    raise ValueError(f"there are no variants {a} and {b} of {variants}")
                point.ratios[int(a), int(b)] = [float(value) for value in ratios][-_KEPT:]
        return found


def _hopeless(pairs: Sequence[float]) -> bool:
    """Whether a variant has lost clearly, and not by a single accident."""
    return len(pairs) > 1 and min(pairs) > _CLEARLY_WORSE


def _around(extents: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Points between and beyond those that were seen, along each extent, the others as they were seen."""
    found: dict[tuple[tuple[str, int], ...], None] = {}
    seen = {tuple(point.items()) for point in extents}
    for point in extents[:: max(len(extents) // 16, 1)]:
        for name in point:
            for value in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096):
                moved = tuple({**point, name: value}.items())
                if moved not in seen:
                    found[moved] = None
    return [dict(point) for point in found]
