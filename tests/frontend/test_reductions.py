"""Reductions, positions of extremes, softmax and running sums with symbolic extents, empty ones included."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn


def test_every_reduction_at_several_extents():
    names = ["Sum", "Mean", "Prod", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp"]
    nodes = "\n".join(f"y{k} = Reduce{name}<keepdims={k % 2}>(x, axes)" for k, name in enumerate(names))
    outputs = ", ".join(f"float[] y{k}" for k in range(len(names)))
    model = parse(f"g (float[a,b,c] x) => ({outputs}) {{ {nodes} }}", axes=np.array([-1, 0]))
    for k in range(len(names)):
        model.graph.output[k].type.tensor_type.ClearField("shape")
    assert_like_onnxruntime(model, *[[normal(*s)] for s in [(1, 1, 1), (3, 5, 7), (2, 17, 16), (13, 1, 4)]])


def test_empty_extents_give_neutral_elements():
    names = {"Sum": 0.0, "Prod": 1.0, "Max": -np.inf, "Min": np.inf, "LogSumExp": -np.inf, "Mean": np.nan}
    nodes = "\n".join(f"y{k} = Reduce{name}<keepdims=0>(x, axes)" for k, name in enumerate(names))
    outputs = ", ".join(f"float[b] y{k}" for k in range(len(names)))
    library = tvm_dyn.compile(parse(f"g (float[a,b] x) => ({outputs}) {{ {nodes} }}", axes=np.array([0])))
    for got, want in zip(library(np.zeros((0, 3), "float32")), names.values(), strict=True):
        np.testing.assert_array_equal(got, np.full(3, want, "float32"))
    assert [y.shape for y in library(np.zeros((4, 0), "float32"))] == [(0,)] * len(names)


def test_ties_go_to_the_first_or_the_last_position():
    model = parse(
        "g (float[a,b] x) => (int64[a,c] y, int64[b] z, int64[a] w) { "
        "y = ArgMax<axis=1>(x)\n z = ArgMin<axis=0, keepdims=0, select_last_index=1>(x)\n "
        "w = ArgMax<axis=-1, keepdims=0, select_last_index=1>(x) }"
    )
    calls = [[np.round(normal(*s))] for s in [(1, 1), (5, 7), (17, 3)]]
    assert_like_onnxruntime(model, *calls, [np.zeros((4, 6), "float32")])


@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_before_and_since_the_change_of_axis(opset: int):
    model = parse(
        "g (float[a,b,c] x) => (float[a,b,c] y, float[a,b,c] z, float[a,b,c] w) { "
        "y = Softmax<axis=1>(x)\n z = LogSoftmax<axis=1>(x)\n w = Hardmax<axis=1>(x) }",
        opset=opset,
    )
    assert_like_onnxruntime(model, *[[normal(*s)] for s in [(1, 1, 1), (2, 3, 5), (3, 17, 4)]])


def test_running_sums_in_both_directions():
    model = parse(
        "g (float[a,b] x) => (float[a,b] y, float[a,b] z) { "
        "y = CumSum<exclusive=1>(x, axis)\n z = CumSum<reverse=1>(x, axis) }",
        axis=np.array(1),
    )
    assert_like_onnxruntime(model, *[[normal(*s)] for s in [(1, 1), (3, 7), (5, 16)]])
