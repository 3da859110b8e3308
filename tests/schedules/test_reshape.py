"""Reshapes that stay kernels: the same elements in the same order at every shape."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from harness import TARGET, dim, fused, prim_funcs, random
from tvm import relax
from tvm.relax import op

from tvm_dyn.schedules import reshape, schedule_prim_func

H, W = dim("h"), dim("w")


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_merged_axes(dtype):
    inputs = [((H, 6, W), dtype)]
    (func,) = prim_funcs(fused(inputs, lambda bb, x: bb.emit(op.reshape(x, relax.ShapeExpr([H * 2, 3 * W])))))
    assert reshape.apply(func, TARGET) is not None
    lib = tvm.compile(schedule_prim_func(func, TARGET).with_attr("global_symbol", "main"), TARGET)
    for h, w in [(1, 1), (2, 5), (3, 16), (7, 17), (31, 129)]:
        x = random((h, 6, w), "int64").astype(dtype)
        result = tvm.runtime.empty((h * 2, 3 * w), dtype)
        lib["main"](tvm.runtime.tensor(x), result)
        np.testing.assert_array_equal(result.numpy(), x.reshape(h * 2, 3 * w))
