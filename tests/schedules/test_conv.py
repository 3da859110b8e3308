"""Convolutions against float64 references at maps from one pixel to several bands, batch 0 included."""

from __future__ import annotations

import numpy as np
import pytest
from harness import TARGET, Compiled, dim, fused, prim_funcs, random
from tvm import relax
from tvm.relax import op
from tvm.relax.op import nn
from windows import conv, conv_transpose, sigmoid

from tvm_dyn.schedules import conv as dense_rule
from tvm_dyn.schedules import conv_transpose as transpose_rule
from tvm_dyn.schedules import sliding as sliding_rule

N, SPATIAL = dim("n"), [dim("h"), dim("w"), dim("d")]
CONVS = {1: nn.conv1d, 2: nn.conv2d, 3: nn.conv3d}
MAPS = {
    1: [(1, 1), (0, 7), (2, 5), (3, 17), (1, 47), (1, 48), (2, 49), (1, 3001)],
    2: [
        (1, 1, 1),
        (0, 7, 7),
        (1, 7, 7),
        (2, 5, 13),
        (3, 17, 16),
        (1, 33, 47),
        (1, 48, 48),
        (2, 4, 65),
        (9, 2, 3),
    ],
    3: [(1, 1, 1, 1), (0, 3, 3, 3), (1, 5, 6, 7), (2, 3, 3, 5), (2, 1, 9, 17)],
}


def check(kernel, reference, shapes, channels, tolerance=1e-5) -> None:
    for seed, (n, *spatial) in enumerate(shapes):
        x = random((n, channels, *spatial), seed=seed)
        result = kernel(x)
        if n == 0:
            assert result.shape[0] == 0
            continue
        expected = reference(x)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=tolerance * max(1.0, np.abs(expected).max()))


def taken_by(rule, inputs, graph) -> bool:
    return all(rule.apply(func, TARGET) is not None for func in prim_funcs(fused(inputs, graph)))


