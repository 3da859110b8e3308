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
    """What a backbone took from the database. kernels: those around it. records: the digests of their traces, one for
    each variant, none where the database has nothing for it; regret: expected, of these among all that is known.
    """

    backbone: str
    kernels: tuple[str, ...]
    records: tuple[str, ...]
    regret: float

    def __str__(self) -> str:
        what = f"{len(self.records)} variants, records {', '.join(self.records)}" if self.records else "no record"
        return f"{self.backbone} ({len(self.kernels)} kernels): {what}"


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
        threads = hardware.cores(self.target)
        self.reused = []
        tasks = tasks_of_kernels(mod, self.target, self.profile)
        searches = [_search(task, self.database.records(task.backbone), conditions) for task in tasks]
        for search in searches:
            chosen = choose(search, predictor, threads, "database")
            task = search.task
            if chosen is None:
                self.reused.append(Reuse(task.name, task.kernels, (), 0.0))
                continue
            self[task.backbone] = chosen.choice
            names = tuple(digest(candidate.trace) for candidate in chosen.candidates)
            self.reused.append(Reuse(task.name, task.kernels, names, chosen.regret))


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
    search.add_variants([record.variant for record in records if record.variant])
    search.restore(records, conditions)
    return search
