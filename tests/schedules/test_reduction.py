"""Reductions against float64 references, at empty, single, prime and tile-edge extents."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Compiled, dim, random
from tvm.relax import op
from tvm.relax.op import nn

B, S, N = dim("b"), dim("s"), dim("n")
EXTENTS = [0, 1, 2, 13, 15, 16, 17, 63, 64, 65, 127, 257]
SHAPES = [(0, 3, 5), (2, 0, 5), (1, 1, 1), (3, 5, 7)] + [(2, 3, n) for n in EXTENTS if n] + [(1, 67, 300)]


def _softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _check(kernel, reference, shapes, *, empty=True, tolerance=1e-5):
    for i, shape in enumerate(shapes):
        if not empty and 0 in shape:
            continue
        x = random(shape, seed=i)
        np.testing.assert_allclose(kernel(x), reference(x.astype("float64")), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("axis", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sum_over_any_axes(axis, keepdims):
    kernel = Compiled([((B, S, N), "float32")], lambda bb, x: bb.emit(op.sum(x, axis, keepdims)))
    shapes = [*SHAPES, (3, 4, 0)]
    _check(kernel, lambda x: x.sum(tuple(axis), keepdims=keepdims), shapes, tolerance=1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["max", "min", "prod", "mean"])
def test_other_operators(name, axis):
    kernel = Compiled([((B, S, N), "float32")], lambda bb, x: bb.emit(getattr(op, name)(x, axis)))
    shapes = [s for s in SHAPES if s[axis]]
    _check(kernel, lambda x: getattr(np, name)(x, axis), shapes, tolerance=1e-4)


def test_empty_extents_give_the_initial_value():
    total = Compiled([((B, N), "float32")], lambda bb, x: bb.emit(op.sum(x, -1)))
    assert (total(np.zeros((5, 0), "float32")) == 0).all()
    columns = Compiled([((B, N), "float32")], lambda bb, x: bb.emit(op.sum(x, 0)))
    assert (columns(np.zeros((0, 300), "float32")) == 0).all()
    largest = Compiled([((B, N), "float32")], lambda bb, x: bb.emit(op.max(x, -1)))
    assert (largest(np.zeros((3, 0), "float32")) == -np.inf).all()
    mean = Compiled([((B, N), "float32")], lambda bb, x: bb.emit(op.mean(x, -1)))
    assert np.isnan(mean(np.zeros((3, 0), "float32"))).all()


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "float16"])
def test_sum_of_other_types(dtype):
    kernel = Compiled([((B, N), dtype)], lambda bb, x: bb.emit(op.sum(x, -1)))
    for n in EXTENTS:
        x = random((3, n), dtype, seed=n)
        np.testing.assert_allclose(kernel(x), x.astype("float64").sum(-1), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_argmax_and_argmin(axis):
    for name in ("argmax", "argmin"):
        kernel = Compiled([((B, S, N), "float32")], lambda bb, x, n=name: bb.emit(getattr(op, n)(x, axis)))
        for i, shape in enumerate(s for s in SHAPES if 0 not in s):
            x = np.round(random(shape, seed=i))  # ties: the first one wins
            np.testing.assert_array_equal(kernel(x), getattr(np, name)(x, axis))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis):
    kernel = Compiled([((B, S, N), "float32")], lambda bb, x: bb.emit(nn.softmax(x, axis)))
    _check(kernel, lambda x: _softmax(x, axis), [s for s in SHAPES if s[axis]])


def test_log_softmax():
    kernel = Compiled([((B, S, N), "float32")], lambda bb, x: bb.emit(nn.log_softmax(x)))
    _check(kernel, lambda x: np.log(_softmax(x, -1)), [s for s in SHAPES if s[-1]])


@pytest.mark.parametrize("columns", [N, 96, 768])
def test_layer_norm_with_residual(columns):
    def graph(bb, x, g, b, r):
        return bb.emit(op.add(bb.emit(nn.layer_norm(x, g, b, -1)), r))

    vector = ((columns,), "float32")
    kernel = Compiled([((B, S, columns), "float32"), vector, vector, ((B, S, columns), "float32")], graph)
    for i, shape in enumerate(SHAPES):
        shape = shape if columns is N else (*shape[:2], columns)
        x, r = random(shape, seed=i), random(shape, seed=i + 1)
        g, b = random(shape[-1:], seed=i + 2), random(shape[-1:], seed=i + 3)
        if 0 in shape or shape[-1] < 2:
            continue
        x64 = x.astype("float64")
        norm = (x64 - x64.mean(-1, keepdims=True)) / np.sqrt(x64.var(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(kernel(x, g, b, r), norm * g + b + r, rtol=1e-4, atol=1e-4)


def test_rms_norm():
    kernel = Compiled(
        [((B, S, N), "float32"), ((N,), "float32")],
        lambda bb, x, g: bb.emit(nn.rms_norm(x, g, -1, epsilon=1e-5)),
    )
    for i, shape in enumerate(SHAPES):
        x, g = random(shape, seed=i), random(shape[-1:], seed=i + 1)
        x64 = x.astype("float64")
        expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-5) * g
        np.testing.assert_allclose(kernel(x, g), expected, rtol=1e-5, atol=1e-5)


def test_instance_and_group_norm():
    c = 8
    inputs = [((B, c, S, N), "float32"), ((c,), "float32"), ((c,), "float32")]
    instance = Compiled(inputs, lambda bb, x, g, b: bb.emit(nn.instance_norm(x, g, b, 1, [2, 3])))
    group = Compiled(inputs, lambda bb, x, g, b: bb.emit(nn.group_norm(x, g, b, 4, 1, [2, 3])))
    for i, (n, h, w) in enumerate([(0, 3, 3), (1, 1, 2), (2, 7, 5), (3, 16, 17), (1, 31, 33)]):
        x, g, b = random((n, c, h, w), seed=i), random((c,), seed=i + 1), random((c,), seed=i + 2)
        x64 = x.astype("float64")
        scale, shift = g.reshape(1, c, 1, 1), b.reshape(1, c, 1, 1)
        expected = (x64 - x64.mean((2, 3), keepdims=True)) / np.sqrt(x64.var((2, 3), keepdims=True) + 1e-5)
        np.testing.assert_allclose(instance(x, g, b), expected * scale + shift, rtol=1e-4, atol=1e-4)
        y = x64.reshape(n, 4, c // 4 * h * w)
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(group(x, g, b), y.reshape(x.shape) * scale + shift, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [[2], [0, 1], [0, 1, 2]])
def test_variance(axis):
    kernel = Compiled([((B, S, N), "float32")], lambda bb, x: bb.emit(op.variance(x, axis)))
    _check(kernel, lambda x: x.var(tuple(axis)), [s for s in SHAPES if 0 not in s], tolerance=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("axis", [[1], [0]])
def test_extremes_of_infinities(dtype, axis):
    for function, infinity in ((op.max, -np.inf), (op.min, np.inf)):
        kernel = Compiled([((B, S), dtype)], lambda bb, x, f=function: bb.emit(f(x, axis)))
        np.testing.assert_array_equal(kernel(np.full((40, 40), infinity, dtype)), np.full(40, infinity))
