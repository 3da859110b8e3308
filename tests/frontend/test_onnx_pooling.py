"""Poolings of every rank against onnxruntime at several extents."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn

_SIZES = ((1, 5, 7), (2, 8, 6), (1, 17, 9))


def _calls(*channels: int) -> list[list[np.ndarray]]:
    return [[normal(n, *channels, h, w)] for n, h, w in _SIZES]


def test_max_pool():
    model = parse(
        "g (float[n,3,h,w] x) => (float[a,b,c,d] y, float[e,f,g,h] u, float[i,j,k,l] v, float[m,o,p,q] z) {"
        " y = MaxPool<kernel_shape=[2,2]>(x)\n"
        " u = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)\n"
        " v = MaxPool<kernel_shape=[3,2], dilations=[2,1], strides=[1,3], pads=[0,1,1,0]>(x)\n"
        ' z = MaxPool<kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER">(x) }'
    )
    assert_like_onnxruntime(model, *_calls(3))


def test_ceil_mode_drops_windows_that_start_behind_the_data():
    model = parse(
        "g (float[n,2,h,w] x) => (float[a,b,c,d] y, float[e,f,g,h] u, float[i,j,k,l] v) {"
        " y = MaxPool<kernel_shape=[3,2], strides=[2,3], pads=[1,0,1,1], ceil_mode=1>(x)\n"
        " u = AveragePool<kernel_shape=[3,2], strides=[2,3], pads=[1,0,1,1], ceil_mode=1>(x)\n"
        " v = MaxPool<kernel_shape=[1,1], strides=[2,2], ceil_mode=1>(x) }",
        opset=19,
    )
    assert_like_onnxruntime(model, *_calls(2))


@pytest.mark.parametrize("storage_order", [0, 1])
def test_places_of_the_maxima(storage_order: int):
    attributes = f"kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1], storage_order={storage_order}"
    model = parse(f"g (float[n,2,h,w] x) => (float[a,b,c,d] y, int64[e,f,g,h] i) {{ y, i = MaxPool<{attributes}>(x) }}")
    ties = np.round(normal(2, 2, 6, 5))
    assert_like_onnxruntime(model, [ties], *_calls(2))


def test_average_pool():
    model = parse(
        "g (float[n,3,h,w] x) => (float[a,b,c,d] y, float[e,f,g,h] u, float[i,j,k,l] v, float[m,o,p,q] z) {"
        " y = AveragePool<kernel_shape=[2,3], pads=[1,1,0,1]>(x)\n"
        " u = AveragePool<kernel_shape=[2,3], pads=[1,1,0,1], strides=[2,2], count_include_pad=1>(x)\n"
        " v = AveragePool<kernel_shape=[2,2], dilations=[2,3], pads=[1,1,1,1]>(x)\n"
        ' z = AveragePool<kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_LOWER">(x) }',
        opset=19,
    )
    assert_like_onnxruntime(model, *_calls(3))


def test_other_ranks_and_types():
    model = parse(
        "g (float[n,2,w] x, float[n,2,d,4,w] z, uint8[n,2,w] q) =>"
        "(float[a,b,c] y, float[d,e,f,g,h] u, uint8[i,j,k] v) {"
        " y = AveragePool<kernel_shape=[4], strides=[3]>(x)\n"
        " u = MaxPool<kernel_shape=[2,2,2], strides=[2,1,2], pads=[1,0,0,0,0,1]>(z)\n"
        " v = MaxPool<kernel_shape=[3]>(q) }"
    )
    calls = [
        [normal(n, 2, w), normal(n, 2, d, 4, w), (np.abs(normal(n, 2, w)) * 80).astype("uint8")]
        for n, d, w in ((1, 2, 5), (2, 3, 11))
    ]
    assert_like_onnxruntime(model, *calls)


def test_norms_and_global_poolings():
    model = parse(
        "g (float[n,3,h,w] x) =>"
        "(float[a,b,c,d] y, float[e,f,g,h] u, float[i,j,k,l] v, float[m,o,p,q] z, float[r,s,t,w] k) {"
        " y = LpPool<kernel_shape=[2,2], strides=[2,2]>(x)\n"
        " u = LpPool<kernel_shape=[3,2], p=3, pads=[1,1,0,0]>(x)\n"
        " v = GlobalAveragePool(x)\n z = GlobalMaxPool(x)\n k = GlobalLpPool<p=3>(x) }"
    )
    assert_like_onnxruntime(model, *_calls(3), [normal(2, 3, 2, 3)])


def test_max_unpool_inverts_max_pool():
    model = parse(
        "g (float[n,2,h,w] x) => (float[a,b,c,d] y) {"
        " p, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)\n"
        " y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(p, i) }"
    )
    library = tvm_dyn.compile(model)
    for n, h, w in ((1, 2, 2), (2, 6, 4)):
        x = normal(n, 2, h, w)
        blocks = x.reshape(n, 2, h // 2, 2, w // 2, 2)
        keep = blocks == blocks.max(axis=(3, 5), keepdims=True)
        np.testing.assert_array_equal(library(x)[0], np.where(keep, blocks, 0).reshape(x.shape))
