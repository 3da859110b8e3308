"""Seconds of several variants of one backbone at many shapes, measured in turns under the same conditions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx
from tvm.target import Target

from tvm_dyn.bench import timing
from tvm_dyn.hardware import for_code_generation
from tvm_dyn.kernel_cases import outputs, random_arrays
from tvm_dyn.pipeline import without_needless_passes
from tvm_dyn.runtime.threads import use_threads
from tvm_dyn.runtime.variants import Variant
from tvm_dyn.schedules import schedule_prim_func
from tvm_dyn.schedules.backbone import has_constant_operand
from tvm_dyn.schedules.replay import record, replay
from tvm_dyn.schedules.space import Space
from tvm_dyn.schedules.weight_panels import Layout, pack
from tvm_dyn.tuning.symbols import symbols_of
from tvm_dyn.tuning.tasks import BackboneTask, TaskPoint

_ROUNDS = 10
_BURST_SECONDS = 0.5e-3
_WARM_CALLS = 3
"""Untimed calls before each burst: others have filled the cache with weights in another layout since the last one."""


@dataclass(frozen=True)
class VariantTimes:
    """What was measured: seconds, [points, variants]."""

    variants: tuple[Variant, ...]
    points: tuple[TaskPoint, ...]
    seconds: NDArray[np.float64]


@dataclass(frozen=True)
class _Built:
    kernel: Callable[..., Any]
    packed: tuple[int, Layout] | None


def measure_variants(task: BackboneTask, tiles: Sequence[Any], target: Target, threads: int) -> VariantTimes:
    """Build the backbone with each of the tiles, and time all of them at the points of the task."""
    built = _build(task, tiles, target)
    use_threads(threads)
    seconds = np.array([_at(task, point, built, threads) for point in task.points])
    return VariantTimes(tuple(map(as_variant, tiles)), task.points, seconds)


def some_tiles(space: Space, most: int) -> list[Any]:
    """At most so many tiles of a space: those that are taken untuned, and others drawn at random, always the same."""
    usual = list(dict.fromkeys(space.untuned))
    others = [tile for tile in space.candidates if tile not in usual]
    drawn = random.Random(0).sample(others, min(len(others), max(most - len(usual), 0)))
    return [*usual, *(tile for tile in others if tile in drawn)]


def as_variant(tile: Any) -> Variant:
    """The decisions of a tile."""
    return Variant(type(tile).__name__, dict(vars(tile)))


def _build(task: BackboneTask, tiles: Sequence[Any], target: Target) -> list[_Built]:
    chosen = for_code_generation(target)
    functions, layouts = {}, []
    for number, tile in enumerate(tiles):
        kernel, packed = replay(record(task.backbone, tile), task.backbone), None
        if has_constant_operand(kernel):
            found = pack(kernel, chosen)
            kernel, packed = found.func, (found.position, found.layout)
        layouts.append(packed)
        name = f"variant{number}"
        scheduled = schedule_prim_func(kernel, chosen)
        functions[name] = scheduled.with_attr({"global_symbol": name, "tirx.noalias": True})
    with without_needless_passes():
        library = tvm.compile(tvm.IRModule(functions), chosen)
    return [_Built(library[name], packed) for name, packed in zip(functions, layouts, strict=True)]


def _at(task: BackboneTask, point: TaskPoint, built: Sequence[_Built], threads: int) -> list[float]:
    values = dict(zip(symbols_of(task.backbone), point.values, strict=True))
    arrays = random_arrays(task.backbone, values, np.random.default_rng(0), positive=False)
    shared: dict[tuple[int, int], tvm.runtime.Tensor] = {}

    def tensor(number: int, packed: tuple[int, Layout] | None) -> tvm.runtime.Tensor:
        """One copy of each operand in each layout: variants with the same one find the same cache."""
        layout = packed[1] if packed and packed[0] == number else None
        key = (number, layout.width if layout else 0)
        if key not in shared:
            shared[key] = tvm.runtime.tensor(layout.pack(arrays[number]) if layout else arrays[number])
        return shared[key]

    def arguments(packed: tuple[int, Layout] | None) -> list[Any]:
        numbers = iter(range(len(arrays)))
        params = task.backbone.params
        return [tensor(next(numbers), packed) if isinstance(p.ty, tirx.BufferType) else values[p] for p in params]

    given = [arguments(variant.packed) for variant in built]
    _check(task, built, given)
    calls = [lambda k=b.kernel, a=a: k(*a) for b, a in zip(built, given, strict=True)]
    return _best_of_turns(calls, timing.clock(threads))


def _best_of_turns(calls: Sequence[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    """Seconds of each call in its fastest burst."""
    best = [np.inf] * len(calls)
    for _ in range(_ROUNDS):
        for n, call in enumerate(calls):
            for _ in range(_WARM_CALLS):
                call()
            start = clock()
            call()
            count = max(round(_BURST_SECONDS / max(clock() - start, 1e-7)), 1)
            start = clock()
            for _ in range(count):
                call()
            best[n] = min(best[n], (clock() - start) / count)
    return best


def _check(task: BackboneTask, built: Sequence[_Built], given: Sequence[list[Any]]) -> None:
    """All variants agree with the first one: a wrong one could be fast."""
    expected: list[NDArray] = []
    for variant, arguments in zip(built, given, strict=True):
        tensors = [a for a in arguments if not isinstance(a, int)]
        for n in outputs(task.backbone):  # else what a variant leaves out would be what the one before wrote
            tensors[n].copyfrom(_cleared(tensors[n].numpy()))
        variant.kernel(*arguments)
        found = [tensors[n].numpy() for n in outputs(task.backbone)]
        expected = expected or found
        for one, other in zip(found, expected, strict=True):
            if not np.allclose(one, other, rtol=1e-3, atol=1e-3 * (np.abs(other).max(initial=0) + 1e-9)):
                raise AssertionError("variants of a backbone differ in their results")


def _cleared(array: NDArray) -> NDArray:
    return np.full_like(array, np.nan if array.dtype.kind == "f" else 0)
