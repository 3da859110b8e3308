"""Pooling against float64 references; batch and channels are symbolic as well."""

from __future__ import annotations

import numpy as np
import pytest
from harness import TARGET, Compiled, dim, fused, prim_funcs, random
from tvm.relax import op
from tvm.relax.op import nn
from windows import pad, windows

from tvm_dyn.schedules import global_pool, sliding

N, C, SPATIAL = dim("n"), dim("c"), [dim("h"), dim("w"), dim("d")]
MAPS = {
    1: [(1, 2, 3), (0, 3, 7), (2, 1, 16), (1, 3, 17), (2, 2, 480)],
    2: [(1, 1, 3, 3), (0, 2, 7, 7), (2, 3, 5, 13), (1, 2, 17, 16), (1, 3, 33, 47), (2, 1, 4, 65)],
    3: [(1, 2, 5, 6, 7), (2, 1, 3, 3, 5), (1, 2, 3, 9, 17)],
}


def run(kind, rank, kernel, strides, padding, dilation=1, **options):
    operator = getattr(nn, f"{kind}_pool{rank}d")
    inputs = [((N, C, *SPATIAL[:rank]), "float32")]

    def graph(bb, x):
        pooled = operator(x, [kernel] * rank, [strides] * rank, [padding] * (2 * rank), [dilation] * rank, **options)
        return bb.emit(pooled)

    def view(x, value):
        return windows(pad(x, [padding] * (2 * rank), value), [kernel] * rank, [strides] * rank, [dilation] * rank)

    def reference(x):
        taps = tuple(range(rank + 2, 2 * rank + 2))
        if kind == "max":
            return view(x, -np.inf).max(axis=taps)
        count = view(np.ones_like(x), 1.0 if options["count_include_pad"] else 0.0).sum(axis=taps)
        return view(x, 0.0).sum(axis=taps) / count

    assert all(sliding.apply(func, TARGET) is not None for func in prim_funcs(fused(inputs, graph)))
    kernel_function = Compiled(inputs, graph)
    for seed, shape in enumerate(MAPS[rank]):
        x = random(shape, seed=seed)
        result = kernel_function(x)
        if 0 in shape:
            assert result.shape[0] == 0
            continue
        np.testing.assert_allclose(result, reference(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "strides", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_max(rank, kernel, strides, padding):
    run("max", rank, kernel, strides, padding)


def test_max_dilated_and_wide():
    run("max", 2, 2, 1, 1, dilation=2)
    run("max", 2, 13, 1, 6)


@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize(("kernel", "strides", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_average(kernel, strides, padding, count_include_pad):
    for rank in (1, 2, 3):
        run("avg", rank, kernel, strides, padding, count_include_pad=count_include_pad)


def test_max_with_ceil_mode():
    inputs = [((N, C, *SPATIAL[:2]), "float32")]
    kernel = Compiled(
        inputs,
        lambda bb, x: bb.emit(nn.max_pool2d(x, [3, 3], [2, 2], [0, 0, 0, 0], ceil_mode=True)),
    )
    for seed, (h, w) in enumerate([(4, 4), (5, 8), (17, 33), (16, 34)]):
        x = random((2, 3, h, w), seed=seed)
        extra = [(extent - 3) % 2 for extent in (h, w)]
        expected = windows(pad(x, [0, 0, *extra], -np.inf), [3, 3], [2, 2], [1, 1]).max(axis=(-1, -2))
        np.testing.assert_array_equal(kernel(x), expected.astype("float32"))


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (2, 5, 7, 7), (1, 2, 17, 33), (3, 1, 64, 5)])
def test_global_average(shape):
    inputs = [((N, C, *SPATIAL[:2]), "float32")]
    kernel = Compiled(inputs, lambda bb, x: bb.emit(nn.adaptive_avg_pool2d(x, (1, 1))))
    x = random(shape, seed=1)
    np.testing.assert_allclose(kernel(x), x.astype("float64").mean(axis=(2, 3), keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean"])
def test_whole_maps(name, keepdims):
    inputs = [((N, C, *SPATIAL[:2]), "float32")]

    def graph(bb, x):
        return bb.emit(nn.relu(bb.emit(getattr(op, name)(x, axis=[2, 3], keepdims=keepdims))))

    assert any(global_pool.apply(func, TARGET) is not None for func in prim_funcs(fused(inputs, graph)))
    kernel = Compiled(inputs, graph)
    for seed, shape in enumerate(
        [(0, 2, 3, 3), (1, 2, 3, 5), (2, 3, 4, 4), (1, 2, 1, 17), (2, 1, 9, 7), (1, 3, 33, 31)]
    ):
        x = random(shape, seed=seed)
        expected = np.maximum(getattr(x.astype("float64"), name)(axis=(2, 3), keepdims=keepdims), 0)
        np.testing.assert_allclose(kernel(x), expected, rtol=1e-5, atol=1e-4)


def test_adaptive_average():
    inputs = [((N, C, *SPATIAL[:2]), "float32")]
    kernel = Compiled(inputs, lambda bb, x: bb.emit(nn.adaptive_avg_pool2d(x, (3, 2))))
    for h, w in [(3, 2), (7, 5), (17, 33)]:
        x = random((2, 3, h, w), seed=h)
        rows = [slice(i * h // 3, -(-(i + 1) * h // 3)) for i in range(3)]
        columns = [slice(i * w // 2, -(-(i + 1) * w // 2)) for i in range(2)]
        expected = [[x[:, :, r, c].astype("float64").mean(axis=(2, 3)) for c in columns] for r in rows]
        np.testing.assert_allclose(kernel(x), np.transpose(expected, (2, 3, 0, 1)), rtol=1e-5, atol=1e-6)
