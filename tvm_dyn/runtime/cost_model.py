"""The learned cost model: seconds = closed form (`occupancy`) x exp(what boosted trees have learned of its error).

The closed form's rates are first fitted to the samples (`calibration`), then gradient-boosted trees (T. Chen, C.
Guestrin, XGBoost, KDD 2016) to log(measured / predicted) over the columns of `features`. Where trees have seen nothing
like it, what is left is about the closed form.

A model knows the hardware that its samples were measured on, and is not used on another.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from tvm_dyn.errors import CostModelError
from tvm_dyn.hardware import host_cpu, host_target

from .calibration import Sample, calibrated
from .features import FEATURES, features
from .files import replace_text
from .occupancy import Machine, estimate
from .occupancy_cpu import CpuMachine
from .variants import Variant

FORMAT = 1
_ROUNDS = 250
_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 6,
    "eta": 0.08,
    "min_child_weight": 2,
    "lambda": 1.0,
    "tree_method": "hist",
    "max_bin": 256,
    "base_score": 0.0,
    "nthread": 1,
    "seed": 0,
}
"""One thread and no sampling: the same samples give the same model."""
FEWEST_SAMPLES = 20
"""Fewer teach trees nothing that holds elsewhere."""


@dataclass(frozen=True)
class CostModel:
    """Seconds of variants on one CPU. hardware: which, in words. trees: None where there is the closed form alone."""

    machine: Machine
    hardware: str
    trees: xgboost.Booster | None = None

    @staticmethod
    def of_this_machine() -> CostModel:
        """The closed form for the CPU that this process runs on."""
        machine = Machine.for_target(host_target())
        device = machine.device
        assert isinstance(device, CpuMachine)
        caches = "/".join(f"{size >> 10}K" for size in device.cache_bytes)
        return CostModel(machine, f"{host_cpu()}, caches {caches}, {device.cores} cores")

    @staticmethod
    def fit(samples: Sequence[Sample], machine: Machine, hardware: str) -> CostModel:
        """The model of samples that were all measured on ``hardware``; of few (under 20) only the rates are fitted.

        Raises CostModelError where the machine is no CPU or a kind of variant has no closed form.
        """
        if not isinstance(machine.device, CpuMachine):
            raise CostModelError("the cost model learns from measurements on CPUs only")
        fitted = CostModel(Machine(calibrated(machine.device, samples)), hardware)
        if len(samples) < FEWEST_SAMPLES:
            return fitted
        columns, predicted = fitted._columns([(s.variant, s.extents, s.threads) for s in samples])
        measured = np.array([sample.seconds for sample in samples])
        return CostModel(fitted.machine, hardware, fit_trees(columns, np.log(measured / predicted)))

    def seconds(
        self, variants: Sequence[Variant], points: Sequence[Mapping[str, int]], threads: int = 1
    ) -> NDArray[np.float64]:
        """Predicted seconds, [points, variants]; raises ValueError and KeyError as `occupancy.estimate`."""
        cases = [(variant, point, threads) for point in points for variant in variants]
        if not cases:
            return np.zeros((len(points), len(variants)))
        columns, predicted = self._columns(cases)
        if self.trees is not None:
            predicted = predicted * np.exp(self.trees.predict(xgboost.DMatrix(columns)).astype("float64"))
        return predicted.reshape(len(points), len(variants))

    def _columns(self, cases: Sequence[tuple[Variant, Mapping[str, int], int]]) -> tuple[NDArray, NDArray]:
        """Features and seconds of the closed form."""
        device = self.machine.device
        assert isinstance(device, CpuMachine)
        found = [estimate(variant, extents, self.machine, threads) for variant, extents, threads in cases]
        rows = [features(*case[:2], e, device, case[2]) for case, e in zip(cases, found, strict=True)]
        return np.vstack(rows), np.array([max(e.seconds, 1e-9) for e in found])

    def to_plain(self) -> dict[str, Any]:
        """The model as JSON has it."""
        device = self.machine.device
        assert isinstance(device, CpuMachine)
        trees = None if self.trees is None else json.loads(bytes(self.trees.save_raw("json")))
        return {
            "format": FORMAT,
            "hardware": self.hardware,
            "features": list(FEATURES),
            "rates": device.rates(),
            "trees": trees,
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any], machine: Machine, hardware: str) -> CostModel:
        """What `to_plain` made, on the same ``hardware``; ``machine`` are its numbers.

        Raises CostModelError for a model of other hardware or another version, and for anything else.
        """
        try:
            made_for, known = plain["hardware"], (plain["format"], list(plain["features"]))
            rates, trees = {str(name): float(rate) for name, rate in plain["rates"].items()}, plain["trees"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CostModelError(f"this is no cost model: {error!r}") from error
        if made_for != hardware:
            raise CostModelError(f"the cost model is of {made_for!r}, not of {hardware!r}: fit one to times from here")
        device = machine.device
        if (
            known != (FORMAT, list(FEATURES))
            or not isinstance(device, CpuMachine)
            or rates.keys() != device.rates().keys()
        ):
            raise CostModelError("the cost model is of another version: fit it again")
        if not all(math.isfinite(rate) and rate > 0 for rate in rates.values()):
            raise CostModelError("the cost model has rates that are not above 0")
        return CostModel(Machine(device.with_rates(rates)), hardware, None if trees is None else _booster(trees))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, complete or not at all."""
        replace_text(Path(path), json.dumps(self.to_plain()))

    @staticmethod
    def load(path: str | os.PathLike[str], machine: Machine, hardware: str) -> CostModel:
        """Read what `save` wrote; raises CostModelError as `from_plain` and where the file cannot be read."""
        try:
            plain = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise CostModelError(f"cannot read the cost model {str(path)!r}: {error}") from error
        return CostModel.from_plain(plain, machine, hardware)


def fit_trees(columns: NDArray, values: NDArray) -> xgboost.Booster:
    """Trees that predict ``values`` from ``columns``; the same for the same data."""
    return xgboost.train(_PARAMETERS, xgboost.DMatrix(columns, label=values), _ROUNDS)


def _booster(trees: Any) -> xgboost.Booster:
    booster = xgboost.Booster()
    try:
        booster.load_model(bytearray(json.dumps(trees).encode()))
    except xgboost.core.XGBoostError as error:
        raise CostModelError(f"the cost model's trees cannot be read: {error}") from error
    booster.set_param({"nthread": 1})
    return booster
