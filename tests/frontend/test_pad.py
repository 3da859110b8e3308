"""Pad in every mode, with amounts known at import, as symbols, and only at run time."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn
from tvm_dyn.errors import CallError


def test_all_modes():
    model = parse(
        "g (float[n,h,w] x) =>"
        "(float[a,b,c] y, float[d,e,f] r, float[g,i,j] e, float[k,l,m] z, float[o,p,q] k) {"
        " y = Pad(x, pads, value)\n"
        ' r = Pad<mode="reflect">(x, pads)\n'
        ' e = Pad<mode="edge">(x, pads)\n'
        ' z = Pad<mode="wrap">(x, pads)\n'
        " k = Pad(x, cut) }",
        opset=19,
        pads=np.array([0, 2, 1, 1, 0, 2]),
        cut=np.array([1, -1, 0, 0, 2, -2]),
        value=np.float32(2.5),
    )
    library = tvm_dyn.compile(model)
    for n, h, w in ((1, 3, 3), (2, 5, 7), (3, 11, 4)):
        x = normal(n, h, w)
        amounts = [(0, 1), (2, 0), (1, 2)]
        x = x if n > 1 else normal(2, h, w)
        constant, reflect, edge, wrap, cut = library(x)
        np.testing.assert_array_equal(constant, np.pad(x, amounts, constant_values=2.5))
        for got, mode in ((reflect, "reflect"), (edge, "edge"), (wrap, "wrap")):
            np.testing.assert_array_equal(got, np.pad(x, amounts, mode=mode))
        np.testing.assert_array_equal(cut, np.pad(x, [(1, 0), (0, 2), (0, 0)])[:, 1:, :-2])


def test_pads_longer_than_the_data():
    model = parse(
        'g (float[w] x) => (float[a] r, float[b] z) { r = Pad<mode="reflect">(x, pads)\n'
        ' z = Pad<mode="wrap">(x, pads) }',
        opset=19,
        pads=np.array([5, 7]),
    )
    library = tvm_dyn.compile(model)
    for w in (1, 2, 3, 13):
        x = normal(w)
        for got, mode in zip(library(x), ("reflect", "wrap"), strict=True):
            np.testing.assert_array_equal(got, np.pad(x, (5, 7), mode=mode))


def test_amounts_from_shapes_and_axes():
    """Pad to a multiple of 8, as speech models do."""
    model = parse(
        "g (float[n,c,w] x) => (float[a,b,c] y) {"
        " s = Shape<start=2>(x)\n e = Constant<value_ints=[8]>()\n"
        " m = Mod(s, e)\n d = Sub(e, m)\n r = Mod(d, e)\n"
        " z = Constant<value_ints=[0]>()\n p = Concat<axis=0>(z, r)\n k = Constant<value_ints=[-1]>()\n"
        " y = Pad(x, p, , k) }"
    )
    library = tvm_dyn.compile(model)
    for w in (1, 7, 8, 9, 16):
        x = normal(2, 3, w)
        np.testing.assert_array_equal(library(x)[0], np.pad(x, [(0, 0), (0, 0), (0, -w % 8)]))


def test_run_time_amounts_and_value():
    model = parse("g (float[h,w] x, int64[4] p, float v) => (float[a,b] y) { y = Pad(x, p, v) }")
    value = np.array(-1.5, "float32")
    calls = [[normal(3, 5), np.array(p), value] for p in ([0, 0, 0, 0], [1, 2, 3, 4], [-1, 0, 2, -3])]
    library = assert_like_onnxruntime(model, *calls)
    with pytest.raises(CallError, match="more is cut off"):
        library(normal(2, 2), np.array([-2, 0, -1, 0]), value)


def test_integers_and_booleans():
    model = parse(
        "g (int32[w] x, bool[w] b) => (int32[a] y, bool[c] z) { y = Pad(x, p, seven)\n z = Pad(b, p, yes) }",
        p=np.array([1, 2]),
        seven=np.int32(7),
        yes=np.bool_(True),
    )
    y, z = tvm_dyn.compile(model)(np.arange(3, dtype="int32"), np.zeros(3, bool))
    assert y.tolist() == [7, 0, 1, 2, 7, 7] and z.tolist() == [True, False, False, False, True, True]
