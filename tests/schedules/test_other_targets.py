"""The same rules on other CPUs: right on those this machine can run, compiling on those it cannot."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import tvm
from harness import Compiled, dim, fused, prim_funcs, random
from tvm.relax import op
from tvm.relax.op import nn
from tvm.target import Target

from tvm_dyn.schedules import schedule_prim_func

M, N, K = dim("m"), dim("n"), dim("k")
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86 code")
OTHERS = [{"mcpu": "x86-64"}, {"mcpu": "x86-64-v3", "num-cores": 2}]


def _dense(bb, x, w, b):
    y = bb.emit(op.tanh(bb.emit(op.add(bb.emit(op.matmul(x, w)), b))))
    return bb.emit(nn.softmax(y))


DENSE = [((M, K), "float32"), ((K, N), "float32"), ((N,), "float32")]


@X86
@pytest.mark.parametrize("attributes", OTHERS)
def test_results_on_narrower_vectors(attributes):
    kernel = Compiled(DENSE, _dense, Target({"kind": "llvm", **attributes}))
    for i, (m, n, k) in enumerate([(1, 5, 3), (7, 17, 64), (50, 130, 33), (0, 4, 4)]):
        x, w, b = random((m, k), seed=i), random((k, n), seed=i + 1), random((n,), seed=i + 2)
        e = np.exp(np.tanh(x.astype("float64") @ w + b))
        np.testing.assert_allclose(kernel(x, w, b), e / e.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_code_for_neon():
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": 4})
    for func in prim_funcs(fused(DENSE, _dense)):
        scheduled = schedule_prim_func(func, target).with_attr("global_symbol", "main")
        library = tvm.compile(tvm.IRModule({"main": scheduled}), target=target)
        assert "fmla" in library.mod.inspect_source("asm") or "softmax" in func.script()
