"""Calls from several Python threads are right, and each call uses the threads it was told to."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm_ffi
from modules import aligned, compile_outputs, param
from tvm import relax

import tvm_dyn
from tvm_dyn.errors import InvalidInputError
from tvm_dyn.runtime import threads

pool_size = tvm_ffi.get_global_func("runtime.NumThreads")


def test_eight_threads_with_shapes_of_their_own():
    library = compile_outputs(
        lambda x, w: [relax.op.matmul(x, w), relax.op.exp(x)],
        param("x", "float32", "n", 32),
        param("w", "float32", 32, 24),
    )
    w = aligned((32, 24))
    barrier = threading.Barrier(8)

    def work(index):
        x = np.random.default_rng(index).standard_normal((17 * index + 1, 32)).astype("float32")
        product = x.astype("float64") @ w
        barrier.wait()
        for _ in range(50):
            y, e = library(x, w)
            np.testing.assert_allclose(y, product, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(e, np.exp(x), rtol=1e-4)
            with pytest.raises(InvalidInputError):
                library(x[:, :31], w)

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(work, range(8)))


def in_new_thread(function):
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def test_a_thread_can_go_from_one_to_many_and_back():
    def work():
        counts = []
        for count in (1, 2, 1, 2):
            threads.use_threads(count)
            counts.append((threads.current.count, pool_size() if count > 1 else 1))
        return counts

    expected = 2 if threads.available_cores() >= 2 else 1
    assert in_new_thread(work) == [(1, 1), (2, expected), (1, 1), (2, expected)]


def test_affinity_is_left_alone():
    def work():
        before = os.sched_getaffinity(0)
        threads.use_threads(2)
        return before, os.sched_getaffinity(0)

    before, after = in_new_thread(work)
    assert before == after


def test_the_choice_is_per_thread():
    threads.use_threads(1)
    assert in_new_thread(lambda: threads.current.count) == 0
    assert threads.current.count == 1


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"TVM_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"TVM_NUM_THREADS": "none"}, threads.available_cores()),
        ({}, threads.available_cores()),
    ],
)
def test_default(monkeypatch, variables, expected):
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert threads.resolve_num_threads(None) == expected


def test_an_explicit_number_wins(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    pair.export(tmp_path / "pair.so")
    assert tvm_dyn.load(tmp_path / "pair.so").num_threads == 2
    assert tvm_dyn.load(tmp_path / "pair.so", num_threads=1).num_threads == 1
    with pytest.raises(ValueError, match="num_threads=0"):
        tvm_dyn.load(tmp_path / "pair.so", num_threads=0)


def test_one_thread_means_no_worker_threads():
    code = """
import threading, numpy as np, psutil, sys
import tvm_dyn
from modules import compile_outputs, param
library = compile_outputs(lambda x: [x + x], param("x", "float32", "n"))
library(np.ones(1 << 20, "float32"))
before = psutil.Process().num_threads()
threads = int(sys.argv[1])
library._num_threads = threads
library(np.ones(1 << 20, "float32"))
print(psutil.Process().num_threads() - before)
"""
    folders = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(tvm_dyn.__file__))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    created = [
        int(
            subprocess.run(
                [sys.executable, "-c", code, str(count)],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for count in (1, 3)
    ]
    assert created == [0, max(3, threads.available_cores()) - 1]
