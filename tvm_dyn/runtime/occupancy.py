"""The analytic cost model: seconds of a variant at given extents, from its tile and the numbers of the machine.

    estimate(Variant("PackedTile", {...}), {"batch": 1, "rows": 37, "columns": 3072, "depth": 768}, machine, threads=1)
    --->
    Estimate(8.1e-04 s, bound by compute; compute 6.6e-04, tail 8.9e-05, cache 3.0e-05, ...)

Terms of a CPU: compute (multiply-adds that the result needs), tail (those of tiles beyond its edge), registers (units
idle as the tile is too small for them), cache and bandwidth (operands from the second level, and from beyond),
packing (copies), imbalance and launch (of several cores). Of a GPU: compute, padding, tail (the last wave),
occupancy (too few warps), bandwidth and launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm.target import Target

from .estimate import Estimate
from .occupancy_cpu import CpuMachine
from .occupancy_cuda import GpuMachine
from .tile_forms import FORMS
from .variants import Variant

__all__ = ["Estimate", "Machine", "estimate", "has_form"]


@dataclass(frozen=True)
class Machine:
    """The numbers of a device."""

    device: CpuMachine | GpuMachine

    @staticmethod
    def for_target(target: Target) -> Machine:
        """Of a target's device; raises ValueError for one that there are none for."""
        kinds = {"llvm": CpuMachine, "cuda": GpuMachine}
        if target.kind.name not in kinds:
            raise ValueError(f"there is no cost model for {target.kind.name}: only for {', '.join(kinds)}")
        return Machine(kinds[target.kind.name].for_target(target))


def has_form(variant: Variant, machine: Machine) -> bool:
    """Whether `estimate` knows the kind of the variant on that machine."""
    return isinstance(machine.device, GpuMachine) or variant.kind in FORMS


def estimate(variant: Variant, extents: Mapping[str, int], machine: Machine, threads: int = 1) -> Estimate:
    """Seconds of one call on ``threads`` cores (of a CPU), by cause.

    Raises ValueError for a kind of tile without a closed form, KeyError where an extent or a decision is missing.
    """
    device = machine.device
    if isinstance(device, GpuMachine):
        return device.estimate(variant.decisions, extents)
    if variant.kind not in FORMS:
        raise ValueError(f"there is no closed form for a {variant.kind}: there is one for {', '.join(FORMS)}")
    return FORMS[variant.kind](variant.decisions, extents, device, max(1, min(threads, device.cores)))
