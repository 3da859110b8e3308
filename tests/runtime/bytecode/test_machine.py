"""Launches: waves, tasks, threads, and memory at every alignment."""

import threading
from array import array

import numpy as np
import pytest
from programs import COLUMN, ONE, TILE, bind, chain, normal, run

from tvm_dyn.runtime import threads
from tvm_dyn.runtime.bytecode.machine import Launch
from tvm_dyn.runtime.bytecode.recipe import Operand, Recipe, Step

CHAIN = chain("float32", [TILE, ONE, TILE], ("add", (0, 1)), ("tanh", (3,)), ("mul", (4, 2)))
SOFTMAX = Recipe(
    (Operand("float32", TILE),),
    (),
    (
        Step("rmax", (0,), "float32", "float32", COLUMN),
        Step("sub", (0, 1), "float32", "float32", TILE),
        Step("exp", (2,), "float32", "float32", TILE),
        Step("rsum", (3,), "float32", "float32", COLUMN),
        Step("div", (3, 4), "float32", "float32", TILE),
    ),
    (5,),
)


@pytest.fixture(params=[1, 2])
def tasks(request):
    threads.use_threads(request.param)
    yield request.param
    threads.use_threads(1)


def softmax(x):
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("rows, columns", [(0, 4), (1, 1), (1, 200_001), (2, 33), (31, 1023), (1000, 130), (70_000, 3)])
def test_rows_are_shared_among_tasks(rows, columns, tasks):
    x = normal(rows, columns)
    found = run(SOFTMAX, rows, columns, [x], [np.empty_like(x)])[0]
    if rows:
        np.testing.assert_allclose(found, softmax(x), rtol=3e-6, atol=1e-12)


def test_independent_programs_share_a_launch(tasks):
    count = 16
    shift = np.float32([0.5])
    pairs = [(normal(n * 777 + 1, seed=n), normal(n * 777 + 1, seed=99 + n)) for n in range(count)]
    results = [np.empty_like(x) for x, _ in pairs]
    bound = [bind(CHAIN, x.size, 1, [x, shift, y], [out]) for (x, y), out in zip(pairs, results, strict=True)]
    bases = array("q", [address for _, own in bound for address in own])
    Launch([[program for program, _ in bound]]).run(bases)
    for (x, y), found in zip(pairs, results, strict=True):
        np.testing.assert_allclose(found, np.tanh(x + shift) * y, rtol=1e-5, atol=1e-6)


def test_waves_run_one_after_another(tasks):
    n = 300_000
    x, ones, zero = normal(n), np.ones(n, "f4"), np.float32([0.0])
    first, second, third = (np.zeros(n, "f4") for _ in range(3))
    chained = [
        bind(CHAIN, n, 1, [x, zero, ones], [first]),
        bind(CHAIN, n, 1, [first, zero, ones], [second]),
        bind(CHAIN, n, 1, [second, zero, first], [third]),
    ]
    bases = array("q", [address for _, own in chained for address in own])
    Launch([[program] for program, _ in chained]).run(bases)
    expected = np.tanh(np.tanh(np.tanh(x)))
    np.testing.assert_allclose(second, np.tanh(np.tanh(x)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(third, expected * np.tanh(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [1, 3, 5, 15])
def test_operands_may_start_anywhere(offset):
    x, y = normal(2000 + offset)[offset:], normal(2000 + offset, seed=1)[offset:]
    out = np.empty(2000 + offset, "f4")[offset:]
    run(CHAIN, 2000, 1, [x, np.float32([1]), y], [out])
    np.testing.assert_allclose(out, np.tanh(x + 1) * y, rtol=1e-5, atol=1e-6)


def test_callers_in_several_threads_do_not_meet():
    x = normal(200, 500)
    expected, wrong = softmax(x), []

    def work(seed):
        own = np.ascontiguousarray(np.roll(x, seed, axis=1))
        for _ in range(50):
            found = run(SOFTMAX, 200, 500, [own], [np.empty_like(own)])[0]
            if not np.allclose(found, np.roll(expected, seed, axis=1), rtol=1e-5):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_memory_for_long_rows_is_given_back():
    from tvm_dyn.runtime.bytecode import machine

    x = normal(1, 8_000_000)
    found = run(SOFTMAX, 1, x.size, [x], [np.empty_like(x)])[0]
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-4)
    assert machine._arena.task_bytes == 0
    x = normal(3, 10)
    np.testing.assert_allclose(run(SOFTMAX, 3, 10, [x], [np.empty_like(x)])[0], softmax(x), rtol=1e-5)
