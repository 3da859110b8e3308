"""Picking and placing elements by indices, with symbolic, run-time and data-dependent extents."""

import numpy as np
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn


def integers(low: int, high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(low, high, shape)


def test_gather_and_scatter_families():
    model = parse(
        "g (float[n,m] x, int64[k,m] i, float[k,m] u, int64[p,2] j, float[p] v) "
        "=> (float[k,m] a, float[p] b, float[n,m] c, float[n,m] d) { "
        "a = GatherElements<axis=0>(x, i)\n b = GatherND(x, j)\n "
        'c = ScatterElements<axis=0, reduction="add">(x, i, u)\n d = ScatterND<reduction="max">(x, j, v) }'
    )
    calls = []
    for n, m, k, p in [(1, 1, 1, 1), (5, 3, 7, 4), (17, 2, 3, 11), (4, 4, 0, 0)]:
        places = np.stack([integers(-n, n, p), integers(-m, m, p)], axis=1).astype("int64")
        calls.append([normal(n, m), integers(-n, n, k, m), normal(k, m), places, normal(p)])
    assert_like_onnxruntime(model, *calls)


def test_indices_beyond_the_tensor_are_clamped():
    model = parse(
        "g (float[n] x, int64[k] i, float[k] u) => (float[k] a, float[n] b) { "
        "a = GatherElements(x, i)\n b = ScatterElements(x, i, u) }"
    )
    far = np.array([10**12, -(10**12)])
    a, b = tvm_dyn.compile(model)(np.arange(5.0, dtype="float32"), far, np.array([7.0, 8.0], "float32"))
    np.testing.assert_array_equal(a, [4, 0])
    np.testing.assert_array_equal(b, [8, 1, 2, 3, 7])


def test_top_k_takes_a_run_time_k_and_the_first_of_equals():
    model = parse(
        "g (float[n,m] x, int64[1] k) => (float[n,q] a, int64[n,q] b, float[n,r] c, int64[n,r] d) { "
        "a, b = TopK<largest=1>(x, k)\n c, d = TopK<largest=0>(x, k) }"
    )
    shapes = [(1, 1, 1), (3, 7, 2), (2, 17, 17), (5, 4, 1)]
    calls = [[np.round(normal(n, m)), np.array([k])] for n, m, k in shapes]
    assert_like_onnxruntime(model, *calls)


def test_extents_that_depend_on_data():
    model = parse(
        "g (float[n,m] x, bool[n] keep) => (int64[r,c] places, float[q,m] rows, float[q,m] twice) { "
        "places = NonZero(x)\n rows = Compress<axis=0>(x, keep)\n twice = Add(rows, rows) }"
    )
    calls = []
    for n, m in [(1, 1), (5, 3), (17, 2)]:
        keep = normal(n, seed=3) > 0
        calls.append([np.where(normal(n, m) > 0, normal(n, m), 0).astype("float32"), keep])
    assert_like_onnxruntime(model, *calls, [np.zeros((3, 2), "float32"), np.zeros(3, bool)])


def test_one_hot_with_the_depth_of_another_input():
    model = parse(
        "g (int64[n] i, float[d] table, float[2] values) => (float[n,q] y) "
        "{ s = Shape(table)\n y = OneHot<axis=-1>(i, s, values) }"
    )
    values = np.array([0.5, 2.0], "float32")
    assert_like_onnxruntime(
        model, *[[integers(-d, d, n), normal(d), values] for n, d in [(1, 1), (5, 7), (3, 16)]]
    )


def test_triangles_and_reversed_sequences():
    model = parse(
        "g (float[n,m] x, int64[m] lengths) => (float[n,m] a, float[n,m] b, float[n,m] c) { "
        "a = Trilu<upper=0>(x, one)\n b = Trilu<upper=1>(x, one)\n "
        "c = ReverseSequence<time_axis=0, batch_axis=1>(x, lengths) }",
        one=np.array(1),
    )
    shapes = [(1, 1), (5, 3), (4, 17)]
    assert_like_onnxruntime(model, *[[normal(n, m), integers(1, n + 1, m)] for n, m in shapes])


def test_boxes_that_overlap_less_than_the_threshold_stay():
    for centred in (0, 1):
        model = parse(
            "g (float[b,n,4] boxes, float[b,c,n] scores) => (int64[k,3] y) "
            f"{{ y = NonMaxSuppression<center_point_box={centred}>(boxes, scores, most, overlap, least) }}",
            most=np.array([3]),
            overlap=np.array([0.4], "float32"),
            least=np.array([0.1], "float32"),
        )
        shapes = [(1, 1, 1), (2, 3, 17), (1, 2, 40)]
        assert_like_onnxruntime(
            model, *[[np.abs(normal(b, n, 4)), np.abs(normal(b, c, n))] for b, c, n in shapes]
        )
