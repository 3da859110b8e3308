"""How well variants are chosen: regret on held-out matrices, of the closed form, of trees, of both, and of one for all.

Each case is a backbone (a pair of K and N, a convolution) with up to 24 variants, all measured at every shape. A
chooser is taught by all other cases, never by this one, and picks a variant for each shape; its regret is the time of
that variant over the least measured, less 1. "best single" is the variant that is best for the case as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import xgboost
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tvm_dyn import api
from tvm_dyn.bench.case import Shape, parse_graph, weight
from tvm_dyn.bench.machine import machine, versions
from tvm_dyn.bench.report import geomean, shape_name
from tvm_dyn.bench.suites.conv import Convolution, convolution_case
from tvm_dyn.bench.variant_times import VariantTimes, measure_variants, some_tiles
from tvm_dyn.hardware import host_target
from tvm_dyn.pipeline import fused
from tvm_dyn.runtime.calibration import Sample
from tvm_dyn.runtime.cost_model import CostModel, fit_trees
from tvm_dyn.runtime.features import FEATURES, features
from tvm_dyn.runtime.files import replace_text
from tvm_dyn.runtime.occupancy import Machine, estimate
from tvm_dyn.runtime.occupancy_cpu import CpuMachine
from tvm_dyn.tuning.profile import ShapeProfile
from tvm_dyn.tuning.tasks import POINTS, BackboneTask, tasks_of_kernels

VARIANTS = 24
DENSE = [(768, 768), (768, 3072), (3072, 768), (384, 1536), (512, 2048), (1024, 1024)]
ROWS = [
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 28, 32, 37, 48, 56, 64, 80, 100, 128, 150),
    *(193, 256, 384, 511),
]
BATCHED = [(64, 64), (64, 128), (128, 64), (64, 100), (100, 64), (256, 256)]
BATCHES = [(b, m) for b in (1, 3, 12) for m in (1, 2, 5, 7, 16, 24, 37, 64, 100, 128)]
IMAGES = [(48, 48), (64, 64), (96, 96), (128, 128), (64, 192), (256, 256)]
SIDES = [(1, s, s) for s in (5, 7, 8, 11, 14, 16, 19, 23, 28, 37, 56)] + [
    (1, 7, 9),
    (1, 19, 31),
    (4, 7, 7),
    (4, 14, 14),
]
CHOOSERS = ("occupancy", "xgboost", "occupancy_xgboost", "best_single", "oracle")

_DENSE_GRAPH = "(float[M, {k}] x) => (float[M, {n}] y) {{ y = MatMul(x, weights) }}"
_BATCHED_GRAPH = "(float[B, M, {k}] x, float[B, {k}, {n}] z) => (float[B, M, {n}] y) {{ y = MatMul(x, z) }}"


@dataclass(frozen=True)
class RegretCase:
    """A model of one backbone, and the shapes it is measured at."""

    kind: str
    name: str
    model: Callable[[], onnx.ModelProto]
    shapes: Sequence[Shape]


@dataclass(frozen=True)
class Row:
    """What a chooser picked at a shape."""

    suite: str
    kind: str
    case: str
    shape: Mapping[str, int]
    threads: int
    chooser: str
    variant: str
    seconds: float
    best_seconds: float
    regret: float


def cases() -> list[RegretCase]:
    """Dense layers, batched products, convolutions."""
    dense = [
        RegretCase("dense", f"dense {k}x{n}", lambda k=k, n=n: _dense(k, n), [{"M": m} for m in ROWS]) for k, n in DENSE
    ]
    batched = [
        RegretCase(
            "batched",
            f"batched {k}x{n}",
            lambda k=k, n=n: parse_graph(_BATCHED_GRAPH.format(k=k, n=n), {}),
            [{"B": b, "M": m} for b, m in BATCHES],
        )
        for k, n in BATCHED
    ]
    sides = [dict(zip("NHW", side, strict=True)) for side in SIDES]
    convolutions = [
        RegretCase("conv", f"conv {c}x{f}", convolution_case(f"{c}x{f}", Convolution(c, f, 3), []).model, sides)
        for c, f in IMAGES
    ]
    return [*dense, *batched, *convolutions]


def _dense(k: int, n: int) -> onnx.ModelProto:
    return parse_graph(_DENSE_GRAPH.format(k=k, n=n), {"weights": weight("regret", k, n, fan_in=k)})


def run(threads: int, pattern: str, json_file: Path | None, out: Console, err: Console) -> list[Row]:
    """Measure the cases whose name contains ``pattern`` (at least two of them), and show what choosers make of it."""
    chosen = [case for case in cases() if pattern in case.name]
    if len(chosen) < 2:
        raise ValueError(f"{len(chosen)} cases have {pattern!r} in their names: it takes two, one to learn from")
    measured: dict[str, VariantTimes] = {}
    with err.status("start") as status:
        for case in chosen:
            status.update(f"{case.name} on {threads} thread{'s' if threads > 1 else ''} ...")
            measured[case.name] = _measured(case, threads)
    rows = [row for case in chosen for row in _rows(case, measured, threads)]
    out.print(_summary(rows, threads))
    if json_file is not None:
        whole = {"machine": machine(), "versions": versions(), "rows": [asdict(row) for row in rows]}
        replace_text(json_file, json.dumps({**whole, "summary": _figures(rows)}, indent=1) + "\n")
    return rows


def _measured(case: RegretCase, threads: int) -> VariantTimes:
    target = host_target(num_cores=threads)
    task = backbone_task(case, target)
    return measure_variants(task, some_tiles(task.space, VARIANTS), target, threads)


def backbone_task(case: RegretCase, target) -> BackboneTask:
    """The only backbone of the model, with a point for each shape of the case."""
    kernels = fused(api.import_model(case.model()), target)
    points, task = [], None
    for start in range(0, len(case.shapes), POINTS):
        profile = ShapeProfile.of_counts((shape, 1) for shape in case.shapes[start : start + POINTS])
        (task,) = tasks_of_kernels(kernels, target, profile)
        points += task.points
    assert task is not None
    return replace(task, points=tuple(points))


def _rows(case: RegretCase, measured: Mapping[str, VariantTimes], threads: int) -> Iterator[Row]:
    """What choosers that know all cases but this one pick here."""
    found = measured[case.name]
    learned = [sample for name, times in measured.items() if name != case.name for sample in _samples(times, threads)]
    best = found.seconds.min(axis=1)
    for chooser, predicted in _predictions(found, learned, threads).items():
        for point, seconds, least, row in zip(found.points, found.seconds, best, predicted, strict=True):
            pick = int(row.argmin())
            yield Row(
                "regret",
                case.kind,
                case.name,
                dict(point.extents),
                threads,
                chooser,
                found.variants[pick].name,
                float(seconds[pick]),
                float(least),
                float(seconds[pick] / least - 1),
            )


def _samples(times: VariantTimes, threads: int) -> Iterator[Sample]:
    for point, row in zip(times.points, times.seconds, strict=True):
        for variant, seconds in zip(times.variants, row, strict=True):
            yield Sample(variant, point.extents, float(seconds), threads)


def _predictions(found: VariantTimes, learned: Sequence[Sample], threads: int) -> dict[str, NDArray]:
    """Of each chooser what it takes the seconds to be, [points, variants], or something in the same order."""
    here = Machine.for_target(host_target(num_cores=threads))
    extents = [point.extents for point in found.points]
    relative = found.seconds / found.seconds.min(axis=1, keepdims=True)
    single = np.log(relative).mean(axis=0)
    predicted = (
        CostModel(here, "closed form").seconds(found.variants, extents, threads),
        _trees_alone(found, learned, here, threads),
        CostModel.fit(learned, here, "here").seconds(found.variants, extents, threads),
        np.broadcast_to(single, found.seconds.shape),
        found.seconds,
    )
    return dict(zip(CHOOSERS, predicted, strict=True))


def _trees_alone(found: VariantTimes, learned: Sequence[Sample], here: Machine, threads: int) -> NDArray:
    """The same trees without the closed form: they predict the time of a multiply-add."""
    kept = [n for n, name in enumerate(FEATURES) if name != "log_seconds" and not name.startswith("share_")]
    sums = FEATURES.index("log_sums")
    device = here.device
    assert isinstance(device, CpuMachine)

    def columns(samples: Sequence[Sample]) -> NDArray:
        found = [(s, estimate(s.variant, s.extents, here, s.threads)) for s in samples]
        return np.vstack([features(s.variant, s.extents, e, device, s.threads) for s, e in found])

    known = columns(learned)
    per_sum = np.log([sample.seconds for sample in learned]) - known[:, sums] * np.log(2)
    trees = fit_trees(known[:, kept], per_sum)
    asked = columns([*_samples(found, threads)])
    return trees.predict(xgboost.DMatrix(asked[:, kept])).reshape(found.seconds.shape)


def _figures(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Mean (geometric) and worst regret by kind of backbone and chooser."""
    kinds = [*dict.fromkeys(row.kind for row in rows)]
    groups = [(kind, c, [r for r in rows if r.kind == kind and r.chooser == c]) for kind in kinds for c in CHOOSERS]
    groups += [("all", c, [r for r in rows if r.chooser == c]) for c in CHOOSERS]
    return [
        {
            "kind": kind,
            "chooser": chooser,
            "shapes": len(found),
            "regret": geomean(1 + row.regret for row in found) - 1,
            "worst": max(row.regret for row in found),
        }
        for kind, chooser, found in groups
    ]


def _summary(rows: Sequence[Row], threads: int) -> Table:
    title = f"regret on held-out backbones, {threads} thread{'s' if threads > 1 else ''}"
    table = Table(title=title, title_justify="left")
    for column in ("backbones", "chooser", "shapes", "mean", "worst", "at"):
        table.add_column(column, justify="left" if column in ("backbones", "chooser", "at") else "right")
    for figure in _figures(rows):
        own = [r for r in rows if r.chooser == figure["chooser"] and figure["kind"] in (r.kind, "all")]
        worst = max(own, key=lambda row: row.regret)
        at = f"{worst.case}: {shape_name(worst.shape)}"
        regrets = [f"{figure[key]:.2%}" for key in ("regret", "worst")]
        table.add_row(figure["kind"], figure["chooser"], str(figure["shapes"]), *regrets, at)
    return table
