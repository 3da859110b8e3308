"""Operators that rearrange space, against onnxruntime or the definition in numpy."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn
from tvm_dyn.errors import CallError


def test_depth_to_space_and_back():
    model = parse(
        "g (float[n,8,h,w] x) => (float[a,b,c,d] y, float[e,f,g,i] u, float[j,k,l,m] v) {"
        ' y = DepthToSpace<blocksize=2>(x)\n u = DepthToSpace<blocksize=2, mode="CRD">(x)\n'
        " v = SpaceToDepth<blocksize=2>(y) }"
    )
    assert_like_onnxruntime(model, *[[normal(n, 8, h, w)] for n, h, w in ((1, 1, 1), (2, 3, 5), (1, 7, 4))])


def test_blocks_must_fill_the_space():
    model = parse("g (float[n,c,h,w] x) => (float[a,b,d,e] y) { y = SpaceToDepth<blocksize=3>(x) }")
    library = assert_like_onnxruntime(model, *[[normal(1, 2, h, w)] for h, w in ((3, 6), (9, 3))])
    with pytest.raises(CallError, match="blocks"):
        library(normal(1, 2, 4, 6))


def test_columns_to_image():
    """Overlapping blocks add up, with strides, pads and dilations."""
    model = parse(
        "g (float[n,c,l] x) => (float[a,b,d,e] y) {"
        " y = Col2Im<strides=[2,1], pads=[1,0,0,1], dilations=[1,2]>(x, image, block) }",
        image=np.array([7, 8]),
        block=np.array([3, 2]),
    )
    library = tvm_dyn.compile(model)
    rows, columns = (7 + 1 - 3) // 2 + 1, 8 + 1 - 3 + 1
    for n, channels in ((1, 1), (2, 3)):
        x = normal(n, channels * 6, rows * columns).astype("float64")
        image = np.zeros((n, channels, 8, 9))
        taps = x.reshape(n, channels, 3, 2, rows, columns)
        for a in range(3):
            for b in range(2):
                image[:, :, a : a + 2 * rows : 2, 2 * b : 2 * b + columns] += taps[:, :, a, b]
        np.testing.assert_allclose(library(x.astype("float32"))[0], image[:, :, 1:, :8], rtol=1e-4, atol=1e-5)


def test_centres_meet():
    model = parse("g (float[h,w,3] x, int64[2] t) => (float[a,b,c] y) { y = CenterCropPad<axes=[0,1]>(x, t) }")
    library = tvm_dyn.compile(model)
    for h, w, target in ((4, 5, [2, 8]), (7, 3, [4, 4]), (1, 6, [5, 6]), (10, 1, [3, 1])):
        x, want = normal(h, w, 3), np.zeros((*target, 3), "float32")
        ranges = []
        for have, wanted in zip((h, w), target, strict=True):
            kept, cut, front = min(have, wanted), max(have - wanted, 0) // 2, max(wanted - have, 0) // 2
            ranges.append((slice(front, front + kept), slice(cut, cut + kept)))
        want[ranges[0][0], ranges[1][0]] = x[ranges[0][1], ranges[1][1]]
        np.testing.assert_array_equal(library(x, np.array(target))[0], want)
