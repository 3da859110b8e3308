"""The cost model of the tuner: learns from all tasks of a target together, and lies beside the database for later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tvm.target import Target

from tvm_dyn.errors import CostModelError
from tvm_dyn.runtime.calibration import Sample
from tvm_dyn.runtime.cost_model import FEWEST_SAMPLES, CostModel
from tvm_dyn.runtime.occupancy import Machine, has_form
from tvm_dyn.runtime.variants import Variant
from tvm_dyn.tuning.records import Conditions
from tvm_dyn.tuning.search import TaskSearch

FILE = "cost_model.json"
_GROWTH = 1.25
"""A model is fitted again once there are so many times as many samples."""


class Predictor:
    """Seconds of variants under the conditions of a target; without samples by the closed forms of `occupancy`."""

    def __init__(self, target: Target, conditions: Conditions):
        self._hardware = f"{conditions.machine}; {conditions.target}; {conditions.versions}"
        self._machine = Machine.for_target(target)
        self._model = CostModel(self._machine, self._hardware)
        self._samples = 0

    def load(self, folder: Path) -> None:
        """Take the model that lies in the folder of a database, if it is one of this machine."""
        if (folder / FILE).exists():
            try:
                self._model = CostModel.load(folder / FILE, self._machine, self._hardware)
            except CostModelError:
                return  # of another machine or version

    @property
    def learned(self) -> bool:
        """Whether it knows more than the closed forms."""
        return self._model.trees is not None

    def save(self, folder: Path) -> None:
        """Leave what was learned in the folder of a database."""
        if self._samples:
            self._model.save(folder / FILE)

    def knows(self, search: TaskSearch) -> bool:
        """Whether there is an opinion on the candidates of a task."""
        return all(has_form(candidate.variant, self._machine) for candidate in search.candidates)

    def seconds(self, variants: Sequence[Variant], points: Sequence[Mapping[str, int]], threads: int = 1) -> np.ndarray:
        """Of one call, [points, variants]."""
        return self._model.seconds(variants, points, threads)

    def learn(self, searches: Sequence[TaskSearch]) -> None:
        """Fit the model again where there is enough that is new."""
        samples = [
            Sample(candidate.variant, point.extents, float(seconds))
            for search in searches
            if self.knows(search)
            for candidate in search.measured
            for point, seconds in zip(search.task.points, candidate.seconds_known, strict=True)
        ]
        # Too few to teach trees must not replace what other models taught.
        fewest = FEWEST_SAMPLES if self.learned else 1
        if len(samples) > _GROWTH * self._samples and len(samples) >= fewest:
            self._model = CostModel.fit(samples, self._machine, self._hardware)
            self._samples = len(samples)
