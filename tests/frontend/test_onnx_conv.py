"""Conv and ConvTranspose of every rank against onnxruntime at several extents."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn
from tvm_dyn.errors import CallError, InvalidModelError

_SIZES = ((1, 7, 7), (2, 5, 11), (1, 8, 9), (3, 17, 6))


def test_pads_strides_dilations_groups():
    model = parse(
        "g (float[n,4,h,w] x) => (float[a,b,c,d] y, float[e,f,g,h] u, float[i,j,k,l] v) {"
        " y = Conv<pads=[1,0,2,1], strides=[2,1]>(x, dense, bias)\n"
        " u = Conv<dilations=[2,2], group=2, pads=[2,2,2,2]>(x, grouped)\n"
        " v = Conv<group=4>(x, depth) }",
        dense=normal(5, 4, 3, 2),
        bias=normal(5),
        grouped=normal(6, 2, 3, 3),
        depth=normal(8, 1, 2, 2),
    )
    assert_like_onnxruntime(model, *[[normal(n, 4, h, w)] for n, h, w in _SIZES])


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad_of_a_symbolic_extent(auto_pad: str):
    """With stride 2 the pads depend on whether the extent is odd."""
    model = parse(
        "g (float[n,2,h,w] x) => (float[a,b,c,d] y, float[e,f,g,h] u) {"
        f' y = Conv<auto_pad="{auto_pad}", strides=[2,3]>(x, odd)\n'
        f' u = Conv<auto_pad="{auto_pad}">(x, even) }}',
        odd=normal(3, 2, 3, 3),
        even=normal(3, 2, 2, 4),
    )
    assert_like_onnxruntime(model, *[[normal(n, 2, h, w)] for n, h, w in _SIZES])


def test_other_ranks():
    model = parse(
        "g (float[n,2,w] x, float[n,2,d,5,w] z) => (float[a,b,c] y, float[d,e,f,g,h] u) {"
        ' y = Conv<auto_pad="SAME_UPPER", strides=[2]>(x, line)\n'
        " u = Conv<pads=[1,1,1,1,1,1]>(z, cube) }",
        line=normal(3, 2, 4),
        cube=normal(2, 2, 3, 3, 3),
    )
    assert_like_onnxruntime(model, *[[normal(n, 2, w), normal(n, 2, d, 5, w)] for n, d, w in ((1, 3, 5), (2, 1, 8))])


def test_four_spatial_axes():
    weight = normal(2, 2, 2, 1, 2, 2)
    model = parse(
        "g (float[n,2,a,b,c,d] x) => (float[e,f,i,j,k,l] y) { y = Conv<pads=[1,0,0,0,0,0,0,1]>(x, w) }",
        w=weight,
    )
    library = tvm_dyn.compile(model)
    for extents in ((1, 2, 3, 4), (3, 1, 5, 2)):
        x = normal(2, 2, *extents)
        padded = np.pad(x.astype("float64"), [(0, 0), (0, 0), (1, 0), (0, 0), (0, 0), (0, 1)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(2, 3, 4, 5))
        want = np.einsum("ncabdeuvwx,fcuvwx->nfabde", windows, weight)
        np.testing.assert_allclose(library(x)[0], want, rtol=1e-4, atol=1e-5)


def test_run_time_weights():
    model = parse(
        "g (float[n,c,h,w] x, float[f,k,3,3] k, float[f] b) => (float[o,p,q,r] y){ y = Conv<pads=[1,1,1,1]>(x, k, b) }"
    )
    library = assert_like_onnxruntime(
        model, *[[normal(1, c, 5, 4), normal(f, c, 3, 3), normal(f)] for c, f in ((1, 2), (5, 3))]
    )
    with pytest.raises(CallError):
        library(normal(1, 2, 5, 4), normal(3, 3, 3, 3), normal(3))


def test_a_window_that_does_not_fit():
    model = parse("g (float[n,1,h,w] x) => (float[a,b,c,d] y) { y = Conv(x, k) }", k=normal(1, 1, 5, 5))
    with pytest.raises(CallError, match="larger than the padded input"):
        tvm_dyn.compile(model)(normal(1, 1, 2, 9))
    static = parse("g (float[n,1,2,9] x) => (float[a,b,c,d] y) { y = Conv(x, k) }", k=normal(1, 1, 5, 5))
    with pytest.raises(InvalidModelError, match="larger than the padded input"):
        tvm_dyn.compile(static)


# -- transposed ----------------------------------------------------------------------------------------------


def test_transposed_strides_pads_groups_dilations():
    model = parse(
        "g (float[n,4,h,w] x) => (float[a,b,c,d] y, float[e,f,g,h] u, float[i,j,k,l] v, float[m,o,p,q] z) {"
        " y = ConvTranspose<strides=[2,2]>(x, square, bias)\n"
        " u = ConvTranspose<strides=[2,3], pads=[1,0,2,1], output_padding=[1,2]>(x, dense)\n"
        " v = ConvTranspose<group=2, dilations=[2,1], strides=[3,2]>(x, grouped)\n"
        " z = ConvTranspose(x, dense) }",
        square=normal(4, 3, 2, 2),
        bias=normal(3),
        dense=normal(4, 2, 3, 4),
        grouped=normal(4, 3, 3, 2),
    )
    assert_like_onnxruntime(model, *[[normal(n, 4, h, w)] for n, h, w in ((1, 1, 2), (2, 5, 3), (1, 7, 8))])


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_to_a_multiple_of_the_input(auto_pad: str):
    model = parse(
        f'g (float[n,2,w] x) => (float[a,b,c] y){{ y = ConvTranspose<auto_pad="{auto_pad}", strides=[2]>(x, k) }}',
        k=normal(2, 3, 5),
    )
    assert_like_onnxruntime(model, *[[normal(n, 2, w)] for n, w in ((1, 1), (2, 5), (1, 8))])


def test_transposed_to_a_given_size():
    """The pads follow from the size; where the sum of the windows is shorter, zeros follow."""
    model = parse(
        "g (float[1,2,w] x) => (float[a,b,c] y) { y = ConvTranspose<output_shape=[13], strides=[2]>(x, k) }",
        k=normal(2, 3, 3),
    )
    assert_like_onnxruntime(model, *[[normal(1, 2, w)] for w in (6, 7, 9)])


def test_transposed_with_run_time_weights():
    model = parse(
        "g (float[n,c,h,w] x, float[c,f,3,2] k) => (float[o,p,q,r] y)"
        "{ y = ConvTranspose<strides=[2,2], group=2>(x, k) }"
    )
    assert_like_onnxruntime(model, *[[normal(1, 4, h, w), normal(4, f, 3, 2)] for h, w, f in ((1, 3, 2), (5, 2, 1))])
