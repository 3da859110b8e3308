"""Matrix products against float64 references, at empty, single, prime and tile-edge extents."""

from __future__ import annotations

import numpy as np
import pytest
from harness import TARGET, Compiled, dim, random, scheduled
from scipy.special import erf
from tvm.relax import op
from tvm.relax.op import nn

from tvm_dyn.schedules.matmul_kernel import MatmulTile

B, S, M, N, K = dim("b"), dim("s"), dim("m"), dim("n"), dim("k")
TILE = MatmulTile.for_target(TARGET, "float32")
WIDTH = TILE.lanes * TILE.vectors
ROWS = sorted(
    {0, 1, 2, 3, 5, 7, 13, TILE.pack_rows - 1, TILE.pack_rows, TILE.block_rows - 1, TILE.block_rows + 1}
    | {TILE.rows[0] + d for d in (-1, 0, 1)}
)
COLUMNS = [0, 1, 7, TILE.lanes - 1, TILE.lanes, TILE.lanes + 1, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH + 37]


def _close(got, expected, depth):
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6 * max(depth, 1))


def _product(a, b):
    return a.astype("float64") @ b.astype("float64")


def test_every_extent_symbolic():
    kernel = Compiled([((M, K), "float32"), ((K, N), "float32")], lambda bb, a, b: bb.emit(op.matmul(a, b)))
    cases = [(m, 19, 33) for m in ROWS] + [(13, n, 33) for n in COLUMNS] + [(7, 70, k) for k in (0, 1, 2, 64)]
    for i, (m, n, k) in enumerate(cases):
        a, b = random((m, k), seed=i), random((k, n), seed=i + 1)
        _close(kernel(a, b), _product(a, b), k)


@pytest.mark.parametrize("n", [1, 10, 64, 100, 192])
def test_dense_with_bias_gelu_and_residual(n):
    def graph(bb, x, w, b, r):
        y = bb.emit(nn.gelu(bb.emit(op.add(bb.emit(op.matmul(x, w)), b))))
        return bb.emit(op.add(y, r))

    inputs = [((B, S, 48), "float32"), ((48, n), "float32"), ((n,), "float32"), ((B, S, n), "float32")]
    assert len(scheduled(inputs, graph)) == 1
    kernel = Compiled(inputs, graph)
    w, b = random((48, n), seed=1), random((n,), seed=2)
    for i, (batch, rows) in enumerate([(1, m) for m in ROWS] + [(0, 5), (3, 7), (5, 37)]):
        x, r = random((batch, rows, 48), seed=i), random((batch, rows, n), seed=i + 1)
        y = _product(x, w) + b
        _close(kernel(x, w, b, r), y * 0.5 * (1 + erf(y / np.sqrt(2))) + r, 48)


@pytest.mark.parametrize("n", [5, 64, 70, N])
def test_batched(n):
    inputs = [((B, 3, S, K), "float32"), ((B, 3, K, n), "float32")]
    kernel = Compiled(inputs, lambda bb, a, b: bb.emit(op.matmul(a, b)))
    for i, (batch, s, k) in enumerate([(1, 1, 1), (2, 7, 5), (0, 4, 4), (1, 6, 64), (2, 50, 17), (3, 13, 0)]):
        columns = s if n is N else n
        a, b = random((batch, 3, s, k), seed=i), random((batch, 3, k, columns), seed=i + 1)
        _close(kernel(a, b), _product(a, b), k)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((B, 3, S, 20), (3, 20, 40)),
        ((B, 3, S, 20), (20, 40)),
        ((3, S, 20), (B, 3, 20, 40)),
        ((B, 1, S, 20), (B, 3, 20, 40)),
        ((20,), (B, 20, 40)),
        ((B, S, 20), (20,)),
    ],
)
def test_broadcast_batches_and_vectors(left, right):
    kernel = Compiled([(left, "float32"), (right, "float32")], lambda bb, a, b: bb.emit(op.matmul(a, b)))
    for i, (batch, s) in enumerate([(1, 1), (2, 7), (3, 50), (0, 5)]):
        concrete = [[{B: batch, S: s}.get(d, d) for d in shape] for shape in (left, right)]
        a, b = random(concrete[0], seed=i), random(concrete[1], seed=i + 1)
        _close(kernel(a, b), _product(a, b), 20)


@pytest.mark.parametrize(("dtype", "out"), [("int8", "int32"), ("uint8", "int32"), ("int32", "int32")])
def test_integers(dtype, out):
    inputs = [((M, K), dtype), ((K, N), dtype)]
    kernel = Compiled(inputs, lambda bb, a, b: bb.emit(op.matmul(a, b, out_dtype=out)))
    for i, (m, n, k) in enumerate([(1, 1, 1), (0, 3, 4), (7, 65, 33), (50, 130, 17)]):
        a, b = random((m, k), dtype, seed=i), random((k, n), dtype, seed=i + 1)
        np.testing.assert_array_equal(kernel(a, b), a.astype("int64") @ b.astype("int64"))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_floats(dtype):
    kernel = Compiled([((M, K), dtype), ((K, N), dtype)], lambda bb, a, b: bb.emit(op.matmul(a, b)))
    tolerance = 1e-12 if dtype == "float64" else 2e-3
    for i, (m, n, k) in enumerate([(1, 1, 1), (7, 65, 33), (50, 130, 17)]):
        a, b = random((m, k), dtype, seed=i), random((k, n), dtype, seed=i + 1)
        np.testing.assert_allclose(kernel(a, b), _product(a, b), rtol=tolerance, atol=tolerance * 4)


def test_float16_accumulates_in_single_precision():
    kernel = Compiled([((M, K), "float16"), ((K, 8), "float16")], lambda bb, a, b: bb.emit(op.matmul(a, b)))
    ones = np.ones((1, 5000), "float16"), np.ones((5000, 8), "float16")
    assert (kernel(*ones) == 5000).all()  # in half precision the sum stops at 2048


def test_transposed_weights():
    def graph(bb, x, w):
        return bb.emit(op.matmul(x, bb.emit(op.permute_dims(w))))

    kernel = Compiled([((M, 40), "float32"), ((N, 40), "float32")], graph)
    for i, (m, n) in enumerate([(1, 5), (7, 64), (60, 130)]):
        x, w = random((m, 40), seed=i), random((n, 40), seed=i + 1)
        _close(kernel(x, w), _product(x, w.T), 40)


def test_result_in_another_order():
    """A consumer that permutes the axes still joins the tile or at least stays right."""

    def graph(bb, a, b):
        return bb.emit(op.permute_dims(bb.emit(op.matmul(a, b)), [0, 2, 1, 3]))

    kernel = Compiled([((B, 3, S, 8), "float32"), ((B, 3, 8, 24), "float32")], graph)
    a, b = random((2, 3, 13, 8)), random((2, 3, 8, 24), seed=1)
    _close(kernel(a, b), _product(a, b).transpose(0, 2, 1, 3), 8)


def test_loops_of_the_tile_are_vectors():
    inputs = [((M, 768), "float32"), ((768, 768), "float32")]
    script = scheduled(inputs, lambda bb, a, b: bb.emit(op.matmul(a, b)))[0].script()
    assert "T.parallel" in script
    assert f"T.vectorized(T.int64({TILE.lanes}))" in script
    assert "T.where" not in script
