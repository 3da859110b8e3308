"""What there is to tune in a model: its distinct backbones, and the extents at which the model calls each of them.

fused_matmul_add_gelu x 12, fused_matmul_add x 12, ...     under the profile seq in {1, 37, 512}
--->
task: C[i, j] += A[i, k] * W[k, j], (768, 3072)            rows 1, 37, 512, 24 calls each time
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import tvm
from tvm import ir, relax
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.dims import Dim
from tvm_dyn.embed import ATTRIBUTE, with_signature
from tvm_dyn.hardware import host_target
from tvm_dyn.kernel_cases import Extents, at_call
from tvm_dyn.passes.replay_backbone_schedule import backbone_of
from tvm_dyn.passes.rewriting import CALL_TIR
from tvm_dyn.pipeline import fused
from tvm_dyn.runtime.signature import Signature
from tvm_dyn.schedules import space_of
from tvm_dyn.schedules.common import as_int, collect
from tvm_dyn.schedules.space import Space
from tvm_dyn.symbolic import evaluate
from tvm_dyn.tuning.profile import ShapeProfile, check_dims
from tvm_dyn.tuning.records import StoredWorkload
from tvm_dyn.tuning.symbols import symbols_of

POINTS = 12
"""Shapes at which a candidate is measured, at most."""
_MOST_OPERATIONS = 1 << 33
"""Shapes beyond this (about 0.1 s a call) are not measured while there are others."""


@dataclass(frozen=True)
class TaskPoint:
    """A backbone at some shape. values: of its symbols (see `symbols_of`). extents: what times depend on, by name.
    calls: how often a call of the model runs it at this shape, on average.
    """

    values: tuple[int, ...]
    extents: Mapping[str, int]
    calls: float

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.extents.values())


@dataclass(frozen=True)
class BackboneTask:
    """A backbone, the decisions about it, and where the model calls it. kernels: the names of those around it."""

    backbone: PrimFunc
    stored: StoredWorkload
    space: Space
    kernels: tuple[str, ...]
    points: tuple[TaskPoint, ...]

    @property
    def name(self) -> str:
        """The extents that never change, after the first kernel: ``fused_matmul_add 768x3072``."""
        known = [as_int(extent) for extent in self.space.extents.values()]
        return " ".join([self.kernels[0], "x".join(str(value) for value in known if value not in (None, 1))]).strip()


def extract_backbone_tasks(
    mod: tvm.IRModule, target: Target | None = None, profile: ShapeProfile | None = None
) -> list[BackboneTask]:
    """The tasks of a Relax module as a frontend makes it, the one with the most operations first.

    target: by default this machine. profile: by default all shapes that the model's dims allow, see
    `ShapeProfile.uniform`. Raises TuningError for a profile of other dims than the model's.
    """
    chosen = target or host_target()
    if ATTRIBUTE not in (mod["main"].attrs or {}):
        mod = with_signature(mod, {})
    return tasks_of_kernels(fused(mod, chosen), chosen, profile)


def tasks_of_kernels(mod: tvm.IRModule, target: Target, profile: ShapeProfile | None = None) -> list[BackboneTask]:
    """The tasks of a module as it is after fusion."""
    signature = Signature.from_json(str(mod["main"].attrs[ATTRIBUTE]))
    if profile is None:
        dims = {name: Dim(info.min, info.max, info.divisor) for name, info in signature.dims.items()}
        profile = ShapeProfile.uniform(dims, POINTS)
    check_dims(profile, [*signature.dims])
    profile = profile.summarized(POINTS)
    shapes = [_values(mod["main"], signature, extents) for extents in profile.points]
    found: list[_Found] = []
    for gv, calls in _calls(mod).items():
        func = mod[gv]
        parts = backbone_of(func) if isinstance(func, PrimFunc) else None
        space = space_of(parts[1], target) if parts else None
        if parts is None or space is None or len(space.candidates) < 2:
            continue
        stored = StoredWorkload.of(parts[1])
        task = next((task for task in found if task.stored.same(stored)), None)
        if task is None:
            found.append(task := _Found(parts[1], stored, space))
        task.kernels.append(gv.name_hint)
        own = space_of(parts[0], target)
        assert own is not None  # the kernel has what its backbone has
        for call in calls:
            for shape, weight in zip(shapes, profile.weights, strict=True):
                case = at_call(call, func, shape)
                if case is not None:
                    task.add(*_place(case, own, parts[1], space), weight)
    tasks = [task.finished() for task in found if task.calls]
    return sorted(tasks, key=lambda task: -sum(p.calls * p.operations for p in task.points))


def _values(main: relax.Function, signature: Signature, extents: Mapping[str, int]) -> dict[ir.Var, int]:
    """The symbols of the model at a shape."""
    names = {alias: name for name, info in signature.dims.items() for alias in (*info.aliases, name)}
    symbols = relax.analysis.tir_vars_in_type(relax.TupleType([param.ty for param in main.params]))
    return {var: extents[names[var.name]] for var in symbols if var.name in names}


def _calls(mod: tvm.IRModule) -> dict[ir.GlobalVar, list[relax.Call]]:
    """The calls of each kernel in functions that share the dims of `main`."""
    found: dict[ir.GlobalVar, list[relax.Call]] = {}
    for call in collect(mod["main"], ir.Call):
        if call.op == CALL_TIR:
            found.setdefault(call.args[0], []).append(call)
    return found


def _place(case: Extents, own: Space, backbone: PrimFunc, space: Space) -> tuple[tuple[int, ...], dict[str, int]]:
    """(values of the backbone's symbols, extents by name) of a call of a kernel.

    own: the decisions about the kernel, in whose variables ``case`` is; space: those about its backbone, which shares
    these variables or has some that are extents themselves.
    """
    extents = {name: int(evaluate(extent, case)) for name, extent in own.extents.items()}
    named = {extent: extents[name] for name, extent in space.extents.items()}
    values = [
        case[symbol] if symbol in case else next(v for extent, v in named.items() if extent.same_as(symbol))
        for symbol in symbols_of(backbone)
    ]
    return tuple(values), extents


class _Found:
    """A task while its calls are collected."""

    def __init__(self, backbone: PrimFunc, stored: StoredWorkload, space: Space):
        self.backbone, self.stored, self.space = backbone, stored, space
        self.kernels: list[str] = []
        self.calls: dict[tuple[tuple[int, ...], tuple[tuple[str, int], ...]], float] = defaultdict(float)

    def add(self, values: tuple[int, ...], extents: Mapping[str, int], weight: float) -> None:
        """Count a call."""
        if min(extents.values()) > 0:
            self.calls[values, tuple(extents.items())] += weight

    def finished(self) -> BackboneTask:
        points = [TaskPoint(values, dict(extents), calls) for (values, extents), calls in self.calls.items()]
        small = [point for point in points if point.operations <= _MOST_OPERATIONS]
        kept = sorted(small or [min(points, key=lambda p: p.operations)], key=lambda p: -p.calls * p.operations)
        return BackboneTask(self.backbone, self.stored, self.space, tuple(self.kernels), tuple(_spread(kept)))


def _spread(points: list[TaskPoint]) -> list[TaskPoint]:
    """At most `POINTS` of them, evenly over the range of operations, each with the calls of its neighbours."""
    if len(points) <= POINTS:
        return points
    ordered = sorted(points, key=lambda p: p.operations)
    groups = [ordered[i * len(ordered) // POINTS : (i + 1) * len(ordered) // POINTS] for i in range(POINTS)]
    return [
        replace(max(group, key=lambda p: p.calls), calls=sum(p.calls for p in group)) for group in groups
    ]
