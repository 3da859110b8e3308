"""Remainders by powers of two: right in our kernels where LLVM's vectorizer goes wrong on the naive loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from harness import TARGET, Compiled, dim, random
from tvm import te, tirx
from tvm.relax import op
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.schedules import plain_prim_func, schedule_prim_func
from tvm_dyn.schedules.remainders import hide_remainders

M, N = dim("m"), dim("n")


def _loops(shape: tuple, element: Callable) -> PrimFunc:
    x = te.placeholder((64,), "float32", name="x")
    shape = tuple(tirx.const(extent, "int64") if isinstance(extent, int) else extent for extent in shape)
    y = te.compute(shape, lambda i, j: element(x, i, j), name="y")
    return te.create_prim_func([x, y]).with_attr({"global_symbol": "main", "tirx.noalias": True})


def _row_of_four(x, i, j):
    return x[i % 3 * 4 + j % 4]


def _two_widths(x, _i, j):
    return x[j % 4] + x[j % 16]


# What LLVM 22.1.0 gets wrong, with an extent of the columns where it does: see tvm_dyn/schedules/remainders.py.
TRIGGERS = [((18, 64), _row_of_four, 64), ((M, N), _two_widths, 12)]


def _errors(func: PrimFunc, element: Callable, columns: int, target: Target) -> float:
    """The fraction of wrong elements."""
    kernel = tvm.compile(func, target)
    x = random((64,))
    y = tvm.runtime.empty((18, columns))
    kernel["main"](tvm.runtime.tensor(x), y)
    expected = element(x, np.arange(18)[:, None], np.arange(columns)[None])
    return float((y.numpy() != np.broadcast_to(expected, (18, columns))).mean())


@pytest.mark.parametrize("shape, element, columns", TRIGGERS)
@pytest.mark.parametrize("schedule", [plain_prim_func, schedule_prim_func])
def test_right_where_llvm_goes_wrong(shape, element, columns, schedule):
    func = schedule(_loops(shape, element), TARGET)
    for width in (1, 5, columns, 67) if columns == 12 else (columns,):
        assert _errors(func, element, width, TARGET) == 0


@pytest.mark.parametrize("shape, element, columns", TRIGGERS)
def test_naive_loops(shape, element, columns):
    """Documents what the guard is for; the host may lack wide registers, and later releases of LLVM are right."""
    if _errors(_loops(shape, element), element, columns, TARGET) > 0:
        pytest.xfail("LLVM's loop vectorizer is wrong here")
    pytest.skip("LLVM's loop vectorizer is right here: see whether the guard may go")


def test_what_is_hidden():
    def text(element: Callable) -> str:
        return hide_remainders(_loops((N, 64), element)).script()

    constant = [
        lambda x, i, j: x[j % 6],
        lambda x, i, j: x[j % 2],
        lambda x, i, j: x[j // 4],
        lambda x, i, j: x[j % 64],
    ]
    for visible in [*constant, lambda x, i, j: x[N % 4]]:
        assert "umul.fix" not in text(visible)
    for hidden in (lambda x, i, j: x[j % 4], lambda x, i, j: x[(i + j) % 16 // 2]):
        assert "umul.fix" in text(hidden)
    by_value = te.placeholder((N,), "int64", name="x")
    rest = te.compute((N,), lambda i: by_value[i] % 4, name="rest")
    assert "umul.fix" not in hide_remainders(te.create_prim_func([by_value, rest])).script()


def test_random_tiles():
    generator = np.random.default_rng()
    for trial in range(40):
        rank = int(generator.integers(1, 5))
        shape = [int(e) for e in generator.choice([1, 2, 3, 4, 5, 7, 8, 16], rank)]
        repeats = [int(r) for r in generator.integers(1, 8, rank)]
        kernel = Compiled([(shape, "float32")], lambda bb, x, repeats=repeats: bb.emit(op.tile(x, repeats)))
        x = random(shape, seed=trial)
        np.testing.assert_array_equal(kernel(x), np.tile(x, repeats), err_msg=f"{shape} x {repeats}")
