"""2-d convolutions with constant weights, bias and ReLU: symbolic batch, height and width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_dyn.bench.case import Case, Shape, normal, parse_graph, weight

_GRAPH = """(float[N, {inputs}, H, W] x) => (float[N, {outputs}, OH, OW] y) {{
    z = Conv<kernel_shape = [{k}, {k}], strides = [{s}, {s}], dilations = [{d}, {d}], pads = [{p}, {p}, {p}, {p}],
             group = {groups}>(x, weights, bias)
    y = Relu(z)
}}"""


@dataclass(frozen=True)
class Convolution:
    """A square kernel, padded such that stride 1 keeps the extents."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    @property
    def padding(self) -> int:
        return self.dilation * (self.kernel - 1) // 2

    def weights(self) -> dict[str, np.ndarray]:
        fan_in = self.inputs // self.groups * self.kernel**2
        kernel = weight("conv", self.outputs, self.inputs // self.groups, self.kernel, self.kernel, fan_in=fan_in)
        return {"weights": kernel, "bias": weight("bias", self.outputs, fan_in=1)}

    def flops(self, shape: Shape) -> float:
        pixels = shape["N"] * -(-shape["H"] // self.stride) * -(-shape["W"] // self.stride)
        return 2.0 * pixels * self.outputs * (self.inputs // self.groups) * self.kernel**2


_LARGE = [(1, 56, 56), (1, 37, 61), (2, 28, 28), (1, 83, 125)]
_MIDDLE = [(1, 28, 28), (1, 19, 31), (4, 14, 14), (1, 40, 40)]
_SMALL = [(1, 14, 14), (1, 19, 31), (4, 14, 14), (1, 7, 9)]

CONVOLUTIONS: dict[str, tuple[Convolution, list[tuple[int, int, int]]]] = {
    "3x3_64": (Convolution(64, 64, 3), _LARGE),
    "3x3_128": (Convolution(128, 128, 3), _MIDDLE),
    "3x3_256": (Convolution(256, 256, 3), _SMALL),
    "3x3_512": (Convolution(512, 512, 3), [(1, 7, 7), (1, 13, 11), (4, 7, 7), (1, 16, 16)]),
    "1x1_64_256": (Convolution(64, 256, 1), _LARGE),
    "1x1_256_64": (Convolution(256, 64, 1), _LARGE),
    "1x1_512_128": (Convolution(512, 128, 1), _MIDDLE),
    "1x1_256_1024": (Convolution(256, 1024, 1), _SMALL),
    "depthwise_96": (Convolution(96, 96, 3, groups=96), _LARGE),
    "depthwise_384": (Convolution(384, 384, 3, groups=384), _SMALL),
    "depthwise_strided": (Convolution(144, 144, 3, 2, groups=144), _LARGE),
    "stem_7x7": (Convolution(3, 64, 7, 2), [(1, 224, 224), (1, 161, 187), (2, 112, 96), (1, 320, 240)]),
    "3x3_strided": (Convolution(128, 128, 3, 2), [(1, 56, 56), (1, 37, 61), (2, 28, 28), (1, 83, 95)]),
    "1x1_strided": (Convolution(256, 512, 1, 2), [(1, 56, 56), (1, 37, 61), (2, 28, 28), (1, 83, 95)]),
    "3x3_dilated": (Convolution(128, 128, 3, dilation=2), _MIDDLE),
}


def cases() -> list[Case]:
    return [convolution_case(name, convolution, shapes) for name, (convolution, shapes) in CONVOLUTIONS.items()]


def convolution_case(name: str, convolution: Convolution, shapes: list[tuple[int, int, int]]) -> Case:
    """A convolution with bias and ReLU at shapes (N, H, W)."""
    text = _GRAPH.format(
        inputs=convolution.inputs,
        outputs=convolution.outputs,
        k=convolution.kernel,
        s=convolution.stride,
        d=convolution.dilation,
        p=convolution.padding,
        groups=convolution.groups,
    )
    return Case(
        "conv",
        name,
        [dict(zip("NHW", shape, strict=True)) for shape in shapes],
        lambda: parse_graph(text, convolution.weights()),
        lambda shape, generator: {"x": normal(generator, shape["N"], convolution.inputs, shape["H"], shape["W"])},
        lambda: _torch_function(convolution),
        flops=convolution.flops,
    )


def _torch_function(convolution: Convolution) -> Callable[..., Any]:
    import torch
    import torch.nn.functional as F

    kernel, bias = (torch.from_numpy(array) for array in convolution.weights().values())
    stride, padding, dilation, groups = (
        convolution.stride, convolution.padding, convolution.dilation, convolution.groups
    )  # fmt: skip
    return lambda x: F.conv2d(x, kernel, bias, stride, padding, dilation, groups).relu_()
