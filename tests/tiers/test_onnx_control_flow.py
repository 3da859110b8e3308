"""ONNX models with control flow and recurrence by the virtual machine agree with onnxruntime."""

import numpy as np
import onnxruntime
import pytest

import tvm_dyn
from tvm_dyn.bench.case import parse_graph


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


IF = """(bool c, float[n, 16] x) => (float[n, 16] y) {
    y = If (c) <
        then_branch = t () => (float[n, 16] a) { b = MatMul(x, w) d = Softmax(b) a = MatMul(d, w) },
        else_branch = e () => (float[n, 16] f) { h = MatMul(x, v) i = Relu(h) f = Mul(i, x) }
    >
}"""
LSTM = """(float[time, batch, 4] x) => (float[time, 1, batch, 8] y, float[1, batch, 8] last) {
    y, last = LSTM<hidden_size = 8>(x, w, r)
}"""


def check(text, weights, calls):
    model = parse_graph(text, weights)
    library = tvm_dyn.compile(model, tier="bytecode")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    for call in calls:
        expected = session.run(None, dict(zip(names, call, strict=True)))
        for found, wanted in zip(library(*call), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    return library


def test_if():
    weights = {"w": normal(16, 16), "v": normal(16, 16, seed=1)}
    calls = [[np.array(flag), normal(n, 16, seed=n)] for n in (1, 7, 130) for flag in (False, True)]
    library = check(IF, weights, calls)
    assert set(library.fallbacks) == {"matmul"}


@pytest.mark.parametrize("time, batch", [(1, 1), (5, 3), (2, 9)])
def test_recurrence(time, batch):
    weights = {"w": normal(1, 32, 4), "r": normal(1, 32, 8, seed=1) * 0.3}
    library = check(LSTM, weights, [[normal(time, batch, 4, seed=2)]])
    assert set(library.fallbacks.values()) == {"numpy"}
