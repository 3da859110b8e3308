"""Normalizations against onnxruntime, or float64 where onnxruntime lacks the operator or a form of it."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn
from tvm_dyn.errors import CallError, InvalidModelError


def test_layer_normalization_with_and_without_bias_over_one_and_two_axes():
    model = parse(
        "g (float[n,s,6] x, float[n,s] z) => (float[a,b,c] y, float[d,e,f] v, float[g,h] w) {"
        " y = LayerNormalization<epsilon=0.001>(x, scale, bias)\n"
        " v = LayerNormalization<axis=-2>(x, tall)\n"
        " w = LayerNormalization(z, one) }",
        scale=normal(6, seed=1),
        bias=normal(6, seed=2),
        tall=normal(5, 6, seed=3),
        one=np.array([1.5], "float32"),
    )
    assert_like_onnxruntime(model, *[[normal(n, 5, 6), normal(n, 5)] for n in (1, 2, 7)])


def test_layer_normalization_gives_mean_and_inverse_deviation():
    model = parse(
        "g (float[n,s] x) => (float[a,b] y, float[c,d] mean, float[e,f] inverse)"
        "{ y, mean, inverse = LayerNormalization(x, scale) }",
        scale=normal(11, seed=1),
    )
    assert_like_onnxruntime(model, *[[normal(n, 11)] for n in (1, 3, 17)])


def test_variance_of_data_far_from_zero():
    """Squares of the data would drown a variance of 1."""
    model = parse(
        "g (float[n,s] x) => (float[a,b] y) { y = LayerNormalization(x, scale) }",
        scale=np.ones(64, "float32"),
    )
    x = normal(5, 64) + np.float32(3000)
    exact = x.astype("float64") - x.astype("float64").mean(-1, keepdims=True)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(tvm_dyn.compile(model)(x)[0], exact, atol=2e-3)


@pytest.mark.parametrize("axis", [-1, 0])
def test_rms_normalization(axis: int):
    model = parse(
        f"g (float[n,s] x) => (float[a,b] y) {{ y = RMSNormalization<axis={axis}>(x, scale) }}",
        opset=23,
        scale=normal(1, 7, seed=1) if axis == 0 else normal(7, seed=1),
    )
    library = tvm_dyn.compile(model)
    for n in (1, 5, 16):
        x = normal(n, 7).astype("float64")
        square = (x**2).mean(axis=-1 if axis else None, keepdims=True)
        want = x / np.sqrt(square + 1e-5) * normal(7, seed=1)
        if axis == 0:
            want = x / np.sqrt(square + 1e-5) * normal(1, 7, seed=1)
        np.testing.assert_allclose(library(x.astype("float32"))[0], want, rtol=1e-4, atol=1e-5)


def test_channel_normalizations():
    model = parse(
        "g (float[n,6,h,w] x) => (float[a,b,c,d] y, float[e,f,g,h] z, float[i,j,k,l] u, float[m,o,p,q] v) {"
        " y = InstanceNormalization(x, scale, bias)\n"
        " z = LRN<size=3, alpha=0.02, beta=0.6, bias=1.5>(x)\n"
        " u = MeanVarianceNormalization(x)\n"
        " v = BatchNormalization(x, scale, bias, mean, var) }",
        scale=normal(6, seed=1),
        bias=normal(6, seed=2),
        mean=normal(6, seed=3),
        var=np.abs(normal(6, seed=4)) + np.float32(0.5),
    )
    assert_like_onnxruntime(model, *[[normal(n, 6, h, w)] for n, h, w in ((1, 2, 3), (2, 7, 5), (3, 1, 17))])


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization(opset: int):
    count = 2 if opset == 18 else 6
    scale, bias = normal(count, seed=1), normal(count, seed=2)
    model = parse(
        "g (float[n,c,w] x) => (float[a,b,d] y) { y = GroupNormalization<num_groups=2>(x, scale, bias) }",
        opset=opset,
        scale=scale,
        bias=bias,
    )
    library = tvm_dyn.compile(model)
    for n, w in ((1, 1), (2, 5), (3, 16)):
        x = normal(n, 6, w).astype("float64")
        rows = x.reshape(n, 2, -1)
        rows = rows - rows.mean(-1, keepdims=True)
        rows /= np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5)
        factors = [np.repeat(v, 6 // count).reshape(1, 6, 1) for v in (scale, bias)]
        want = rows.reshape(x.shape) * factors[0] + factors[1]
        np.testing.assert_allclose(library(x.astype("float32"))[0], want, rtol=1e-4, atol=1e-5)


def test_lp_normalization_keeps_rows_of_zeros():
    model = parse(
        "g (float[n,s] x) => (float[a,b] y, float[c,d] z)"
        "{ y = LpNormalization<p=1, axis=0>(x)\n z = LpNormalization(x) }",
        opset=22,
    )
    library = tvm_dyn.compile(model)
    for n in (1, 5):
        x = normal(n, 6)
        x[0] = 0
        x[:, 2] = 0
        ones, twos = np.abs(x).sum(0, keepdims=True), np.sqrt((x**2).sum(1, keepdims=True))
        wanted = x / np.where(ones == 0, 1, ones), x / np.where(twos == 0, 1, twos)
        for got, want in zip(library(x), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_statistics_of_the_batch_in_training_mode():
    model = parse(
        "g (float[n,c,w] x) => (float[a,b,d] y, float[e] m, float[f] v)"
        "{ y, m, v = BatchNormalization<training_mode=1, momentum=0.8>(x, scale, bias, mean, var) }",
        **{name: normal(4, seed=k) for k, name in enumerate(("scale", "bias", "mean", "var"))},
    )
    library = tvm_dyn.compile(model)
    for n, w in ((1, 2), (3, 5)):
        x = normal(n, 4, w).astype("float64")
        mean, var = x.mean((0, 2)), x.var((0, 2))
        y, running_mean, running_var = library(x.astype("float32"))
        column = lambda v: v.reshape(1, 4, 1)  # noqa: E731
        want = (x - column(mean)) / np.sqrt(column(var) + 1e-5) * column(normal(4)) + column(normal(4, seed=1))
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(running_mean, 0.8 * normal(4, seed=2) + 0.2 * mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(running_var, 0.8 * normal(4, seed=3) + 0.2 * var, rtol=1e-4, atol=1e-5)


def test_run_time_scale_must_fit_the_channels():
    model = parse(
        "g (float[n,c,w] x, float[k] s, float[m] b) => (float[a,b,d] y){ y = InstanceNormalization(x, s, b) }"
    )
    library = assert_like_onnxruntime(model, [normal(2, 3, 5), normal(3), normal(3, seed=1)])
    with pytest.raises(CallError):
        library(normal(2, 3, 5), normal(4), normal(4))


def test_axis_beyond_the_rank():
    model = parse("g (float[n,s] x, float[s] k) => (float[a,b] y) { y = LayerNormalization<axis=2>(x, k) }")
    with pytest.raises(InvalidModelError, match="axis 2"):
        tvm_dyn.compile(model)


# -- folding into convolutions -------------------------------------------------------------------------------


def _conv_and_norm(op: str, weight: np.ndarray, extra: str = "", second_user: str = "") -> tvm_dyn.Library:
    filters = 4
    statistics = {name: normal(filters, seed=k) for k, name in enumerate(("scale", "shift", "mean"), 1)}
    outputs = "float[a,b,c,d] y" + (", float[e,f,g,h] u" if second_user else "")
    model = parse(
        f"g (float[n,2,h,w] x) => ({outputs}) {{ c = {op}(x, weight{extra})\n"
        f" y = BatchNormalization(c, scale, shift, mean, var)\n {second_user} }}",
        weight=weight,
        var=np.abs(normal(filters, seed=9)) + np.float32(0.1),
        **statistics,
        **({"bias": normal(filters, seed=7)} if extra else {}),
    )
    return assert_like_onnxruntime(model, *[[normal(n, 2, h, w)] for n, h, w in ((1, 3, 4), (2, 5, 7))])


def test_folds_into_conv_with_and_without_bias():
    _conv_and_norm("Conv<kernel_shape=[3,3]>", normal(4, 2, 3, 3))
    _conv_and_norm("Conv<group=2, kernel_shape=[3,3], pads=[1,1,1,1]>", normal(4, 1, 3, 3), ", bias")


def test_folds_into_grouped_transposed_conv():
    _conv_and_norm("ConvTranspose<group=2, strides=[2,2]>", normal(2, 2, 2, 2), ", bias")


def test_keeps_a_convolution_that_others_use():
    _conv_and_norm("Conv<kernel_shape=[1,1]>", normal(4, 2, 1, 1), second_user="u = Relu(c)")


def test_no_multiplication_is_left():
    from tvm_dyn.api import import_model

    model = parse(
        "g (float[n,2,h,w] x) => (float[a,b,c,d] y){ c = Conv(x, k)\n y = BatchNormalization(c, v, v, v, v) }",
        k=normal(4, 2, 3, 3),
        v=np.abs(normal(4)) + np.float32(0.1),
    )
    text = import_model(model).script()
    assert "conv2d" in text and "multiply" not in text
