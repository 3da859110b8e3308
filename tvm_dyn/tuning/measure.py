"""Check and time a built candidate at several extents: what a worker does with an artifact.

Results are compared before anything is timed: at small extents with the unscheduled backbone, compiled for a plain CPU
without a vectorizer, at all others with the first candidate of the backbone, which was compared itself. Times are those
that the thread spends on the CPU, so that other processes hardly count; the least of several bursts is taken, and
bursts go on until two of the fastest agree, so that an outlier neither counts nor passes for the truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.errors import CompileError
from tvm_dyn.kernel_cases import outputs, points, random_arrays, tensors
from tvm_dyn.runtime.threads import use_threads
from tvm_dyn.schedules import plain_prim_func
from tvm_dyn.tuning.build import FUNCTION, Artifact
from tvm_dyn.tuning.records import StoredWorkload
from tvm_dyn.tuning.symbols import symbols_of

_PLAIN_POINTS = 1 << 25
"""Innermost statements that the unscheduled backbone runs at most for one check: 0.1 seconds."""
_TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.1}
"""Differences that count, relative to the root mean square of an output: only gross errors are sought."""
_BURST_SECONDS = 2e-3
_BURSTS = 12
_AGREE = 1.01
_SPENT_SECONDS = 0.5
"""Bursts of one shape end after this, but for three of them."""


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


def measure(workload: list[str], artifact: Artifact, extents: Sequence[tuple[int, ...]]) -> list[float]:
    """Seconds of a call of the candidate at each of these values of the backbone's symbols (see `symbols_of`).

    Raises CompileError where a result is wrong.
    """
    if workload[1] not in _task:
        _task.clear()
        _task[workload[1]] = _Task(StoredWorkload(workload))
    task = _task[workload[1]]
    use_threads(1)
    kernel = tvm.runtime.load_module(artifact.path)[FUNCTION]
    prepared = [(values, *_checked(task, kernel, artifact, values)) for values in sorted(extents, key=np.prod)]
    times = {values: _seconds(lambda call=call, given=given: call(*given)) for values, call, given in prepared}
    return [times[values] for values in extents]


def _checked(task: _Task, kernel: Callable, artifact: Artifact, values: tuple[int, ...]) -> tuple[Callable, list]:
    """The kernel and its arguments at these extents, once its results are right."""
    case = _case(task, values)
    given = _arguments(task, case, artifact, values)
    kernel(*given)
    backbone = task.stored.backbone
    assert backbone is not None
    places = [n for n, p in enumerate(backbone.params) if any(p.same_as(t) for t in tensors(backbone))]
    found = [given[places[index]].numpy() for index in outputs(backbone)]
    if case.expected is None:
        case.expected = found if not case.small else _reference(task, case, values)
    for array, expected in zip(found, case.expected, strict=True):
        _compare(array, expected, values)
    return kernel, given


def _case(task: _Task, values: tuple[int, ...]) -> _Case:
    if values not in task.cases:
        backbone = task.stored.backbone
        assert backbone is not None
        extents = dict(zip(symbols_of(backbone), values, strict=True))
        arrays = random_arrays(backbone, extents, np.random.default_rng(), positive=False)
        task.cases[values] = _Case(arrays, points(backbone, extents) <= _PLAIN_POINTS)
    return task.cases[values]


def _arguments(task: _Task, case: _Case, artifact: Artifact | None, values: tuple[int, ...]) -> list:
    """Fresh tensors, and the extents that are parameters."""
    backbone = task.stored.backbone
    assert backbone is not None
    written = outputs(backbone)
    arrays = [np.full_like(a, np.nan if a.dtype.kind == "f" else 0) if n in written else a
              for n, a in enumerate(case.arrays)]  # fmt: skip
    if artifact and artifact.packed:
        position, layout = artifact.packed
        arrays[position] = layout.pack(arrays[position])
    rest = iter([tvm.runtime.tensor(array) for array in arrays])
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


def _seconds(call: Callable[[], object]) -> float:
    """CPU seconds of a call: the least of several bursts, two of which agree."""
    call()
    start = time.thread_time()
    call()
    once = max(time.thread_time() - start, 1e-7)
    count = max(1, round(_BURST_SECONDS / once))
    fastest: list[float] = []
    spent = 0.0
    for number in range(_BURSTS):
        start = time.thread_time()
        for _ in range(count):
            call()
        took = time.thread_time() - start
        spent += took
        fastest = sorted([*fastest, took / count])[:2]
        agree = number >= 2 and fastest[1] <= _AGREE * fastest[0]
        if agree or (number >= 2 and spent > _SPENT_SECONDS):
            break
    return fastest[0]
