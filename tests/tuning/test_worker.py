"""Workers: jobs that fail, crash and hang cost themselves only."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from tuning_cases import TARGET, product, trace_of
from tvm import te, tirx

from tvm_dyn.schedules.packed_weights import pack, with_transforms
from tvm_dyn.schedules.window import Axis
from tvm_dyn.tuning.pool import LocalPool
from tvm_dyn.tuning.records import StoredWorkload, trace_json
from tvm_dyn.tuning.worker import JobFailure, Worker, WorkerFailure


@pytest.fixture(scope="module")
def pool():
    with LocalPool(TARGET) as pool:
        yield pool


def test_a_worker_survives_a_job_that_raises():
    worker = Worker()
    try:
        first = worker.call("ping", timeout=60)
        with pytest.raises(JobFailure, match="TypeError"):
            worker.call("ping", "too", "many", timeout=60)
        assert worker.call("ping", timeout=60) == first != os.getpid()
    finally:
        worker.stop()


def test_a_worker_that_hangs_or_dies_is_replaced():
    worker = Worker()
    try:
        first = worker.call("ping", timeout=60)
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(WorkerFailure, match="took more than"):
            worker.call("ping", timeout=0.3)
        second = worker.call("ping", timeout=60)
        os.kill(second, signal.SIGSEGV)
        with pytest.raises(WorkerFailure, match="SIGSEGV"):
            worker.call("ping", timeout=60)
        assert len({first, second, worker.call("ping", timeout=60)}) == 3
    finally:
        worker.stop()


def test_candidates_are_built_checked_and_timed(pool):
    backbone = product(48, 40)
    traces = [trace_json(trace_of(backbone, vectors=v)) for v in (1, 2)]
    extents = [[(1,), (7,), (64,)]] * 2
    outcomes = dict(pool.evaluate(StoredWorkload.of(backbone), traces, extents))
    assert all(0 < s < 1e-2 for n in (0, 1) for s in outcomes[n]) and len(outcomes[0]) == 3
    assert outcomes[0][2] > outcomes[0][0]


def test_a_candidate_with_a_wrong_result_is_no_candidate(pool):
    backbone = product(48, 40)
    artifacts = pool._build(StoredWorkload.of(backbone), [trace_json(trace_of(backbone))])
    outcome = pool._measured(StoredWorkload.of(_doubled()), artifacts[0], [(7,)])
    assert isinstance(outcome, str) and "wrong result at extents (7,)" in outcome


def _doubled():
    """The product of `test_a_candidate...`, twice as large."""
    rows = tirx.Var("m", "int64")
    a, b = te.placeholder((rows, 48), "float32", "A"), te.placeholder((48, 40), "float32", "B")
    k = te.reduce_axis((0, 48), "k")
    return te.create_prim_func([a, b, te.compute((rows, 40), lambda i, j: te.sum(a[i, k] * b[k, j] * 2.0, k), "C")])


def test_a_trace_that_does_not_fit_does_not_build(pool):
    backbone = product(48, 40)
    trace = trace_json(trace_of(backbone))
    trace[0][1][1][1] = '"PackedTile"'
    ((_, outcome),) = pool.evaluate(StoredWorkload.of(backbone), [trace], [[(7,)]])
    assert isinstance(outcome, str) and "does not build" in outcome


def test_random_panels_of_small_windows_hold_their_transforms():
    extent = tirx.Var("h", "int64")
    axis = Axis(extent, extent, kernel=3, stride=1, dilation=1, before=1, after=1)
    weight = np.random.default_rng(0).standard_normal((64, 32, 3, 3)).astype("float32")
    packed = pack(weight, [axis, axis], TARGET)
    spoilt = packed.copy()
    spoilt[:, 9:] = 0
    assert packed.shape[1] == 45
    np.testing.assert_allclose(with_transforms(spoilt), packed, rtol=1e-5, atol=1e-6)
    assert with_transforms(packed[:, :9]).shape[1] == 9
