"""Where a node's conversion comes from, control flow known at import, and errors that name the node."""

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import assert_like_onnxruntime, normal, parse

from tvm_dyn.errors import ModelImportError, UnsupportedOperatorError
from tvm_dyn.frontend import import_onnx


def test_function_bodies_and_local_functions():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "local" : 1]>\n'
        "g (float[n,4] x) => (float[o] y) { t = local.twice(x)\n y = Celu<alpha=2.0>(t) }\n"
        '<domain: "local", opset_import: ["" : 18]>\n twice (a) => (b) { b = Add(a, a) }'
    )
    assert_like_onnxruntime(model, [normal(3, 4)], [normal(1, 4)])


def test_constants_are_folded_whatever_their_size():
    model = parse(
        "g (float[n,64] x) => (float[o] y) { t = Transpose<perm=[1,0]>(w)\n s = Mul(t, t)\n y = MatMul(x, s) }",
        w=normal(8, 64),
    )
    main = import_onnx(model)["main"]
    assert "permute_dims" not in main.script(show_meta=False)


@pytest.mark.parametrize("flag", [True, False])
def test_a_condition_known_at_import_leaves_one_branch(flag):
    model = parse(
        "g (float[n] x) => (float[o] y) { y = If(c) <then_branch = t () => (float[p] a) { a = Exp(x) }, "
        "else_branch = e () => (float[q] b) { b = Neg(x) }> }",
        c=np.array(flag),
    )
    text = import_onnx(model)["main"].script(show_meta=False)
    assert ("exp" in text) is flag and "if" not in text.lower().replace("prefix", "")


def test_a_condition_from_the_run_keeps_both_branches():
    model = parse(
        "g (float[n] x, bool c) => (float[o] y) { y = If(c) <then_branch = t () => (float[p] a) { a = Exp(x) }, "
        "else_branch = e () => (float[q] b) { s = Add(x, x)\n b = Neg(s) }> }"
    )
    assert_like_onnxruntime(model, [normal(3), np.array(True)], [normal(5), np.array(False)])


def test_an_unknown_operator_is_named_with_its_node():
    model = parse("g (float[n] x) => (float[o] y) { y = Relu(x) }")
    model.graph.node[0].op_type, model.graph.node[0].domain, model.graph.node[0].name = (
        "Fancy",
        "acme",
        "the_node",
    )
    model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    with pytest.raises(UnsupportedOperatorError, match=r"'the_node'.*Fancy.*'acme'") as caught:
        import_onnx(model)
    assert caught.value.stage == "import"


def test_what_is_not_supported_is_refused_rather_than_wrong():
    half, on = np.array(0.5, "float32"), np.array(True)
    training = parse("g (float[n] x) => (float[o] y) { y = Dropout(x, r, t) }", r=half, t=on)
    with pytest.raises(UnsupportedOperatorError, match="training"):
        import_onnx(training)
    packed = parse("g (float[n] x) => (float[o] y) { y = Relu(x) }")
    packed.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT4
    with pytest.raises(UnsupportedOperatorError, match="int4"):
        import_onnx(packed)


def test_a_failing_conversion_names_the_node():
    model = parse("g (float[n,4] x) => (float[o] y) { y = Reshape(x, s) }", s=np.array([-1, -1]))
    with pytest.raises(ModelImportError, match="Reshape"):
        import_onnx(model)
