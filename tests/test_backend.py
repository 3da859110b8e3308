"""The ONNX backend interface, driven as ONNX's own test runner drives it."""

import re
import warnings

import numpy as np
import onnx.backend.test
import pytest
from onnx import TensorProto, helper

import tvm_dyn.backend as backend
from tvm_dyn.errors import InvalidInputError

# A cross-section; the whole suite takes an hour.
CASES = re.compile(
    r"test_(abs|add_bcast|concat_2d_axis_0|gather_1|matmul_2d|reshape_negative_dim|shape|where_example)_cpu"
)


def onnx_test_classes() -> dict[str, type]:
    """The runner's test classes with the chosen cases alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX computes its expected infinities while it collects.
        classes = onnx.backend.test.BackendTest(backend, __name__).test_cases
    for cls in classes.values():
        for name in [name for name in vars(cls) if name.startswith("test_") and not CASES.fullmatch(name)]:
            delattr(cls, name)
    return classes


globals().update(onnx_test_classes())


def test_the_runner_has_its_cases():
    found = {
        name
        for cls in globals().values()
        if isinstance(cls, type)
        for name in vars(cls)
        if CASES.fullmatch(name)
    }
    assert len(found) == 8


def test_run_node():
    a, b = np.ones((2, 3), "float32"), np.arange(3, dtype="float32")
    node = helper.make_node("Add", ["a", "b"], ["c"])
    (c,) = backend.run_node(node, [a, b])
    np.testing.assert_array_equal(c, a + b)
    (c,) = backend.run_node(helper.make_node("Relu", ["a"], ["c"]), -a, opset_version=13)
    np.testing.assert_array_equal(c, np.zeros_like(a))
    with pytest.raises(InvalidInputError, match="2 inputs, but 1 are given"):
        backend.run_node(node, [a])


def test_prepare_serves_every_shape_by_position_and_by_name():
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["n"])],
        [value("y", TensorProto.FLOAT, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    prepared = backend.prepare(model, num_threads=1)
    for extent in (0, 1, 5):
        x = np.linspace(-1, 1, extent, dtype="float32")
        for inputs in ([x], {"x": x}, x):
            (y,) = prepared.run(inputs)
            np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(backend.run_model(model, [x])[0], y)


def test_devices():
    assert backend.supports_device("CPU") and backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    with pytest.raises(ValueError, match="only the CPU"):
        backend.prepare(onnx.ModelProto(), "CUDA:1")
