"""ONNX files as torch's two exporters write them: right at every shape, shape reasoning without leftovers."""

import functools
import io

import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import tvm_dyn  # noqa: E402
from tvm_dyn.frontend import import_onnx  # noqa: E402

from .models import CASES  # noqa: E402
from .test_torch_export import check  # noqa: E402


@functools.cache
def export_dynamo(name):
    pytest.importorskip("onnxscript")
    case = CASES[name]
    program = torch.onnx.export(
        case.module(), case.inputs(*case.example), dynamo=True, dynamic_shapes=case.dims(), verbose=False
    )
    return program.model_proto


def export_torchscript(name):
    """The exporter before torch.export; names follow the flattened inputs."""
    case = CASES[name]
    spec = pytree.tree_leaves(case.dims(), is_leaf=lambda item: isinstance(item, dict))
    names = [f"input_{k}" for k in range(len(spec))]
    axes = {
        name: {axis: dim.__name__ for axis, dim in dims.items()}
        for name, dims in zip(names, spec, strict=True)
    }
    file = io.BytesIO()
    torch.onnx.export(
        case.module(),
        case.inputs(*case.example),
        file,
        dynamo=False,
        input_names=names,
        dynamic_axes=axes,
        opset_version=17,
    )
    return onnx.load_from_string(file.getvalue())


TORCHSCRIPT = [
    pytest.param(name, marks=[pytest.mark.slow] if name in ("gpt2", "llama", "resnet") else [])
    for name in CASES
]


@pytest.mark.parametrize("name", CASES)
def test_dynamo(name):
    check(tvm_dyn.compile(export_dynamo(name)), name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TORCHSCRIPT)
def test_torchscript(name):
    check(tvm_dyn.compile(export_torchscript(name)), name)


@pytest.mark.parametrize("name", CASES)
def test_import_leaves_no_case_distinction(name):
    """Checks only for what the file does not tell: that positions stay inside their tables."""
    text = import_onnx(export_dynamo(name))["main"].script(show_meta=False)
    for word in ("match_cast", "Select", "ndim="):
        assert word not in text
    assert text.count("assert_op") <= 1
