"""Resize against onnxruntime: modes, coordinates, and how sizes are given."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn
from tvm_dyn.api import import_model
from tvm_dyn.errors import CallError

_SIZES = ((1, 1, 4), (2, 5, 7), (1, 16, 3), (1, 11, 8))


def _calls() -> list[list[np.ndarray]]:
    return [[normal(n, 2, h, w)] for n, h, w in _SIZES]


def _resizes(*attributes: str, **constants: object):
    """One model with a Resize per list of attributes, by scales or sizes that are initializers."""
    lines = [
        f" y{k} = Resize<{a}>(x, , {'scales' if 'scales' in constants else ', sizes'})"
        for k, a in enumerate(attributes)
    ]
    outputs = ", ".join(f"float[a{k},b{k},c{k},d{k}] y{k}" for k in range(len(attributes)))
    return parse(f"g (float[n,2,h,w] x) => ({outputs}) {{" + "\n".join(lines) + "}", **constants)


_COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


@pytest.mark.parametrize("scales", [[2.0, 3.0], [0.5, 1.5]])
def test_nearest_by_scales(scales: list[float]):
    attributes = [
        f'mode="nearest", coordinate_transformation_mode="{c}", nearest_mode="{r}", axes=[2,3]'
        for c, r in (
            ("half_pixel", "round_prefer_floor"),
            ("half_pixel", "floor"),
            ("asymmetric", "floor"),
            ("asymmetric", "ceil"),
            ("pytorch_half_pixel", "round_prefer_ceil"),
        )
    ]
    model = _resizes(*attributes, scales=np.array(scales, "float32"))
    assert_like_onnxruntime(model, *[[normal(n, 2, h, w)] for n, h, w in ((2, 5, 7), (1, 16, 3), (1, 11, 8))])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_linear_and_cubic_by_sizes(mode: str):
    attributes = [
        f'mode="{mode}", coordinate_transformation_mode="{c}", axes=[-2,-1]'
        for c in (*_COORDINATES, "half_pixel_symmetric")
    ]
    assert_like_onnxruntime(_resizes(*attributes, sizes=np.array([6, 9])), *_calls())


def test_weights_inside_only_and_another_cubic():
    attributes = 'mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1'
    model = _resizes(attributes, scales=np.array([1, 1, 1.7, 0.8], "float32"))
    assert_like_onnxruntime(model, *[[normal(n, 2, h, w)] for n, h, w in ((2, 5, 7), (1, 16, 3), (1, 11, 8))])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias_covers_what_an_output_covers(mode: str):
    """Taps per output follow the ratio of sizes; a constant stays one whatever the ratio."""
    model = _resizes(f'mode="{mode}", antialias=1, axes=[2,3]', sizes=np.array([3, 5]))
    library = tvm_dyn.compile(model)
    for h, w in ((3, 5), (7, 11), (16, 40), (2, 3)):
        np.testing.assert_allclose(library(np.full((1, 2, h, w), 2.5, "float32"))[0], 2.5, rtol=1e-5)
    # every input element is in reach of some output, which plain sampling would miss
    x = np.zeros((1, 2, 3, 40), "float32")
    x[..., 19] = 1
    assert library(x)[0].any() and abs(library(x)[0].sum() / 6 - 5 / 40) < 0.03


def test_aspect_ratio_is_kept():
    attributes = [f'mode="nearest", keep_aspect_ratio_policy="{p}", axes=[2,3]' for p in ("not_larger", "not_smaller")]
    model = _resizes(*attributes, sizes=np.array([6, 9]))
    library = tvm_dyn.compile(model)
    for h, w in ((3, 3), (5, 7), (13, 2)):
        shapes = [y.shape[2:] for y in library(normal(1, 2, h, w))]
        scales = min(6 / h, 9 / w), max(6 / h, 9 / w)
        assert shapes == [tuple(int(d * s + 0.5) for d in (h, w)) for s in scales]


def test_whole_factors_keep_symbols_simple():
    """2x and 0.5x are integer shape arithmetic, so that what follows still lines up with the input."""
    model = parse(
        "g (float[n,2,h,w] x) => (float[a,b,c,d] y) {"
        ' u = Resize<mode="nearest">(x, , twice)\n v = Resize<mode="linear">(u, , half)\n y = Add(x, v) }',
        twice=np.array([1, 1, 2, 2], "float32"),
        half=np.array([1, 1, 0.5, 0.5], "float32"),
    )
    assert "assert_op" not in import_model(model).script()
    assert_like_onnxruntime(model, *_calls())


def test_sizes_from_another_tensor():
    """As feature pyramids do: up to the extent of the next finer map."""
    model = parse(
        "g (float[n,2,h,w] x, float[n,2,k,m] z) => (float[a,b,c,d] y) {"
        ' s = Shape(z)\n u = Resize<coordinate_transformation_mode="asymmetric", nearest_mode="floor">'
        "(x, , , s)\n y = Add(u, z) }"
    )
    assert_like_onnxruntime(model, *[[normal(1, 2, h, w), normal(1, 2, 2 * h, w + 3)] for h, w in ((2, 3), (5, 1))])


def test_run_time_scales_and_sizes():
    """An empty tensor stands for an operand that is not given."""
    model = parse(
        "g (float[h,w] x, float[2] s, int64[2] k) => (float[a,b] y, float[c,d] z) {"
        ' y = Resize<mode="linear">(x, none, s)\n z = Resize<mode="nearest">(x, none, none, k) }',
        none=np.zeros([0], "float32"),
    )
    calls = [
        [normal(h, w), np.array(s, "float32"), np.array(k)]
        for h, w, s, k in ((4, 5, [2, 0.6], [3, 7]), (1, 9, [3, 1], [1, 2]))
    ]
    library = assert_like_onnxruntime(model, *calls)
    with pytest.raises(CallError, match="no element"):
        library(np.zeros((0, 3), "float32"), calls[0][1], calls[0][2])


def test_crop_and_resize():
    model = parse(
        "g (float[n,2,h,w] x) => (float[a,b,c,d] y, float[e,f,g,i] z) {"
        ' y = Resize<mode="linear", coordinate_transformation_mode="tf_crop_and_resize">(x, roi, , sizes)\n'
        ' z = Resize<mode="linear", coordinate_transformation_mode="tf_crop_and_resize",'
        " extrapolation_value=7.0>(x, beyond, , sizes) }",
        roi=np.array([0, 0, 0.25, 0.1, 1, 1, 0.75, 0.9], "float32"),
        beyond=np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7], "float32"),
        sizes=np.array([1, 2, 4, 3]),
    )
    assert_like_onnxruntime(model, *[[normal(1, 2, h, w)] for h, w in ((5, 7), (16, 2), (11, 8))])


def test_integers_are_cut_off_and_saturate():
    model = parse(
        'g (uint8[n,1,h,w] x) => (uint8[a,b,c,d] y) { y = Resize<mode="cubic">(x, , s) }',
        s=np.array([1, 1, 2, 2], "float32"),
    )
    x = np.array([[0, 255, 255, 0], [255, 0, 0, 255]], "uint8")[None, None]
    y = tvm_dyn.compile(model)(x)[0]
    exact = tvm_dyn.compile(
        parse(
            'g (float[n,1,h,w] x) => (float[a,b,c,d] y) { y = Resize<mode="cubic">(x, , s) }',
            s=np.array([1, 1, 2, 2], "float32"),
        )
    )(x.astype("float32"))[0]
    np.testing.assert_array_equal(y, np.clip(exact, 0, 255).astype("uint8"))
    assert exact.min() < 0 and exact.max() > 255


def test_older_versions():
    scales = np.array([1, 1, 2, 1.5], "float32")
    body = "g (float[n,2,h,w] x) => (float[a,b,c,d] y, float[e,f,g,i] z) {"
    for opset, op in ((9, "Upsample"), (10, "Resize")):
        model = parse(
            body + f' y = {op}<mode="nearest">(x, s)\n z = {op}<mode="linear">(x, s) }}',
            opset=opset,
            s=scales,
        )
        assert_like_onnxruntime(model, *[[normal(n, 2, h, w)] for n, h, w in ((2, 5, 7), (1, 6, 4))])
