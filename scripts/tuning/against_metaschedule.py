"""What tuning costs beside stock MetaSchedule on the same backbone: python scripts/tuning/against_metaschedule.py.

MetaSchedule tunes static functions, each shape on its own, and goes on, round by round, until it is within 5 % of what
symbolic tuning found for the shape, or its trials are spent. The intrinsics that TVM imports in every one of its
processes (21 seconds) are replaced by nothing, which is in its favour. Run it with TVM_NUM_THREADS=1.
"""

from __future__ import annotations

import sys
import tempfile
import time
import types

import numpy as np
import tvm
from tvm import te, tirx

from tvm_dyn import hardware
from tvm_dyn.schedules import space_of
from tvm_dyn.schedules.backbone import normal_form
from tvm_dyn.tuning.database import TuningDatabase
from tvm_dyn.tuning.pool import LocalPool
from tvm_dyn.tuning.records import StoredWorkload
from tvm_dyn.tuning.tasks import BackboneTask, TaskPoint
from tvm_dyn.tuning.tuner import Tuner

SHAPES = [1, 7, 16, 37, 64, 100, 128, 256]
MANY = 128
DEPTH, COLUMNS = 768, 768
TRIALS, ROUND = 96, 16
CLOSE = 1.05


def stub_intrinsics() -> None:
    for name in ("cuda", "arm_cpu", "rocm", "hexagon", "riscv_cpu", "metal", "x86"):
        module = f"tvm.s_tir.tensor_intrin.{name}"
        sys.modules.setdefault(module, types.ModuleType(module))


def product(rows: int | tirx.Var) -> tirx.PrimFunc:
    a, b = te.placeholder((rows, DEPTH), "float32", "A"), te.placeholder((DEPTH, COLUMNS), "float32", "B")
    k = te.reduce_axis((0, DEPTH), "k")
    return te.create_prim_func([a, b, te.compute((rows, COLUMNS), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")])


def symbolic(target: tvm.target.Target) -> tuple[float, dict[int, float]]:
    """Seconds of tuning once for all shapes, and of a call at each."""
    found = normal_form(product(tirx.Var("rows", "int64")))
    assert found is not None
    backbone = found[1]
    space = space_of(backbone, target)
    assert space is not None
    extents = {"batch": 1, "columns": COLUMNS, "depth": DEPTH}
    points = tuple(TaskPoint((rows,), {**extents, "rows": rows}, 1.0) for rows in SHAPES)
    task = BackboneTask(backbone, StoredWorkload.of(backbone), space, ("product",), points)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, LocalPool(target) as pool:
        tuner = Tuner([task], target, TuningDatabase(folder), trials=64)
        tuner.run(pool)
    return time.perf_counter() - start, dict(zip(SHAPES, map(float, tuner.searches[0].best), strict=True))


def static(rows: int, goal: float, target: tvm.target.Target) -> tuple[float, float, int]:
    """Seconds of MetaSchedule's tuning of one shape, of a call, and its trials."""
    from tvm.s_tir import meta_schedule as ms

    module = tvm.IRModule({"main": product(rows).with_attr("global_symbol", "main")})
    space = ms.space_generator.PostOrderApply(
        sch_rules=ms.ScheduleRule.create("llvm"),
        postprocs=ms.Postproc.create("llvm"),
        mutator_probs=ms.Mutator.create("llvm"),
    )
    builder = ms.builder.LocalBuilder(initializer=stub_intrinsics, timeout_sec=30)
    start, trials, best = time.perf_counter(), 0, float("inf")
    with tempfile.TemporaryDirectory() as folder:
        database = ms.database.JSONDatabase(work_dir=folder)
        while trials < TRIALS and best > CLOSE * goal:
            trials += ROUND
            ms.tune_tir(
                module, target, work_dir=folder, max_trials_global=ROUND, num_trials_per_iter=ROUND, space=space,
                builder=builder, database=database, num_tuning_cores=2,
            )  # fmt: skip
            record = database.query_tuning_record(module, target, "main")
            best = min(float(np.mean([float(s) for s in record.run_secs])), best) if record else best
    return time.perf_counter() - start, best, trials


def main() -> None:
    stub_intrinsics()
    target = hardware.host_target()
    once, times = symbolic(target)
    print(f"symbolic: {once:.1f} s for all shapes")
    total = 0.0
    for rows in SHAPES:
        seconds, best, trials = static(rows, times[rows], target)
        total += seconds
        print(
            f"rows {rows:4}: MetaSchedule {seconds:6.1f} s, {trials} trials, {best * 1e6:9.1f} us; "
            f"symbolic {times[rows] * 1e6:9.1f} us",
            flush=True,
        )
    each = total / len(SHAPES)
    print(f"{len(SHAPES)} shapes: {total:.0f} s against {once:.1f} s, {total / once:.1f}x cheaper (measured)")
    print(f"{MANY} shapes: {each * MANY:.0f} s against {once:.1f} s, {each * MANY / once:.0f}x cheaper (projected)")


if __name__ == "__main__":
    main()
