"""Tuning: a budget of time and trials over the backbones of a model, until measuring more no longer pays.

Each round takes the backbone whose next candidates promise the most seconds of a call of the model, as the task
scheduler of Ansor does (L. Zheng et al., OSDI 2020, section 6), builds a batch of them, and measures it. Whatever was
measured is in the database at once: Ctrl-C ends the search and loses nothing, a later run goes on where it ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.schedules.replay import record
from tvm_dyn.tuning.database import TuningDatabase
from tvm_dyn.tuning.learning import Predictor
from tvm_dyn.tuning.pool import Outcome, Values
from tvm_dyn.tuning.records import Conditions, Measurement, StoredWorkload, point
from tvm_dyn.tuning.search import Candidate, Predict, TaskSearch
from tvm_dyn.tuning.tasks import BackboneTask

TRIALS = 64
"""Candidates to measure of a backbone, at most."""
_BATCH = 8
_LEAST_BATCHES = 3
_WORTHWHILE = 0.002
"""The search ends when no backbone promises this share of a call of the model."""


class Pool(Protocol):
    """Builds and measures; see `LocalPool`."""

    def evaluate(
        self, workload: StoredWorkload, traces: Sequence[list], extents: Sequence[Sequence[Values]]
    ) -> Iterator[tuple[int, Outcome]]:
        """(position, outcome) of each trace."""
        ...


@dataclass(frozen=True)
class Status:
    """What there is to show while tuning. seconds_left: of the budget; None without one."""

    searches: Sequence[TaskSearch]
    seconds_left: float | None
    current: TaskSearch | None = None


class Tuner:
    """Tunes ``tasks`` for ``target`` into ``database``.

    trials: candidates to measure of each backbone, those in the database included. budget: seconds, None for no
    limit. progress: called with a `Status` after each candidate. machine: where candidates are measured, if not here.
    """

    def __init__(
        self,
        tasks: Sequence[BackboneTask],
        target: Target,
        database: TuningDatabase,
        trials: int = TRIALS,
        budget: float | None = None,
        progress: Callable[[Status], None] = lambda status: None,
        machine: str | None = None,
    ):
        self.target, self.database, self.trials, self.progress = target, database, trials, progress
        here = Conditions.here(target)
        self.conditions = here if machine is None else replace(here, machine=machine)
        self.searches = [TaskSearch(task) for task in tasks]
        self.predictor = Predictor(target, self.conditions)
        self.predictor.load(database.path)
        self.interrupted = False
        self.measured = 0
        self._deadline = None if budget is None else time.monotonic() + budget
        self._random = random.Random(0)
        for search in self.searches:
            search.restore(database.records(search.task.backbone), self.conditions)
        self.predictor.learn(self.searches)

    @property
    def seconds_left(self) -> float | None:
        """Of the budget."""
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def run(self, pool: Pool) -> None:
        """Search until the budget is spent or nothing is worth it; `interrupted` tells of Ctrl-C."""
        try:
            while (search := self._next()) is not None and self.seconds_left != 0.0:
                self._round(search, pool)
        except KeyboardInterrupt:
            self.interrupted = True
        self.predictor.save(self.database.path)

    def _next(self) -> TaskSearch | None:
        """The task to go on with, None at the end."""
        able = [s for s in self.searches if s.trials < self.trials and any(c.open for c in s.candidates)]
        fresh = [s for s in able if not s.measured or s.pressing]
        if fresh:
            return fresh[0]
        total = sum(s.expected_seconds for s in self.searches if s.measured)
        promises = [(self._promise(s), n) for n, s in enumerate(able)]
        if not promises:
            return None
        promise, number = max(promises)
        return able[number] if promise > _WORTHWHILE * total else None

    def _promise(self, search: TaskSearch) -> float:
        """Seconds of a call of the model that the next batch may save: by the cost model, and by how the last did."""
        predicted = search.predicted_gain(self._predict(search))
        by_trend = search.last_gain * search.expected_seconds
        if search.batches < _LEAST_BATCHES and not search.restored:
            return max(predicted, by_trend, 0.01 * search.expected_seconds)
        return (predicted + by_trend) / 2

    def _predict(self, search: TaskSearch) -> Predict | None:
        return self.predictor.seconds if self.predictor.knows(search) else None

    def _round(self, search: TaskSearch, pool: Pool) -> None:
        predict = self._predict(search)
        batch = search.next_batch(min(_BATCH, self.trials - search.trials), predict, self._random)
        before = search.expected_seconds
        extents = [[p.values for p in search.task.points] for _ in batch]
        for position, outcome in pool.evaluate(search.task.stored, [c.trace for c in batch], extents):
            self._keep(search, batch[position], outcome)
            self.progress(Status(self.searches, self.seconds_left, search))
            if self.seconds_left == 0.0:
                break
        after = search.expected_seconds
        search.last_gain = 1.0 if before == float("inf") else (before - after) / before
        search.batches += 1
        search.widen()
        self.predictor.learn(self.searches)

    def _keep(self, search: TaskSearch, candidate: Candidate, outcome: Outcome) -> None:
        places = [point(p.extents) for p in search.task.points]
        if isinstance(outcome, str):
            candidate.fault = outcome
            measurement = Measurement(self.conditions, fault=outcome)
        else:
            candidate.take(outcome)
            measurement = Measurement(self.conditions, dict(zip(places, outcome, strict=True)))
        backbone: PrimFunc = search.task.backbone
        self.database.commit(backbone, record(backbone, candidate.tile), self.target, measurement)
        self.measured += 1
