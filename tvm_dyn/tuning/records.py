"""What the tuning database holds, as data: workloads, traces, and times with the conditions of their measurement."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.s_tir.schedule import Trace
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.runtime.variants import Variant
from tvm_dyn.schedules.replay import TILE
from tvm_dyn.tuning.machine import machine_key, target_key, versions

Extents = Mapping[str, int]
Point = tuple[tuple[str, int], ...]
"""Extents that can be a key: (name, value) in the order of names."""


def point(extents: Extents) -> Point:
    """Extents as a key."""
    return tuple(sorted(extents.items()))


@dataclass(frozen=True)
class Conditions:
    """Under which times were measured; times of others say nothing about one's own."""

    machine: str
    target: str
    versions: str
    threads: int

    @staticmethod
    def here(target: Target, threads: int = 1) -> Conditions:
        """On this machine, with the compilers of this process."""
        return Conditions(machine_key(), target_key(target), versions(), threads)


@dataclass(frozen=True)
class Measurement:
    """Seconds of the fastest call at each of some extents, or the ``fault`` that makes a trace useless."""

    conditions: Conditions
    seconds: Mapping[Point, float] = field(default_factory=dict)
    fault: str | None = None

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        times = [[dict(extents), value] for extents, value in self.seconds.items()]
        return {**dataclasses.asdict(self.conditions), "seconds": times, "fault": self.fault}

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Measurement:
        """What `to_plain` made; raises KeyError, TypeError or ValueError on anything else."""
        names = [f.name for f in dataclasses.fields(Conditions)]
        times = {point({str(k): int(v) for k, v in e.items()}): float(value) for e, value in plain["seconds"]}
        return Measurement(Conditions(**{name: plain[name] for name in names}), times, plain["fault"])


class StoredWorkload:
    """A backbone as a line of the workload file; it is read when it is asked for."""

    def __init__(self, plain: list[str]):
        self.key, self.plain = str(plain[0]), plain
        self._workload: Workload | None = None

    @staticmethod
    def of(backbone: PrimFunc) -> StoredWorkload:
        """The line for a backbone."""
        workload = Workload(tvm.IRModule({"main": backbone.with_attr("global_symbol", "main")}))
        return StoredWorkload([str(part) for part in workload.as_json()])

    @property
    def workload(self) -> Workload:
        """MetaSchedule's object."""
        if self._workload is None:
            self._workload = Workload.from_json(self.plain)
        return self._workload

    def same(self, other: StoredWorkload) -> bool:
        """Whether the modules are the same but for names of symbols."""
        return self.key == other.key and (
            self.plain == other.plain or tvm_ffi.structural_equal(self.workload.mod, other.workload.mod)
        )

    @property
    def backbone(self) -> PrimFunc | None:
        """The function; None where the module has several."""
        functions = [*self.workload.mod.functions.values()]
        return functions[0].without_attr("global_symbol") if len(functions) == 1 else None


@dataclass
class Record:
    """A trace of a workload and what was measured with it.

    runs: what MetaSchedule's file says, a (seconds, target) for each of its lines. measurements: what ours says.
    """

    workload: StoredWorkload
    trace_json: list
    runs: list[tuple[list[float], Any]] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        """Workload and trace."""
        return self.workload.key, digest(self.trace_json)

    @property
    def trace(self) -> Trace:
        """The trace; raises RuntimeError where TVM cannot read it."""
        return TuningRecord.from_json([self.trace_json, [0.0], None, None], self.workload.workload).trace

    @property
    def variant(self) -> Variant | None:
        """What the trace decides; None for a trace that is not one of ours."""
        return variant_of(self.trace_json)

    def seconds(self, conditions: Conditions) -> dict[Point, float]:
        """Seconds by extents under these conditions, the least of several measurements at the same extents."""
        found: dict[Point, float] = {}
        for measurement in self.measurements:
            for extents, value in measurement.seconds.items() if measurement.conditions == conditions else ():
                found[extents] = min(value, found.get(extents, value))
        return found

    def fault(self, conditions: Conditions) -> str | None:
        """Why the trace cannot be used under these conditions; None where nothing is known against it."""
        return next((m.fault for m in self.measurements if m.fault and m.conditions == conditions), None)


def trace_json(trace: Trace) -> list:
    """A trace as MetaSchedule's records have it: [instructions, decisions]."""
    return plain(trace.as_json())


def plain(value: Any) -> Any:
    """What TVM says is JSON, in Python's own types."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value]


def digest(trace: list) -> str:
    """A name for a trace, the same in every process."""
    return hashlib.sha256(json.dumps(trace, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def variant_of(trace: list) -> Variant | None:
    """The tile that a trace decides in annotations (see `schedules.replay`), sampled or not."""
    instructions, decisions = trace
    sampled: dict[str, Any] = {}
    for number, decision in decisions:
        kind, _inputs, attributes, outputs = instructions[number]
        if kind == "SampleCategorical":
            sampled[outputs[0]] = attributes[0][decision]
    found: dict[str, Any] = {}
    for kind, inputs, attributes, _outputs in instructions:
        if kind == "Annotate" and str(attributes[0]).startswith(TILE):
            value = sampled.get(inputs[1], inputs[1]) if isinstance(inputs[1], str) else inputs[1]
            found[attributes[0].removeprefix(TILE).lstrip(".")] = tuple(value) if isinstance(value, list) else value
    tile = found.pop("", None)
    return None if tile is None else Variant(str(tile).strip('"'), found)
