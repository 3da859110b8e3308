"""The state of one task while it is tuned: what was measured, what is left, and what is worth measuring next."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_dyn.runtime.variants import Variant, decide
from tvm_dyn.schedules.replay import record
from tvm_dyn.tuning.records import Conditions, Record, digest, point, trace_json
from tvm_dyn.tuning.tasks import BackboneTask
from tvm_dyn.tuning.variants import fits, tile_of_variant, variant_of_tile
from tvm_dyn.tuning.widening import stretched

Predict = Callable[[Sequence[Variant], Sequence[Mapping[str, int]]], np.ndarray]
"""(variants, extents) -> seconds on one thread, [extents, variants]; only ratios between variants matter."""

_EXPLORE = 0.15
"""Share of candidates that are drawn at random, for what a cost model may not know."""

_DOUBT = 1.05
"""How much faster a prediction must be to be believed: its typical error for other extents than those learned from."""


@dataclass
class Candidate:
    """A tile of a task: its trace, and once measured its seconds at the points of the task. pressing: to be measured
    whatever is predicted.
    """

    tile: Any
    variant: Variant
    trace: list
    pressing: bool = False
    seconds: np.ndarray | None = None
    fault: str | None = None

    def take(self, seconds: Sequence[float]) -> None:
        """What was measured; of several measurements the least counts, as nothing makes code faster by chance."""
        new = np.array(seconds, "float64")
        self.seconds = new if self.seconds is None else np.minimum(self.seconds, new)

    @property
    def seconds_known(self) -> np.ndarray:
        """Of a measured candidate."""
        assert self.seconds is not None
        return self.seconds

    @property
    def open(self) -> bool:
        """Whether it is still to be measured."""
        return self.seconds is None and self.fault is None


@dataclass
class TaskSearch:
    """One task. candidates: the untuned ones first. restored: how many were known from the database."""

    task: BackboneTask
    candidates: list[Candidate] = field(default_factory=list)
    restored: int = 0
    last_gain: float = 1.0
    batches: int = 0

    def __post_init__(self) -> None:
        tiles = dict.fromkeys([*self.task.space.untuned, *self.task.space.candidates])
        for tile in tiles:
            self.add(tile, pressing=tile in self.task.space.untuned)

    def add(self, tile: Any, pressing: bool = False) -> None:
        """One more candidate."""
        trace = trace_json(record(self.task.backbone, tile))
        self.candidates.append(Candidate(tile, variant_of_tile(tile), trace, pressing))

    def widen(self) -> None:
        """Add candidates a step beyond the best one."""
        if self.measured:
            best = min(self.measured, key=lambda c: float(self.calls @ (c.seconds_known / self.best)))
            known = {c.tile for c in self.candidates}
            for tile in stretched(best.tile):
                if tile not in known:
                    self.add(tile, pressing=True)

    @property
    def pressing(self) -> bool:
        """Whether there are candidates that are to be measured whatever is predicted."""
        return any(c.pressing and c.open for c in self.candidates)

    def add_variants(self, variants: Sequence[Variant]) -> None:
        """Variants that are not among the candidates become some; those of unknown tiles do not."""
        known = {c.variant for c in self.candidates}
        for variant in variants:
            if variant not in known and fits(variant, type(self.task.space.untuned[0])):
                self.add(tile_of_variant(variant))

    @property
    def calls(self) -> np.ndarray:
        """How often the model calls the backbone at each point."""
        return np.array([p.calls for p in self.task.points])

    @property
    def measured(self) -> list[Candidate]:
        return [c for c in self.candidates if c.seconds is not None]

    @property
    def trials(self) -> int:
        """Candidates that were built or measured, those of earlier runs too."""
        return sum(not c.open for c in self.candidates)

    @property
    def best(self) -> np.ndarray:
        """Least seconds at each point."""
        known = [c.seconds_known for c in self.measured]
        return np.min([np.full(len(self.task.points), np.inf), *known], axis=0)

    @property
    def expected_seconds(self) -> float:
        """Of all its calls in one call of the model, on average, with the best candidate for each point."""
        return float(self.calls @ self.best)

    @property
    def untuned_seconds(self) -> float:
        """The same with what is taken without tuning; inf where that was not measured."""
        space, total = self.task.space, 0.0
        for at, place in enumerate(self.task.points):
            found = self.candidates[decide(space.tree, place.extents)]
            total += place.calls * (np.inf if found.seconds is None else float(found.seconds[at]))
        return total

    @property
    def gflops(self) -> float:
        """At the point where the best candidate is fastest."""
        rates = np.array([p.operations for p in self.task.points]) / self.best
        return float(rates.max()) / 1e9

    def restore(self, records: Sequence[Record], conditions: Conditions) -> None:
        """Take over what the database knows, also of tiles beyond the space."""
        self.add_variants([known.variant for known in records if known.variant])
        by_trace = {digest(c.trace): c for c in self.candidates}
        for known in records:
            candidate = by_trace.get(digest(known.trace_json))
            if candidate is None or not candidate.open:
                continue
            candidate.fault = known.fault(conditions)
            seconds = known.seconds(conditions)
            times = [seconds.get(point(p.extents)) for p in self.task.points]
            if None not in times:
                candidate.seconds = np.array(times, "float64")
            self.restored += not candidate.open

    def assume(self, predict: Predict) -> None:
        """Take what is predicted for what was measured; what is taken without tuning wins unless others promise more
        than the error of predictions.
        """
        predicted = predict([c.variant for c in self.candidates], [p.extents for p in self.task.points])
        for candidate, seconds in zip(self.candidates, predicted.T, strict=True):
            candidate.seconds = seconds if candidate.tile in self.task.space.untuned else _DOUBT * seconds

    def next_batch(self, count: int, predict: Predict | None, generator: random.Random) -> list[Candidate]:
        """The candidates to measure next: the pressing ones, then by predicted gain of the set."""
        batch = [c for c in self.candidates if c.pressing and c.open][:count]
        left = [c for c in self.candidates if c.open and not c.pressing]
        generator.shuffle(left)
        wanted = count - len(batch)
        if predict is None or wanted <= 0:
            return batch + left[: max(wanted, 0)]
        random_ones = sum(generator.random() < _EXPLORE for _ in range(wanted))
        return batch + self._by_gain(left, wanted - random_ones, predict) + left[:random_ones]

    def _by_gain(self, left: list[Candidate], count: int, predict: Predict) -> list[Candidate]:
        """Takes what it returns out of ``left``."""
        best, predicted = self._predictions(left, predict)
        chosen: list[int] = []
        for _ in range(min(count, len(left))):
            gains = (np.maximum(best[None, :] / predicted - 1, 0) * self.calls).sum(axis=1)
            gains += 1e-6 * (self.calls * best / predicted).sum(axis=1)  # among those without gain the fastest
            gains[chosen] = -1
            chosen.append(int(gains.argmax()))
            best = np.minimum(best, predicted[chosen[-1]])
        taken = [left[n] for n in chosen]
        left[:] = [c for c in left if c not in taken]
        return taken

    def _predictions(self, candidates: Sequence[Candidate], predict: Predict) -> tuple[np.ndarray, np.ndarray]:
        """(best seconds by point, predicted seconds [candidates, points]), scaled to what was measured at the point."""
        extents = [p.extents for p in self.task.points]
        predicted = predict([c.variant for c in candidates], extents).T
        measured = self.measured
        if not measured:
            return (predicted.min(axis=0) if len(predicted) else np.ones(len(extents))), predicted
        known = np.array([c.seconds_known for c in measured])
        scale = np.exp(np.median(np.log(known / predict([c.variant for c in measured], extents).T), axis=0))
        return self.best, predicted * scale

    def predicted_gain(self, predict: Predict | None) -> float:
        """Seconds that a call of the model is expected to save by the candidates that are left."""
        left = [c for c in self.candidates if c.open]
        if predict is None or not left:
            return 0.0
        best, predicted = self._predictions(left, predict)
        return float(self.calls @ np.maximum(best - predicted.min(axis=0), 0))
