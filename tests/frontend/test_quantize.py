"""Quantized operators: integer results equal onnxruntime's exactly, at every extent."""

import numpy as np
import pytest
from graphs import normal, parse, reference

import tvm_dyn


def codes(dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(shape).integers(info.min, info.max + 1, shape).astype(dtype)


def assert_equal(model, *calls) -> None:
    library = tvm_dyn.compile(model)
    for arrays in calls:
        for got, want in zip(library(*arrays), reference(model, arrays), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


def test_there_and_back_per_tensor_and_per_axis():
    model = parse(
        "g (float[n,3] x) => (uint8[n,3] a, float[n,3] b, int8[n,3] c, float[n,3] d) { "
        "a = QuantizeLinear(x, s, z)\n b = DequantizeLinear(a, s, z)\n "
        "c = QuantizeLinear<axis=1>(x, t, w)\n d = DequantizeLinear<axis=1>(c, t, w) }",
        s=np.float32(0.03125),
        z=np.uint8(120),
        t=np.array([0.5, 0.0625, 0.25], "float32"),
        w=np.array([0, -5, 7], "int8"),
    )
    halves = np.array([[0.25, 0.03125, -0.125], [0.75, 100.0, -100.0]], "float32")  # ties and saturation
    assert_equal(model, [halves], [normal(1, 3)], [normal(17, 3)])


def test_integer_matmul_is_exact_over_long_sums():
    model = parse(
        "g (uint8[n,k] a, int8[k,5] b) => (int32[n,5] y) { y = MatMulInteger(a, b, p, q) }",
        p=np.uint8(113),
        q=np.int8(-3),
    )
    assert_equal(
        model, *[[codes("uint8", n, k), codes("int8", k, 5)] for n, k in [(1, 1), (7, 13), (3, 4099)]]
    )


@pytest.mark.parametrize("zero", [np.uint8(128), np.uint8(3), codes("uint8", 64)])
@pytest.mark.parametrize(("depth", "columns"), [(4, 1), (8, 63), (64, 64), (12, 65), (384, 130), (7, 64)])
def test_constant_weights_meet_codes_in_whole_and_partial_tiles(depth, columns, zero):
    """Tiles have 6, 2 and 1 rows and 64 columns; a task has 48 rows."""
    model = parse(
        f"g (uint8[b,n,{depth}] a, uint8 z) => (int32[b,n,{columns}] y) {{ y = MatMulInteger(a, w, z, q) }}",
        w=codes("uint8", depth, columns),
        q=np.resize(zero, columns) if zero.ndim else zero,
    )
    calls = [[codes("uint8", b, n, depth), np.array(z, "uint8")] for b, n, z in ROWS]
    assert_equal(model, *calls)


ROWS = [(1, 1, 0), (1, 2, 255), (1, 5, 7), (2, 3, 128), (1, 7, 3), (1, 47, 1), (1, 48, 1), (7, 7, 77), (2, 0, 1)]


def test_integer_convolution_pads_with_the_zero_point():
    model = parse(
        "g (uint8[n,2,h,w] x) => (int32[n,4,p,q] y) { y = ConvInteger<pads=[1,1,1,1]>(x, k, z) }",
        k=codes("uint8", 4, 2, 3, 3),
        z=np.uint8(77),
    )
    assert_equal(model, *[[codes("uint8", n, 2, h, w)] for n, h, w in [(1, 1, 1), (2, 7, 5), (1, 16, 17)]])


def test_dynamic_quantization_of_any_range():
    model = parse(
        "g (float[n] x) => (uint8[n] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }", opset=11
    )
    assert_equal(model, [normal(1)], [normal(17)], [np.zeros(3, "float32")], [np.abs(normal(7)) + 1])


@pytest.mark.parametrize("depth", [5, 300, 5000])
def test_sums_are_exact_whatever_the_size_of_the_weights(depth):
    """Within float32's whole numbers, in two parts beyond it, and in int32 where those are too large too."""
    model = parse(
        "g (uint8[n,k] a) => (int32[n,6] y) { y = MatMulInteger(a, b, p) }",
        b=np.full((depth, 6), 127, "int8") - np.arange(6, dtype="int8"),
        p=np.uint8(0),
    )
    assert_equal(model, *[[np.full((n, depth), 255, "uint8") - codes("uint8", n, depth) % 3] for n in (1, 7)])


def test_3x3_convolutions_of_many_channels_are_exact():
    model = parse(
        "g (uint8[n,32,h,w] x) => (int32[n,32,p,q] y) { y = ConvInteger<pads=[1,1,1,1]>(x, k, z) }",
        k=codes("int8", 32, 32, 3, 3),
        z=np.uint8(128),
    )
    assert_equal(model, *[[codes("uint8", n, 32, h, w)] for n, h, w in [(1, 1, 1), (1, 24, 30), (2, 17, 33)]])


def test_rounded_models_have_onnxruntimes_sigmoid_to_the_bit():
    model = parse(
        "g (float[n] x) => (float[n] s, uint8[n] y, float scale, uint8 z) { "
        "s = Sigmoid(x)\n y, scale, z = DynamicQuantizeLinear(s) }",
        opset=13,
    )
    assert_equal(model, [normal(1)], [8 * normal(4099)], [np.array([np.inf, -np.inf, 0, 30, -30], "float32")])
    (result, *_) = tvm_dyn.compile(model)(np.array([np.nan, 1], "float32"))
    assert np.isnan(result[0])


def test_rounded_models_round_products_ahead_of_sums():
    model = parse(
        "g (float[n] x, float[n] y) => (float[n] s, uint8[n] q, float scale, uint8 z) { "
        "a = Mul(x, y)\n s = Add(a, x)\n q, scale, z = DynamicQuantizeLinear(s) }",
        opset=13,
    )
    assert_equal(model, *[[normal(n), normal(n, seed=1)] for n in (1, 17, 4099)])
