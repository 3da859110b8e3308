"""The front door: what it takes, what it refuses, and that a library serves every shape."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import tvm
from onnx import numpy_helper
from tvm import relax

import tvm_dyn
from tvm_dyn import Dim, errors

ROOT = Path(__file__).parent.parent
WEIGHT = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")


def linear() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, 16] x, float[batch, 8] y) => (float[batch, 8] z) {
            t = MatMul(x, w)  u = Relu(t)  z = Add(u, y) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    return model


def expected(x, y):
    return np.maximum(x.astype("float64") @ WEIGHT, 0) + y


@pytest.fixture(scope="module")
def library():
    return tvm_dyn.compile(linear(), dims={"batch": Dim(0, 64)}, num_threads=1)


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 7, 15, 16, 17, 64])
def test_one_library_serves_every_shape(library, batch):
    generator = np.random.default_rng(batch)
    x = generator.standard_normal((batch, 16)).astype("float32")
    y = generator.standard_normal((batch, 8)).astype("float32")
    (z,) = library(x, y=y)
    assert z.shape == (batch, 8)
    np.testing.assert_allclose(z, expected(x, y), rtol=1e-4, atol=1e-5)


def test_the_signature_speaks_the_models_names(library):
    assert [info.name for info in (*library.inputs, *library.outputs)] == ["x", "y", "z"]
    assert library.inputs[0].shape == ("batch", 16)
    assert (library.dims["batch"].min, library.dims["batch"].max) == (0, 64)
    with pytest.raises(errors.InvalidInputError, match="dim 'batch' is 65, above its maximum 64"):
        library(np.zeros((65, 16), "float32"), np.zeros((65, 8), "float32"))


def test_a_path_a_proto_and_phases(tmp_path, library):
    onnx.save(linear(), tmp_path / "linear.onnx")
    phases = []
    again = tvm_dyn.compile(
        str(tmp_path / "linear.onnx"), num_threads=1, dump_phases=tmp_path / "phases", progress=phases.append
    )
    assert again.inputs == library.inputs
    assert phases[0] == "import" and len(phases) > 3
    assert len(list((tmp_path / "phases").iterdir())) >= 3


def test_an_int_fixes_a_dim():
    library = tvm_dyn.compile(linear(), dims={"batch": 4}, num_threads=1)
    x, y = np.ones((4, 16), "float32"), np.ones((4, 8), "float32")
    np.testing.assert_allclose(library(x, y)[0], expected(x, y), rtol=1e-4)
    with pytest.raises(errors.InvalidInputError):
        library(x[:3], y[:3])


def test_unknown_dims_are_refused():
    with pytest.raises(errors.InvalidDimError, match=r"'sequence'.*'batch'") as caught:
        tvm_dyn.compile(linear(), dims={"sequence": Dim(1)})
    assert caught.value.stage == "import"
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(x + x))
    with pytest.raises(errors.InvalidDimError, match="no symbolic dim 'm'; it has 'n'"):
        tvm_dyn.compile(builder.get(), dims={"m": 3})


def test_an_unsupported_operator_is_named():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "strange" : 1]>
        g (float[n] x) => (float[n] y) { y = strange.Frobnicate(x) }"""
    )
    with pytest.raises(errors.UnsupportedOperatorError, match="Frobnicate") as caught:
        tvm_dyn.compile(model)
    assert caught.value.stage == "import"


def test_a_broken_model_is_refused(tmp_path):
    (tmp_path / "cut.onnx").write_bytes(linear().SerializeToString()[:100])
    for model in (tmp_path / "cut.onnx", tmp_path / "missing.onnx", onnx.ModelProto()):
        with pytest.raises(errors.InvalidModelError) as caught:
            tvm_dyn.compile(model)
        assert caught.value.stage == "import"


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="cannot compile a list"):
        tvm_dyn.compile([1, 2])
    with pytest.raises(errors.CompileError, match="no Relax function 'main'"):
        tvm_dyn.compile(tvm.IRModule())
    with pytest.raises(ValueError, match="num_threads=0"):
        tvm_dyn.compile(linear(), num_threads=0)


def test_dims_of_the_same_name_stay_apart():
    """Two variables called n are two dims: x and y may differ in length."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var("n", "int64")], "float32"))
    y = relax.Var("y", relax.TensorType([tvm.tirx.Var("n", "int64")], "float32"))
    with builder.function("main", [x, y]):
        builder.emit_func_output(builder.emit(relax.op.concat([x, y])))
    library = tvm_dyn.compile(builder.get(), num_threads=1)
    assert [info.shape for info in library.inputs] == [("n",), ("n_1",)]
    assert library(np.zeros(3, "float32"), np.ones(5, "float32"))[0].shape == (8,)


def test_importing_the_package_registers_the_pipeline_and_loads_no_framework():
    code = """
import sys, tvm
before = set(sys.modules)
import tvm_dyn
from tvm import relax
relax.get_pipeline("tvm_dyn")
print(sorted({"onnx", "torch", "xgboost", "rich", "click"} & (set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
