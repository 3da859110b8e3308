"""Axes cut where they are divided: right at every extent, and no division left in the inner loop."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Compiled, dim, random, scheduled
from tvm import tirx
from tvm.relax import op

from tvm_dyn.schedules.common import collect

N = dim("n")


CASES = {
    "tile": ([((N, 4, 5), "float32")], lambda bb, x: bb.emit(op.tile(x, (6, 4, 2))), lambda x: np.tile(x, (6, 4, 2))),
    "long tile": ([((64,), "float32")], lambda bb, x: bb.emit(op.tile(x, (100,))), lambda x: np.tile(x, 100)),
    "repeat": ([((N, 8), "float32")], lambda bb, x: bb.emit(op.repeat(x, 3, 1)), lambda x: np.repeat(x, 3, 1)),
    "repeat rows": ([((3, N), "int8")], lambda bb, x: bb.emit(op.repeat(x, 4, 0)), lambda x: np.repeat(x, 4, 0)),
    "both": (
        [((N, 6), "float32")],
        lambda bb, x: bb.emit(op.exp(bb.emit(op.tile(bb.emit(op.repeat(x, 2, 1)), (1, 4))))),
        lambda x: np.exp(np.tile(np.repeat(x.astype("float64"), 2, 1), (1, 4))),
    ),
    "two divisors": (
        [((N, 16), "float32"), ((N, 4), "float32")],
        lambda bb, x, y: bb.emit(op.add(bb.emit(op.tile(x, (1, 6))), bb.emit(op.tile(y, (1, 24))))),
        lambda x, y: np.tile(x, (1, 6)) + np.tile(y, (1, 24)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results(name):
    inputs, graph, reference = CASES[name]
    kernel = Compiled(inputs, graph)
    for n in (0, 1, 7, 16, 17, 400):
        arrays = [random([n if e is N else e for e in shape], dtype, n) for shape, dtype in inputs]
        np.testing.assert_allclose(kernel(*arrays), reference(*arrays), rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_inner_loops_do_not_divide(name):
    inputs, graph, _ = CASES[name]
    for func in scheduled(inputs, graph):
        for loop in collect(func.body, tirx.For):
            if not collect(loop.body, tirx.For):
                divisions = [node for kind in (tirx.FloorDiv, tirx.FloorMod) for node in collect(loop.body, kind)]
                assert not any(v.same_as(loop.loop_var) for d in divisions for v in collect(d, tirx.Var))
