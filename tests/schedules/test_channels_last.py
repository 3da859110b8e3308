"""Channels-last convolutions and transpositions against float64 references, at maps of a pixel to several tiles."""

from __future__ import annotations

import numpy as np
import pytest
from harness import TARGET, Compiled, dim, module, prim_funcs, random
from tvm import relax, transform
from tvm.relax import op
from tvm.relax.op import nn
from windows import conv

from tvm_dyn import pipeline
from tvm_dyn.schedules import channels_last, channels_last_sliding, transposition, winograd
from tvm_dyn.schedules.panel import PanelTile, column_pieces

N, H, W = dim("n"), dim("h"), dim("w")
MAPS = [(1, 1, 1), (0, 7, 7), (1, 4, 4), (2, 5, 13), (3, 8, 9), (1, 17, 23), (2, 7, 7)]
LARGE = [(1, 40, 41), (2, 33, 24)]


def conv_inputs(channels: int) -> list[tuple]:
    return [((N, channels, H, W), "float32")]


def graph_of(weight, bias, strides, padding, dilations, groups=1, residual=False):
    def graph(bb, x):
        y = nn.conv2d(x, relax.const(weight), strides=strides, padding=padding, dilation=dilations, groups=groups)
        y = bb.emit(op.add(bb.emit(y), relax.const(bias)))
        return bb.emit(nn.relu(bb.emit(op.add(y, x)) if residual else y))

    return graph


def fused(inputs, graph):
    """The kernels after the phase "fuse"."""
    mod = module(inputs, graph)
    with TARGET:
        for _, passes in pipeline.phases(TARGET)[:3]:
            mod = transform.Sequential(passes)(mod)
    return prim_funcs(mod)


