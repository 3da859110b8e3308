"""If: decided at import, at run time, or a requirement where the branches differ in rank."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

from tvm_dyn.errors import TvmDynError


def test_both_branches_run_with_their_own_storage():
    model = parse(
        "g (bool c, float[n,16] x) => (float[n,16] y) { "
        "y = If (c) <then_branch = t () => (float[n,16] a) { b = MatMul(x, w)\n d = Softmax(b)\n a = MatMul(d, w) }, "
        "else_branch = e () => (float[n,16] f) { h = MatMul(x, v)\n i = Softmax(h)\n f = MatMul(i, v) }> }",
        w=normal(16, 16),
        v=normal(16, 16, seed=1),
    )
    calls = [[np.array(flag), normal(n, 16)] for n in (1, 7, 3) for flag in (False, True)]
    assert_like_onnxruntime(model, *calls)


SQUEEZE = (
    "g (float[n,m] x) => (float[n] y) { s = Shape(x)\n d = Gather(s, last)\n c = Equal(d, last)\n "
    "z = If (c) <then_branch = t () => (float[n] a) { a = Squeeze(x, axes) }, "
    "else_branch = e () => (float[n,m] b) { b = Identity(x) }>\n y = Relu(z) }"
)


def test_branches_of_different_ranks_become_a_requirement():
    model = parse(SQUEEZE, last=np.array(1), axes=np.array([1]))
    library = assert_like_onnxruntime(model, [normal(5, 1)], [normal(1, 1)])
    with pytest.raises(TvmDynError):
        library(normal(5, 2))
