"""LSTM, GRU, RNN over symbolic time and batch, against onnxruntime at extents around the row tile and primes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs import assert_like_onnxruntime, normal, reference
from onnx import TensorProto, helper

import tvm_dyn

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SHAPES = [(1, 1), (7, 3), (4, 4), (3, 5), (0, 2)]


def build(op: str, hidden: int, depth: int, extras: str, **attributes: Any) -> onnx.ModelProto:
    """One node with constant weights; extras: L sequence_lens, h initial states, P peepholes."""
    size = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[op]
    weights = {
        "W": 0.4 * normal(size, gates * hidden, depth),
        "R": 0.4 * normal(size, gates * hidden, hidden),
        "B": 0.3 * normal(size, 2 * gates * hidden),
        "P": 0.3 * normal(size, 3 * hidden),
    }
    state = [size, "batch", hidden]
    inputs = [("X", TensorProto.FLOAT, ["time", "batch", depth])]
    inputs += [("lengths", TensorProto.INT32, ["batch"])] if "L" in extras else []
    inputs += [("h0", TensorProto.FLOAT, state)] if "h" in extras else []
    inputs += [("c0", TensorProto.FLOAT, state)] if "h" in extras and op == "LSTM" else []
    given = {name for name, *_ in inputs}
    names = ["X", "W", "R", "B", *(n if n in given else "" for n in ("lengths", "h0"))]
    names += [("c0" if "c0" in given else ""), ("P" if "P" in extras else "")] if op == "LSTM" else []
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, hidden_size=hidden, **attributes)],
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [onnx.numpy_helper.from_array(v, k) for k, v in weights.items() if k in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(model: onnx.ModelProto, time: int, batch: int) -> list[np.ndarray]:
    arrays = []
    for info in model.graph.input:
        dims = [
            {"time": time, "batch": batch}.get(d.dim_param, d.dim_value)
            for d in info.type.tensor_type.shape.dim
        ]
        lengths = np.maximum(time - np.arange(batch) % 3, min(time, 1)).astype("int32")
        arrays.append(lengths if info.name == "lengths" else normal(*dims, seed=len(info.name)))
    return arrays


@pytest.mark.parametrize(
    ("op", "hidden", "extras", "attributes"),
    [
        ("LSTM", 16, "", {}),
        ("LSTM", 33, "hLP", {"direction": "bidirectional"}),
        ("LSTM", 5, "h", {"direction": "reverse", "input_forget": 1, "clip": 0.7}),
        ("GRU", 20, "hL", {"direction": "bidirectional", "linear_before_reset": 1}),
        ("GRU", 7, "h", {"direction": "reverse"}),
        ("RNN", 17, "L", {"activations": ["LeakyRelu"], "activation_alpha": [0.2]}),
        (
            "RNN",
            4,
            "h",
            {
                "direction": "bidirectional",
                "activations": ["Affine", "HardSigmoid"],
                "activation_alpha": [0.5, 0.3],
                "activation_beta": [0.1, 0.4],
            },
        ),
    ],
)
def test_like_onnxruntime_at_every_extent(op: str, hidden: int, extras: str, attributes: dict[str, Any]):
    model = build(op, hidden, 3, extras, **attributes)
    shapes = [s for s in SHAPES if s[0]]  # onnxruntime refuses sequences of no step
    assert_like_onnxruntime(model, *[feeds(model, *s) for s in shapes])


def test_no_step_keeps_the_initial_state():
    model = build("LSTM", 6, 3, "h")
    library = tvm_dyn.compile(model)
    x, h0, c0 = feeds(model, 0, 2)
    y, y_h, y_c = library(x, h0, c0)
    assert y.shape == (0, 1, 2, 6)
    np.testing.assert_array_equal(y_h, h0)
    np.testing.assert_array_equal(y_c, c0)


def test_batch_first_layout_is_a_transposition():
    time_first, batch_first = build("GRU", 6, 3, ""), build("GRU", 6, 3, "", layout=1)
    x = normal(5, 2, 3)
    y, y_h = tvm_dyn.compile(time_first)(x)
    dims = batch_first.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_param, dims[1].dim_param = "batch", "time"
    z, z_h = tvm_dyn.compile(batch_first)(np.ascontiguousarray(x.transpose(1, 0, 2)))
    np.testing.assert_allclose(z, y.transpose(2, 0, 1, 3), rtol=1e-6)
    np.testing.assert_allclose(z_h, y_h.transpose(1, 0, 2), rtol=1e-6)


def test_quantized_lstm_rounds_as_onnxruntime_does():
    hidden, depth = 16, 8
    codes = np.random.default_rng(0).integers(-127, 128, (2, 4 * hidden, depth + hidden)).astype("int8")
    constants = {
        "W": np.ascontiguousarray(codes[:, :, :depth].transpose(0, 2, 1)),
        "R": np.ascontiguousarray(codes[:, :, depth:].transpose(0, 2, 1)),
        "B": 0.2 * normal(2, 8 * hidden),
        "scale": np.array([0.01, 0.008], "float32"),
        "zero": np.zeros(2, "int8"),
    }
    names = ["X", "W", "R", "B", "", "", "", "", "scale", "zero", "scale", "zero"]
    graph = helper.make_graph(
        [
            helper.make_node(
                "DynamicQuantizeLSTM",
                names,
                ["Y"],
                domain="com.microsoft",
                hidden_size=hidden,
                direction="bidirectional",
            )
        ],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["time", 1, depth])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    library = tvm_dyn.compile(model)
    for time in (1, 7, 23):
        x = normal(time, 1, depth)
        np.testing.assert_allclose(library(x)[0], reference(model, [x])[0], atol=2e-3)
