"""Every element of a range once, whatever its extent: in fours of vectors, vectors, halves of a vector."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from harness import Compiled, dim, random
from tvm import tirx
from tvm.relax import op

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.sweep import sweep

EXTENTS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 128, 257]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_each_element_once(lanes, together):
    n = tirx.Var("n", "int64")
    x = tirx.decl_buffer((n,), "int32")
    body = sweep(n, lanes, lambda _lane, k: emit.store(x, emit.load(x, k) + 1, k), together)
    kernel = tvm.compile(tirx.PrimFunc([x], body).with_attr("global_symbol", "main"))["main"]
    for extent in EXTENTS:
        counts = tvm.runtime.tensor(np.zeros(extent, "int32"))
        kernel(counts)
        assert (counts.numpy() == 1).all()


@pytest.mark.parametrize("lanes", [4, 16])
def test_lanes_belong_to_elements(lanes):
    n = tirx.Var("n", "int64")
    x, y = tirx.decl_buffer((n,), "int32"), tirx.decl_buffer((4 * lanes,), "int32")
    body = sweep(n, lanes, lambda lane, k: emit.store(y, emit.load(y, lane) + emit.load(x, k), lane))
    kernel = tvm.compile(tirx.PrimFunc([x, y], body).with_attr("global_symbol", "main"))["main"]
    for extent in EXTENTS:
        values = random((extent,), "int32", seed=extent)
        sums = tvm.runtime.tensor(np.zeros(4 * lanes, "int32"))
        kernel(tvm.runtime.tensor(values), sums)
        assert sums.numpy().sum() == values.sum()


def test_costly_elements_at_every_extent():
    n = dim("n")
    kernel = Compiled([((n,), "float32")], lambda bb, x: bb.emit(op.sigmoid(x)))
    for extent in [*EXTENTS, 1023, 1024, 4097, 70001]:
        x = random((extent,), seed=extent)
        np.testing.assert_allclose(kernel(x), 1 / (1 + np.exp(-x.astype("float64"))), rtol=1e-6)