def run(rank, channels, filters, kernel, strides, padding, dilations=None, groups=1, epilogue=None, shapes=None):
    """Compile, check which rule takes it, compare."""
    kernel = (kernel,) * rank if isinstance(kernel, int) else kernel
    strides = (strides,) * rank if isinstance(strides, int) else strides
    dilations = dilations or (1,) * rank
    weight = random((filters, channels // groups, *kernel), seed=100)
    bias = random((1, filters, *[1] * rank), seed=101)
    inputs = [((N, channels, *SPATIAL[:rank]), "float32")]

    def graph(bb, x):
        y = bb.emit(
            CONVS[rank](x, relax.const(weight), strides=strides, padding=padding, dilation=dilations, groups=groups)
        )
        y = bb.emit(op.add(y, relax.const(bias)))
        if epilogue == "relu":
            return bb.emit(nn.relu(y))
        if epilogue == "silu":
            return bb.emit(op.multiply(y, bb.emit(op.sigmoid(y))))
        return bb.emit(op.add(y, x)) if epilogue == "residual" else y

    def reference(x):
        y = conv(x, weight, strides, padding, dilations, groups) + bias
        finish = {"relu": lambda: np.maximum(y, 0), "silu": lambda: y * sigmoid(y), "residual": lambda: y + x}
        return finish[epilogue]() if epilogue else y

    depthwise = groups > 1 and channels == groups
    assert taken_by(sliding_rule if depthwise else dense_rule, inputs, graph)
    check(Compiled(inputs, graph), reference, shapes or MAPS[rank], channels)


@pytest.mark.parametrize("epilogue", [None, "relu", "silu", "residual"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_epilogues(kernel, epilogue):
    run(2, 16, 16, kernel, 1, (kernel // 2,) * 4, epilogue=epilogue)


@pytest.mark.parametrize("filters", [1, 3, 7, 8, 9, 23])
def test_filters_around_a_tile(filters):
    run(2, 5, filters, 3, 1, (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "dilations"),
    [
        ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
        ((3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
        ((5, 2), (3, 1), (2, 0, 2, 1), (1, 1)),
        ((3, 1), (1, 2), (1, 0, 1, 0), (1, 1)),
        ((1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
        ((1, 1), (1, 1), (3, 3, 3, 3), (1, 1)),
        ((3, 3), (2, 1), (1, 3, 2, 0), (1, 3)),
        ((7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
        ((11, 1), (1, 1), (5, 0, 5, 0), (1, 1)),
    ],
)
def test_windows(kernel, strides, padding, dilations):
    shapes = [s for s in MAPS[2] if s[0] and s[2] + padding[1] + padding[3] > (kernel[1] - 1) * dilations[1]]
    run(2, 6, 10, kernel, strides, padding, dilations, epilogue="relu", shapes=shapes)


def test_patches():
    run(2, 3, 24, 16, 16, (0, 0, 0, 0), shapes=[(1, 16, 16), (2, 64, 48), (1, 33, 47)])


@pytest.mark.parametrize("groups", [2, 4])
def test_groups(groups):
    run(2, 8, 12, 3, 1, (1, 1, 1, 1), groups=groups, epilogue="relu")


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("strides", [1, 2])
def test_other_ranks(rank, strides):
    run(rank, 4, 9, 3, strides, (1,) * (2 * rank), epilogue="silu")


def test_a_map_of_several_bands():
    run(2, 32, 8, 3, 1, (1, 1, 1, 1), shapes=[(3, 151, 203)])


@pytest.mark.parametrize(("channels", "filters", "groups"), [(97, 33, 1), (16, 5, 1), (3, 2, 1), (32, 8, 2)])
def test_single_pixels(channels, filters, groups):
    weight, bias = random((filters, channels // groups, 1, 1), seed=1), random((1, filters, 1, 1), seed=2)
    inputs = [((N, channels, 1, 1), "float32")]
    kernel = Compiled(
        inputs,
        lambda bb, x: bb.emit(op.add(bb.emit(nn.conv2d(x, relax.const(weight), groups=groups)), relax.const(bias))),
    )
    check(
        kernel,
        lambda x: conv(x, weight, (1, 1), (0,) * 4, (1, 1), groups) + bias,
        [(0, 1, 1), (1, 1, 1), (5, 1, 1)],
        channels,
    )


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize(("kernel", "filters"), [(3, 6), (5, 12)])
def test_depthwise(kernel, filters, strides):
    run(2, 6, filters, kernel, strides, (kernel // 2,) * 4, groups=6, epilogue="silu")


def test_depthwise_with_residual_and_other_ranks():
    run(2, 6, 6, 3, 1, (2, 2, 2, 2), (2, 2), groups=6, epilogue="residual")
    run(1, 6, 6, 3, 1, (1, 1), groups=6, epilogue="residual")
    run(3, 6, 6, 3, 1, (1,) * 6, groups=6, epilogue="residual")


@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "extra", "groups"),
    [
        (2, 2, 0, 0, 1),
        (4, 2, 1, 0, 1),
        (3, 2, 1, 1, 1),
        (3, 2, 0, 0, 4),
        (3, 1, 1, 0, 1),
        (5, 3, 2, 2, 8),
        (2, 4, 0, 1, 1),
    ],
)
@pytest.mark.parametrize("rank", [1, 2])
def test_transposed(rank, kernel, strides, padding, extra, groups):
    weight, bias = random((8, 24 // groups, *[kernel] * rank), seed=1), random((1, 24, *[1] * rank), seed=2)
    operator = {1: nn.conv1d_transpose, 2: nn.conv2d_transpose}[rank]
    inputs = [((N, 8, *SPATIAL[:rank]), "float32")]

    def graph(bb, x):
        y = operator(x, relax.const(weight), strides=strides, padding=padding, output_padding=extra, groups=groups)
        return bb.emit(nn.relu(bb.emit(op.add(bb.emit(y), relax.const(bias)))))

    def reference(x):
        y = conv_transpose(x, weight, [strides] * rank, [padding] * rank, [extra] * rank, groups)
        return np.maximum(y + bias, 0)

    if rank == 2 or groups == 1:
        assert taken_by(transpose_rule, inputs, graph)
    shapes = [(n, *spatial) for n, *spatial in MAPS[rank] if max(spatial) < 100]
    check(Compiled(inputs, graph), reference, shapes, 8)
