"""Casts through 8-bit floats against ml_dtypes: every code, ties, subnormal numbers, overflow."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_dyn

KINDS = {
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
}


def cast_model(source: int, target: int, **attributes: int):
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=target, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", source, ["n"])],
        [helper.make_tensor_value_info("y", target, ["n"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize("kind", KINDS)
def test_every_code_and_the_numbers_between(kind: str):
    dtype = np.dtype(getattr(ml_dtypes, kind))
    codes = np.arange(256, dtype="uint8").view(dtype)
    (numbers,) = tvm_dyn.compile(cast_model(KINDS[kind], TensorProto.FLOAT))(codes)
    np.testing.assert_array_equal(numbers, codes.astype("float32"))

    exact = np.unique(numbers[np.isfinite(numbers)])
    middles = (exact[1:] + exact[:-1]) / 2  # ties, which go to the even code
    values = np.concatenate([exact, middles, np.nextafter(middles, 1e9, dtype="float32"), [np.nan]]).astype(
        "float32"
    )
    plain = tvm_dyn.compile(cast_model(TensorProto.FLOAT, KINDS[kind], saturate=0))
    (got,) = plain(values)
    np.testing.assert_array_equal(got.astype("float32"), values.astype(dtype).astype("float32"))

    beyond = np.array([1e9, -1e9], "float32")
    (got,) = plain(beyond)
    np.testing.assert_array_equal(got.astype("float32"), beyond.astype(dtype).astype("float32"))
    (got,) = tvm_dyn.compile(cast_model(TensorProto.FLOAT, KINDS[kind]))(beyond)
    np.testing.assert_array_equal(got.astype("float32"), exact[[-1, 0]])
