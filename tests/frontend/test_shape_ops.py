"""Operators that move data, at extents {1, primes, ...} and with bounds that only the run knows."""

import numpy as np
from graphs import assert_like_onnxruntime, normal, parse


def ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


def test_slices():
    model = parse(
        "g (float[n,7] x) => (float[a] y, float[b] z, float[c] u, float[d] v, float[e] w) {"
        "y = Slice(x, m2, big, ax0)\n z = Slice(x, one, m1, ax0)\n u = Slice(x, m1, low, ax0, m1)\n"
        "v = Slice(x, one, big, ax1, two)\n w = Slice(x, five, two, ax0) }",
        m1=ints(-1), m2=ints(-2), one=ints(1), two=ints(2), five=ints(5), big=ints(2**63 - 1), low=ints(-(2**63) + 1),
        ax0=ints(0), ax1=ints(1),
    )  # fmt: skip
    assert_like_onnxruntime(model, *[[normal(n, 7)] for n in (0, 1, 2, 3, 13)])


def test_slices_with_bounds_from_the_run():
    model = parse("g (float[n,4] x, int64[1] s, int64[1] e) => (float[a] y) { y = Slice(x, s, e) }")
    calls = [(1, 3), (-3, -1), (0, 100), (4, 2), (-100, 100)]
    assert_like_onnxruntime(model, *[[normal(5, 4), ints(s), ints(e)] for s, e in calls])


def test_reshapes():
    model = parse(
        "g (float[b,s,12] x) => (float[o] y, float[p] z, float[q] w) { y = Reshape(x, heads)\n z = Flatten<axis=2>(x)\n"
        "t = Reshape(y, back)\n w = Add(t, x) }",
        heads=ints(0, 0, 3, -1),
        back=ints(0, -1, 12),
    )
    assert_like_onnxruntime(model, *[[normal(b, s, 12)] for b, s in ((1, 1), (2, 5), (3, 17))])


def test_squeeze_without_axes_gives_the_declared_rank():
    text = "g (float[n,1] x) => (float y) { s = Squeeze(x)\n t = Mul(s, two)\n y = Add(t, two) }"
    model = parse(text, two=np.float32(2))
    library = assert_like_onnxruntime(model, [normal(1, 1)])
    assert library.outputs[0].shape == ()


def test_reshape_to_a_shape_from_the_run():
    model = parse("g (float[n,6] x, int64[3] s) => (float[o] y) { t = Reshape(x, s)\n y = Exp(t) }")
    assert_like_onnxruntime(
        model, [normal(4, 6), ints(2, -1, 3)], [normal(5, 6), ints(0, 6, 1)], [normal(1, 6), ints(1, 2, 3)]
    )


def test_splits_and_concats():
    model = parse(
        "g (float[n,6] x, float[m,6] z) => (float[o] y, float[p] w) { a, b, c = Split<axis=0, num_outputs=3>(x)\n"
        "y = Concat<axis=0>(c, z, a)\n d, e = Split<axis=1>(x, parts)\n w = Concat<axis=1>(e, d, e) }",
        parts=ints(2, 4),
    )
    assert_like_onnxruntime(model, *[[normal(n, 6), normal(m, 6)] for n, m in ((3, 1), (7, 2), (9, 5))])


def test_gather_counts_from_the_end():
    model = parse(
        "g (float[n,3] x, int64[k] i) => (float[o] y, float[p] z, float[q] w) "
        "{ y = Gather(x, i)\n z = Gather<axis=1>(x, last)\n w = Gather(x, last) }",
        last=np.array(-1),
    )
    assert_like_onnxruntime(
        model, [normal(4, 3), ints(0, -1, 2)], [normal(2, 3), ints(-2)], [normal(1, 3), ints(0, 0, -1, 0)]
    )


def test_repeats():
    model = parse(
        "g (float[n,3] x, int64[2] r) => (float[o] y, float[p] z) { y = Tile(x, r)\n z = Tile(x, fixed) }",
        fixed=ints(3, 2),
    )
    assert_like_onnxruntime(model, [normal(2, 3), ints(1, 2)], [normal(5, 3), ints(3, 1)])


def test_ranges():
    model = parse(
        "g (int64 a, int64 b, float f, float h) => (int64[o] y, float[p] z) "
        "{ y = Range(a, b, three)\n z = Range(f, h, quarter) }",
        three=np.array(3),
        quarter=np.array(0.25, "float32"),
    )
    for a, b in ((0, 7), (-5, 4), (4, -5)):
        assert_like_onnxruntime(
            model, [np.array(a), np.array(b), np.array(0.5, "float32"), np.array(2.1, "float32")]
        )


def test_shape_values_reach_tensors():
    model = parse(
        "g (float[n,m] x) => (int64[o] y, float[p] z, int64 s) "
        "{ y = Shape(x)\n f = Cast<to=1>(y)\n z = Mul(f, half)\n s = Size(x) }",
        half=np.array(0.5, "float32"),
    )
    assert_like_onnxruntime(model, [normal(3, 5)], [normal(1, 8)])
