"""What a cost model expects of candidates: the closed forms of `runtime.occupancy`, corrected by what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm.target import Target

from tvm_dyn.runtime import occupancy
from tvm_dyn.runtime.variants import Variant
from tvm_dyn.tuning.search import Predict, TaskSearch


class Predictor:
    """Learns from all tasks of a target together; without a closed form for a kind of tile it has no opinion."""

    def __init__(self, target: Target):
        self._machine = occupancy.Machine.for_target(target)

    def seconds(self, variant: Variant, extents: Mapping[str, int], threads: int = 1) -> float:
        """Of one call."""
        return occupancy.estimate(variant, extents, self._machine, threads).seconds

    def of(self, search: TaskSearch) -> Predict | None:
        """What ranks the candidates of a task; None where nothing is known of their kind."""
        known = all(occupancy.has_form(c.variant, self._machine) for c in search.candidates)
        return self.seconds if known else None

    def gain(self, search: TaskSearch) -> float:
        """Seconds that a call of the model may save by what is left of a task."""
        return search.predicted_gain(self.of(search))

    def learn(self, searches: Sequence[TaskSearch]) -> None:
        """Take in what was measured since the last time."""
