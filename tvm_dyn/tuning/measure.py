"""Check and time a built candidate at several extents: what a worker does with an artifact.

Results are compared before anything is timed: at small extents with the unscheduled backbone, compiled for a plain CPU
without a vectorizer, at all others with the first candidate of the backbone, which was compared itself. Where it runs
and how it is timed is a matter of its `Site`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.errors import CompileError
from tvm_dyn.kernel_cases import outputs, points, random_arrays, tensors
from tvm_dyn.schedules import plain_prim_func
from tvm_dyn.schedules.packed_weights import with_transforms
from tvm_dyn.schedules.weight_panels import Layout
from tvm_dyn.tuning.build import FUNCTION, Artifact
from tvm_dyn.tuning.records import StoredWorkload
from tvm_dyn.tuning.sites import HERE, Kernel, Site
from tvm_dyn.tuning.symbols import symbols_of

_PLAIN_POINTS = 1 << 25
"""Innermost statements that the unscheduled backbone runs at most for one check: 0.1 seconds."""
_TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.1}
"""Differences that count, relative to the root mean square of an output: only gross errors are sought."""


@dataclass
class _Case:
    """A backbone at some extents: inputs, and what its outputs are, once known."""

    arrays: list[np.ndarray]
    small: bool
    expected: list[np.ndarray] | None = None


@dataclass
class _Task:
    """What a worker keeps of the backbone it works for."""

    stored: StoredWorkload
    cases: dict[tuple[int, ...], _Case] = field(default_factory=dict)
    plain: Callable | None = None


_task: dict[str, _Task] = {}


def measure(
    workload: list[str], artifact: Artifact, extents: Sequence[tuple[int, ...]], site: Site = HERE
) -> list[float]:
    """Seconds of a call of the candidate at each of these values of the backbone's symbols (see `symbols_of`).

    Raises CompileError where a result is wrong, and what ``site`` raises where it cannot run the candidate.
    """
    if workload[1] not in _task:
        _task.clear()
        _task[workload[1]] = _Task(StoredWorkload(workload))
    task = _task[workload[1]]
    with site.opened(artifact.path) as kernel:
        ordered = sorted(extents, key=np.prod)
        given = {values: _checked(task, kernel, artifact, values) for values in ordered}
        times = {values: kernel.seconds(given[values]) for values in ordered}
    return [times[values] for values in extents]


def _checked(task: _Task, kernel: Kernel, artifact: Artifact, values: tuple[int, ...]) -> list:
    """The arguments of the kernel at these extents, once its results are right."""
    case = _case(task, values)
    given = _arguments(task, case, artifact.packed, values, kernel.tensor)
    kernel.call(given)
    backbone = task.stored.backbone
    assert backbone is not None
    places = [n for n, p in enumerate(backbone.params) if any(p.same_as(t) for t in tensors(backbone))]
    found = [given[places[index]].numpy() for index in outputs(backbone)]
    if case.expected is None:
        case.expected = found if not case.small else _reference(task, case, values)
    for array, expected in zip(found, case.expected, strict=True):
        _compare(array, expected, values)
    return given


def _case(task: _Task, values: tuple[int, ...]) -> _Case:
    if values not in task.cases:
        backbone = task.stored.backbone
        assert backbone is not None
        extents = dict(zip(symbols_of(backbone), values, strict=True))
        arrays = random_arrays(backbone, extents, np.random.default_rng(), positive=False)
        arrays = [with_transforms(array) for array in arrays]
        task.cases[values] = _Case(arrays, points(backbone, extents) <= _PLAIN_POINTS)
    return task.cases[values]


def _arguments(
    task: _Task,
    case: _Case,
    packed: tuple[int, Layout] | None,
    values: tuple[int, ...],
    tensor: Callable[[np.ndarray], Any] = tvm.runtime.tensor,
) -> list:
    """Fresh tensors, and the extents that are parameters."""
    backbone = task.stored.backbone
    assert backbone is not None
    written = outputs(backbone)
    arrays = [np.full_like(a, np.nan if a.dtype.kind == "f" else 0) if n in written else a
              for n, a in enumerate(case.arrays)]  # fmt: skip
    if packed:
        position, layout = packed
        arrays[position] = layout.pack(arrays[position])
    rest = iter([tensor(array) for array in arrays])
    known = dict(zip(symbols_of(backbone), values, strict=True))
    return [next(rest) if isinstance(p.ty, tirx.BufferType) else known[p] for p in backbone.params]


def _reference(task: _Task, case: _Case, values: tuple[int, ...]) -> list[np.ndarray]:
    backbone = task.stored.backbone
    assert backbone is not None
    if task.plain is None:
        task.plain = _unscheduled(backbone)
    given = _arguments(task, case, None, values)
    task.plain(*given)
    arrays = [argument for argument in given if not isinstance(argument, int)]
    return [arrays[index].numpy() for index in outputs(backbone)]


def _unscheduled(backbone: PrimFunc) -> Callable:
    target = Target({"kind": "llvm", "opt-level": 1})
    alone = plain_prim_func(backbone, target).with_attr({"global_symbol": FUNCTION, "tirx.noalias": True})
    return tvm.compile(tvm.IRModule({FUNCTION: alone}), target)[FUNCTION]


def _compare(found: np.ndarray, expected: np.ndarray, values: tuple[int, ...]) -> None:
    if not expected.size:
        return
    left, right = found.astype("float64"), expected.astype("float64")
    allowed = _TOLERANCE.get(expected.dtype.name, 0.0) * np.sqrt(np.mean(right**2))
    wrong = ~(np.abs(left - right) <= allowed)
    if wrong.any():
        raise CompileError(f"wrong result at extents {values}: {int(wrong.sum())} of {wrong.size} elements are off")
