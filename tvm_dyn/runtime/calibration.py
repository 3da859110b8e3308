"""Fit the rates of a machine's closed form to measured times: clock, bandwidths, overheads.

Rates move in the logarithm, at most eightfold, and are held back to what they were: samples that say nothing of a
rate, such as weights that never leave the cache, leave it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from tvm_dyn.errors import CostModelError

from .occupancy import Machine, estimate, has_form
from .occupancy_cpu import RATES, CpuMachine
from .variants import Variant

_MOST = math.log(8)
_HOLD = {"clock_hz": 0.05}
_HOLD_OTHERS = 0.2
"""Weight of a factor e away from what a rate was, beside the root mean square of the errors. The clock is another one
on every machine; what it gets from its caches per cycle differs less, and few samples tell much of it."""
_ENOUGH = 300
"""Samples that rates are fitted to; of more, every n-th."""


@dataclass(frozen=True)
class Sample:
    """``seconds`` that a variant took at ``extents`` on ``threads`` threads."""

    variant: Variant
    extents: Mapping[str, int]
    seconds: float
    threads: int = 1


def calibrated(machine: CpuMachine, samples: Sequence[Sample]) -> CpuMachine:
    """The machine at the rates that explain the samples best; without samples as it is.

    Raises CostModelError where a kind of variant has no closed form or a time is not above 0.
    """
    for sample in samples:
        if not has_form(sample.variant, Machine(machine)):
            raise CostModelError(f"there is no closed form for a {sample.variant.kind}")
        if not (math.isfinite(sample.seconds) and sample.seconds > 0):
            raise CostModelError(f"a sample took {sample.seconds} s at {dict(sample.extents)}: times are above 0")
    kept = samples[:: -(-len(samples) // _ENOUGH)] if samples else []
    if not kept:
        return machine
    start = np.log([machine.rates()[name] for name in RATES])
    hold = np.array([_HOLD.get(name, _HOLD_OTHERS) for name in RATES])
    measured = np.log([sample.seconds for sample in kept])

    def errors(shift: np.ndarray) -> np.ndarray:
        rates = np.exp(start + shift)
        now = Machine(machine.with_rates(dict(zip(RATES, map(float, rates), strict=True))))
        predicted = [max(estimate(s.variant, s.extents, now, s.threads).seconds, 1e-9) for s in kept]
        return np.concatenate([(np.log(predicted) - measured) / math.sqrt(len(kept)), hold * shift])

    found = least_squares(errors, np.zeros(len(RATES)), bounds=(-_MOST, _MOST), loss="soft_l1", f_scale=0.05)
    rates = np.exp(start + found.x)
    return machine.with_rates(dict(zip(RATES, map(float, rates), strict=True)))