def check(channels, filters, kernel, strides, padding, dilations=(1, 1), groups=1, residual=False, shapes=MAPS):
    weight = random((filters, channels // groups, *kernel), seed=1)
    bias = random((1, filters, 1, 1), seed=2)
    inputs, graph = conv_inputs(channels), graph_of(weight, bias, strides, padding, dilations, groups, residual)
    rule = channels_last if groups == 1 else channels_last_sliding
    assert any(rule.apply(func, TARGET) is not None for func in fused(inputs, graph))
    compiled = Compiled(inputs, graph)
    for seed, (n, h, w) in enumerate(shapes):
        if h + padding[0] + padding[2] <= (kernel[0] - 1) * dilations[0]:
            continue
        if w + padding[1] + padding[3] <= (kernel[1] - 1) * dilations[1]:
            continue
        x = random((n, channels, h, w), seed=seed)
        result = compiled(x)
        if n == 0:
            assert result.shape[0] == 0
            continue
        y = conv(x, weight, strides, padding, dilations, groups) + bias
        expected = np.maximum(y + x if residual else y, 0)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("filters", [1, 7, 16, 24, 47, 64])
def test_filters_around_a_panel(filters):
    check(5, filters, (3, 3), (1, 1), (1, 1, 1, 1))


@pytest.mark.parametrize("channels", [16, 17, 40])
@pytest.mark.parametrize("padding", [(1, 1, 1, 1), (0, 0, 0, 0), (2, 0, 1, 3)])
def test_minimal_filtering(channels, padding):
    check(channels, 33, (3, 3), (1, 1), padding, shapes=[*MAPS, *LARGE])


def test_minimal_filtering_with_a_residual():
    check(32, 32, (3, 3), (1, 1), (1, 1, 1, 1), residual=True, shapes=[*MAPS, *LARGE])


@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "dilations"),
    [
        ((1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
        ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
        ((7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
        ((3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
        ((5, 2), (3, 1), (2, 0, 2, 1), (1, 1)),
        ((3, 3), (2, 1), (1, 3, 2, 0), (1, 3)),
        ((4, 4), (4, 4), (0, 0, 0, 0), (1, 1)),
    ],
)
def test_direct(kernel, strides, padding, dilations):
    check(6, 20, kernel, strides, padding, dilations, shapes=[*MAPS, *LARGE])


@pytest.mark.parametrize(("channels", "kernel"), [(3, 3), (16, 5), (40, 3)])
@pytest.mark.parametrize("strides", [1, 2])
def test_depthwise(channels, kernel, strides):
    padding = (kernel // 2,) * 4
    check(channels, channels, (kernel, kernel), (strides, strides), padding, groups=channels, shapes=[*MAPS, *LARGE])


def test_depthwise_dilated_with_a_residual():
    check(18, 18, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), groups=18, residual=True)


@pytest.mark.parametrize("pool", [nn.max_pool2d, nn.avg_pool2d])
def test_pooling_between_convolutions(pool):
    weight = random((8, 8, 3, 3), seed=1)

    def graph(bb, x):
        y = bb.emit(nn.conv2d(x, relax.const(weight), padding=(1, 1)))
        return bb.emit(pool(y, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)))

    funcs = fused(conv_inputs(8), graph)
    assert any(channels_last_sliding.apply(func, TARGET) is not None for func in funcs)
    compiled = Compiled(conv_inputs(8), graph)
    for n, h, w in MAPS[2:]:
        x = random((n, 8, h, w), seed=h)
        y = conv(x, weight, (1, 1), (1,) * 4, (1, 1), 1)
        fill = -np.inf if pool is nn.max_pool2d else np.nan
        view = np.lib.stride_tricks.sliding_window_view(
            np.pad(y, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=fill), (3, 3), axis=(2, 3)
        )[:, :, ::2, ::2]
        expected = view.max((-2, -1)) if pool is nn.max_pool2d else np.nanmean(view, (-2, -1))
        np.testing.assert_allclose(compiled(x), expected, rtol=1e-4, atol=1e-5)


def test_one_tap_after_a_window():
    first, second = random((8, 5, 3, 3), seed=1), random((20, 8, 1, 1), seed=2)

    def graph(bb, x):
        y = bb.emit(nn.conv2d(x, relax.const(first), padding=(1, 1)))
        return bb.emit(nn.conv2d(y, relax.const(second)))

    assert sum(channels_last.apply(func, TARGET) is not None for func in fused(conv_inputs(5), graph)) == 2
    compiled = Compiled(conv_inputs(5), graph)
    for n, h, w in [*MAPS[2:], *LARGE]:
        x = random((n, 5, h, w), seed=h)
        expected = conv(conv(x, first, (1, 1), (1,) * 4, (1, 1), 1), second, (1, 1), (0,) * 4, (1, 1), 1)
        np.testing.assert_allclose(compiled(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (0, 3, 1, 2)])
def test_transpositions(axes):
    inputs = [((N, H, W, 20) if axes[1] == 3 else (N, 20, H, W), "float32")]

    def graph(bb, x):
        return bb.emit(op.permute_dims(x, axes))

    assert all(transposition.apply(func, TARGET) is not None for func in fused(inputs, graph))
    compiled = Compiled(inputs, graph)
    for n, h, w in [*MAPS, *LARGE]:
        x = random((n, h, w, 20) if axes[1] == 3 else (n, 20, h, w), seed=w)
        np.testing.assert_array_equal(compiled(x), x.transpose(axes))


def test_transformed_weights_filter():
    """The algebra, in float64: the 16 results of a tile."""
    weight, data = random((3, 3, 1, 1)), random((6, 6), seed=1).astype("float64")
    side = lambda d: np.stack(winograd._data_side(list(d)))  # noqa: E731
    product = side(side(data).T).T * winograd.transformed(weight).reshape(6, 6)
    back = lambda m: np.stack(winograd._result_side(list(m)))  # noqa: E731
    view = np.lib.stride_tricks.sliding_window_view(data, (3, 3))
    expected = np.einsum("yxab,ab->yx", view, weight[:, :, 0, 0])
    np.testing.assert_allclose(back(back(product).T).T, expected, rtol=1e-9, atol=1e-9)


def test_panels():
    for filters in range(1, 200):
        columns = PanelTile.choose_columns(filters, "float32", TARGET)
        assert PanelTile.of_columns(columns, "float32", TARGET).columns == columns
    assert column_pieces(29, 16) == [(0, 16), (16, 8), (24, 4), (28, 1)]
