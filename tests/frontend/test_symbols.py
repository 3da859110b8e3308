"""Names, facts and unification of symbolic dims."""

import json

import numpy as np
import pytest
from graphs import parse

from tvm_dyn import Dim
from tvm_dyn.errors import InvalidModelError, ModelImportError
from tvm_dyn.frontend import import_onnx


def signature(model, dims=None) -> dict:
    return json.loads(str(import_onnx(model, dims)["main"].attrs["tvm_dyn.signature"]))


def rename(model, *names: str):
    """Give the dims of all inputs, in order, names as exporters write them."""
    dims = [d for i in model.graph.input for d in i.type.tensor_type.shape.dim]
    for dim, name in zip(dims, names, strict=True):
        dim.Clear()
        if name:
            dim.dim_param = name
    return model


def test_any_name_gives_its_own_symbol():
    model = rename(
        parse("g (float[a,b] x, float[c,d] z) => (float[o] y, float[q] w) { y = Relu(x)\n w = Exp(z) }"),
        "p2o.DynamicDimension.0",
        "floor(h/2 - 1/2) + 1",
        "-1",
        "",
    )
    found = signature(model)
    assert len(found["dims"]) == 4
    assert {a for d in found["dims"].values() for a in d["aliases"]} >= {
        "p2o.DynamicDimension.0",
        "floor(h/2 - 1/2) + 1",
    }
    assert all(name.isidentifier() for name in found["dims"])


def test_same_name_is_one_symbol_and_unnamed_dims_are_not():
    text = "g (float[a,b] x, float[c,d] z) => (float[o] y, float[q] w) { y = Relu(x)\n w = Exp(z) }"
    assert len(signature(rename(parse(text), "n", "m", "n", "k"))["dims"]) == 3
    assert len(signature(rename(parse(text), "", "", "", ""))["dims"]) == 4


def test_contraction_dims_are_unified_and_say_why():
    found = signature(parse("g (float[m,k] x, float[l,n] z) => (float[o] y) { y = MatMul(x, z) }"))
    assert found["inputs"][1]["shape"] == ["k", "n"]
    assert set(found["dims"]) == {"m", "k", "n"}
    assert set(found["dims"]["k"]["aliases"]) == {"k", "l"}
    assert "MatMul" in found["dims"]["k"]["why"][0]


def test_a_dim_that_must_be_a_number_becomes_it():
    found = signature(
        parse("g (float[m,k] x) => (float[o] y) { y = MatMul(x, w) }", w=np.ones((3, 1), "float32"))
    )
    assert found["inputs"][0]["shape"] == ["m", 3]


def test_concat_unifies_through_sums():
    text = (
        "g (float[p,4] past, float[s,4] x, float[t,4] z) => (float[o] y) "
        "{ a = Concat<axis=0>(past, x)\n y = Concat<axis=1>(a, z) }"
    )
    found = signature(parse(text))
    assert found["inputs"][2]["shape"][0] in ("p + s", "s + p")


def test_facts_narrow_and_name_dims():
    model = parse("g (float[b,n] x) => (float[o] y) { y = Relu(x) }")
    found = signature(model, {"b": 3, "n": Dim(8, 64, 8)})
    assert found["inputs"][0]["shape"] == [3, "n"]
    assert (found["dims"]["n"]["min"], found["dims"]["n"]["max"], found["dims"]["n"]["divisor"]) == (8, 64, 8)


def test_a_fact_about_no_dim_names_those_there_are():
    with pytest.raises(ModelImportError, match=r"'seq'.*'b'"):
        import_onnx(parse("g (float[b,4] x) => (float[o] y) { y = Relu(x) }"), {"seq": Dim(1, 8)})


def test_contradicting_facts_name_the_node():
    model = parse("g (float[m,k] x, float[l,n] z) => (float[o] y) { y = MatMul(x, z) }")
    with pytest.raises(ModelImportError, match="MatMul"):
        import_onnx(model, {"k": Dim(1, 4), "l": Dim(8, 16)})


def test_dims_that_can_never_be_equal_are_an_invalid_model():
    with pytest.raises(InvalidModelError, match=r"MatMul.*3.*4"):
        import_onnx(parse("g (float[m,3] x, float[4,n] z) => (float[o] y) { y = MatMul(x, z) }"))
