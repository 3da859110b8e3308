"""Intermediates of a row that are computed where the result goes, divisions that become multiplications."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from harness import TARGET, Compiled, dim, fused, prim_funcs, random, scheduled
from tvm import te
from tvm.relax.op import nn
from tvm.s_tir.schedule import Schedule

from tvm_dyn.schedules import schedule_prim_func
from tvm_dyn.schedules.common import inline_spatial
from tvm_dyn.schedules.in_place import compute_in_results
from tvm_dyn.schedules.reciprocals import multiply_by_reciprocals
from tvm_dyn.schedules.stage import parse

M, N = dim("m"), dim("n")
X = [((M, N), "float32")]
WIDTHS = [1, 3, 15, 16, 17, 63, 64, 65, 79, 80, 127, 128, 131, 1031]


def _softmax(bb, x):
    return bb.emit(nn.softmax(x))


def _stages(graph):
    (func,) = prim_funcs(fused(X, graph))
    sch = Schedule(func)
    inline_spatial(sch)
    stages = parse(sch.mod["main"])
    assert stages is not None
    return stages, list(func.params)


def test_exponentials_go_where_the_result_goes():
    stages, params = _stages(_softmax)
    result = stages[-1].body.buffer
    made = compute_in_results(stages, params)
    assert made[1].body.buffer.same_as(result) and made[-1].body.buffer.same_as(result)
    assert not stages[1].body.buffer.same_as(result)
    assert "scratch1" in scheduled(X, _softmax)[0].script()  # the maximum and the sum: numbers, no row
    assert "T.alloc_buffer((n,))" not in scheduled(X, _softmax)[0].script()


@pytest.mark.parametrize("n", WIDTHS)
def test_the_overlapping_tail_scales_once(n):
    x = random((5, n), seed=n)
    e = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    np.testing.assert_allclose(SOFTMAX(x), e / e.sum(-1, keepdims=True), rtol=2e-6, atol=1e-9)


SOFTMAX = Compiled(X, _softmax)


def test_masked_and_not_finite_rows():
    x = random((4, 37))
    x[0, 5:] = -np.inf
    x[1, 7] = np.nan
    x[2, 3] = np.inf
    x[3] = -np.inf
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
        expected = e / e.sum(-1, keepdims=True)
    np.testing.assert_allclose(SOFTMAX(x), expected, rtol=2e-6, atol=1e-9)


def test_sums_of_exponentials_have_a_reciprocal():
    stages, _ = _stages(_softmax)
    assert "T.float32(1.0) /" in multiply_by_reciprocals(stages, 1)[-1].body.script()


def test_other_divisors_stay_divisors():
    """The reciprocal of a denormal number is infinite, the quotient is not."""
    x, k = te.placeholder((M, N), name="x"), te.reduce_axis((0, N))
    total = te.compute((M,), lambda i: te.sum(x[i, k], axis=k), name="total")
    func = te.create_prim_func([x, te.compute((M, N), lambda i, j: x[i, j] / total[i], name="y")])
    kernel = tvm.compile(schedule_prim_func(func, TARGET).with_attr("global_symbol", "main"), TARGET)
    values = np.full((2, 19), 1e-42, "float32")
    result = tvm.runtime.empty((2, 19), "float32")
    kernel["main"](tvm.runtime.tensor(values), result)
    np.testing.assert_allclose(result.numpy(), np.full((2, 19), 1 / 19), rtol=1e-5)
