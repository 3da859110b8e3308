"""bfloat16, which CPUs and LLVM know little about: sums and functions go through float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from harness import Compiled, dim, random
from tvm.relax import op
from tvm.relax.op import nn

M, N, K = dim("m"), dim("n"), dim("k")
SHAPES = [(1, 1), (3, 7), (17, 64), (33, 130)]


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _gelu(x):
    return x * 0.5 * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


FUNCTIONS = {
    "rows": (lambda bb, x: bb.emit(op.sum(x, [1])), lambda x: x.sum(1)),
    "columns": (lambda bb, x: bb.emit(op.max(x, [0])), lambda x: x.max(0)),
    "mean": (lambda bb, x: bb.emit(op.mean(x, [0, 1])), lambda x: x.mean()),
    "softmax": (lambda bb, x: bb.emit(nn.softmax(x)), _softmax),
    "gelu": (lambda bb, x: bb.emit(nn.gelu_tanh(x)), _gelu),
    "sqrt": (lambda bb, x: bb.emit(op.sqrt(op.abs(op.sin(x)))), lambda x: np.sqrt(np.abs(np.sin(x)))),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions_and_reductions(name):
    graph, reference = FUNCTIONS[name]
    kernel = Compiled([((M, N), "bfloat16")], graph)
    for i, shape in enumerate(SHAPES):
        x = random(shape, seed=i).astype(ml_dtypes.bfloat16)
        expected = reference(x.astype("float64"))
        np.testing.assert_allclose(kernel(x).astype("float64"), expected, rtol=0.03, atol=0.03)


def test_products_sum_in_single_precision():
    kernel = Compiled([((M, K), "bfloat16"), ((K, N), "bfloat16")], lambda bb, a, b: bb.emit(op.matmul(a, b)))
    a, b = np.ones((5, 3000), ml_dtypes.bfloat16), np.ones((3000, 19), ml_dtypes.bfloat16)
    np.testing.assert_array_equal(kernel(a, b).astype("float64"), np.full((5, 19), 3000.0).astype(ml_dtypes.bfloat16))
