"""Small ONNX graphs as text, compiled once and compared with onnxruntime at several shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import numpy_helper

import tvm_dyn


def parse(text: str, opset: int = 18, **initializers: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    for name, value in initializers.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def reference(model: onnx.ModelProto, arrays: list[np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))


def assert_like_onnxruntime(
    model: onnx.ModelProto, *calls: list[np.ndarray], dims: Any = None
) -> tvm_dyn.Library:
    """Every call of the one compiled library gives onnxruntime's outputs, shapes and types included."""
    library = tvm_dyn.compile(model, dims=dims)
    for arrays in calls:
        wanted = reference(model, arrays)
        for got, want in zip(library(*arrays), wanted, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return library


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")
