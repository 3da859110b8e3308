"""Elementwise formulas against onnxruntime, special values included."""

import ml_dtypes
import numpy as np
import onnx.parser
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn

VALUES = np.array([0.0, -0.0, 0.5, 1.5, -2.5, 2.5, 20.0, -20.0, 88.0, -88.0, np.inf, -np.inf], "float32")


def check(operators: list[str], values: np.ndarray, opset: int = 18) -> None:
    nodes = "\n".join(f"y{k} = {o}(x)" for k, o in enumerate(operators))
    outputs = ", ".join(f"float[n] y{k}" for k in range(len(operators)))
    model = parse(f"g (float[n] x) => ({outputs}) {{ {nodes} }}", opset=opset)
    assert_like_onnxruntime(model, [values], [normal(1)], [3 * normal(17)])


def test_activations():
    finite = VALUES[np.isfinite(VALUES)]
    operators = [
        "Celu<alpha=1.5>",
        "Elu<alpha=0.5>",
        "Selu",
        "LeakyRelu<alpha=0.2>",
        "ThresholdedRelu<alpha=0.7>",
        "HardSigmoid",
        "HardSwish",
        "Mish",
        "Softplus",
        "Softsign",
        "Shrink<lambd=0.4, bias=0.1>",
    ]
    check(operators, finite)


def test_rounding_and_signs():
    check(["Round", "Sign"], VALUES)


def test_gelu_in_both_forms():
    check(["Gelu", 'Gelu<approximate="tanh">'], VALUES[np.abs(VALUES) < 10], opset=20)


def test_infinities_by_sign():
    model = parse(
        "g (float[n] x) => (bool[n] a, bool[n] b, bool[n] c) { "
        "a = IsInf(x)\n b = IsInf<detect_negative=0>(x)\n c = IsNaN(x) }",
        opset=20,
    )
    assert_like_onnxruntime(model, [np.append(VALUES, np.float32("nan"))], [normal(1)])


def test_bfloat16_goes_through_float32():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 22]> g (bfloat16[n] x) => (bfloat16[n] y, bfloat16[n] z) '
        "{ y = Elu(x)\n z = Softplus(x) }"
    )
    x = normal(17).astype(ml_dtypes.bfloat16)
    y, z = tvm_dyn.compile(model)(x)
    wide = x.astype("float64")
    np.testing.assert_allclose(y.astype("float64"), np.where(wide < 0, np.expm1(wide), wide), rtol=1e-2)
    np.testing.assert_allclose(z.astype("float64"), np.log1p(np.exp(wide)), rtol=1e-2)
