"""Reuse: the variants of a model's backbones out of a database, without measuring anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
from tvm.target import Target

from tvm_dyn import hardware
from tvm_dyn.schedules.choices import Choices
from tvm_dyn.tuning.choose import choose, distance
from tvm_dyn.tuning.database import TuningDatabase
from tvm_dyn.tuning.learning import Predictor
from tvm_dyn.tuning.profile import ShapeProfile
from tvm_dyn.tuning.records import Conditions, Record, digest
from tvm_dyn.tuning.search import TaskSearch
from tvm_dyn.tuning.tasks import BackboneTask, TaskPoint, tasks_of_kernels


@dataclass(frozen=True)
class Reuse:
    """What a backbone took from the database. kernels: those around it. source: "database" where it was tuned itself,
    "model" where a cost model chose that was fitted to the times of other backbones, "default" where nothing is
    known. records: the digests of the traces of its variants that were measured.
    """

    backbone: str
    kernels: tuple[str, ...]
    source: str
    variants: int = 0
    records: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = {
            "database": f"{self.variants} variants, records {', '.join(dict.fromkeys(self.records))}",
            "model": f"no record, {self.variants} variants by the cost model",
        }
        return f"{self.backbone} ({len(self.kernels)} kernels): {told.get(self.source, 'no record, default')}"


class DatabaseChoices(Choices):
    """Choices that are read from a database once the backbones of a model are known; `reused` tells which.

    profile: what matters among the shapes that were measured; by default all that the model allows.
    """

    def __init__(self, database: TuningDatabase, target: Target, profile: ShapeProfile | None = None):
        super().__init__()
        self.database, self.target, self.profile = database, target, profile
        self.reused: list[Reuse] = []

    def prepare(self, mod: tvm.IRModule) -> None:
        """Choose for the backbones of a module as it is after fusion."""
        conditions = Conditions.here(self.target)
        predictor = Predictor(self.target, conditions)
        predictor.load(self.database.path)
        tasks = tasks_of_kernels(mod, self.target, self.profile)
        searches = [_search(task, self.database.records(task.backbone), conditions) for task in tasks]
        self.reused = [self._choose(search, predictor) for search in searches]

    def _choose(self, search: TaskSearch, predictor: Predictor) -> Reuse:
        """Enter the choice for a task; there is none where nothing is known."""
        task, source = search.task, "database"
        if not search.measured and predictor.learned and predictor.knows(search):
            search.assume(predictor.seconds)
            source = "model"
        chosen = choose(search, predictor, hardware.cores(self.target), source)
        if chosen is None:
            return Reuse(task.name, task.kernels, "default")
        self[task.backbone] = chosen.choice
        records = tuple(digest(c.trace) for c in chosen.candidates) if source == "database" else ()
        return Reuse(task.name, task.kernels, source, len(chosen.choice.traces), records)


def _search(task: BackboneTask, records: Sequence[Record], conditions: Conditions) -> TaskSearch:
    """What is known of a task, at the shapes that were measured; each has the calls of the shapes next to it."""
    known = [seconds for r in records if (seconds := r.seconds(conditions)) and r.variant and not r.fault(conditions)]
    counts = Counter(place for seconds in known for place in seconds)
    frequent = [dict(place) for place, count in counts.items() if 2 * count >= len(known)]
    shapes = [extents for extents in frequent if set(extents) == set(task.space.extents)]
    if not shapes:
        return TaskSearch(task)
    calls = [0.0] * len(shapes)
    for place in task.points:
        calls[min(range(len(shapes)), key=lambda n: distance(place.extents, shapes[n]))] += place.calls
    met = [TaskPoint((), extents, count) for extents, count in zip(shapes, calls, strict=True) if count]
    search = TaskSearch(replace(task, points=tuple(met)))
    search.restore(records, conditions)
    return search
