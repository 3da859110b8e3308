"""From a backbone and a trace to a shared library: what a worker does before anything can be measured."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir.meta_schedule.database import TuningRecord
from tvm.target import Target

from tvm_dyn.errors import KernelFallbackWarning
from tvm_dyn.hardware import for_code_generation
from tvm_dyn.pipeline import without_needless_passes
from tvm_dyn.schedules import schedule_prim_func
from tvm_dyn.schedules.backbone import has_constant_operand
from tvm_dyn.schedules.replay import replay
from tvm_dyn.schedules.weight_panels import Layout, pack
from tvm_dyn.tuning.records import StoredWorkload

FUNCTION = "candidate"


@dataclass(frozen=True)
class Artifact:
    """A built candidate: its library, and where a constant operand lies packed: (position, layout)."""

    path: str
    packed: tuple[int, Layout] | None


def build(workload: list[str], trace: list, target: dict[str, Any], path: str) -> Artifact:
    """Build a trace (as `records.trace_json` has it) of a workload for a target and write it to ``path``, *.so.

    Raises ReplayError where the trace does not fit, and what TVM raises where it does not compile;
    KernelFallbackWarning where no rule takes it.
    """
    stored, chosen = _workload(workload), for_code_generation(Target(target))
    known = TuningRecord.from_json([trace, [0.0], None, None], stored.workload).trace
    assert stored.backbone is not None  # tasks are backbones
    kernel, packed = replay(known, stored.backbone), None
    if has_constant_operand(kernel):
        found = pack(kernel, chosen)
        kernel, packed = found.func, (found.position, found.layout)
    with chosen, warnings.catch_warnings():
        warnings.simplefilter("error", KernelFallbackWarning)  # another schedule is another candidate
        scheduled = schedule_prim_func(kernel, chosen)
    alone = scheduled.with_attr({"global_symbol": FUNCTION, "tirx.noalias": True})
    with without_needless_passes():
        tvm.compile(tvm.IRModule({FUNCTION: alone}), chosen).export_library(path)
    return Artifact(path, packed)


_known: dict[str, StoredWorkload] = {}


def _workload(plain: list[str]) -> StoredWorkload:
    """Read once for all candidates of a backbone."""
    if plain[1] not in _known:
        _known.clear()
        _known[plain[1]] = StoredWorkload(plain)
    return _known[plain[1]]
