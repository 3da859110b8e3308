"""Softmax, layer norm and RMS norm over the last axis: symbolic rows and columns, 1e3 to 1e7 elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvm_dyn.bench.case import Case, normal, parse_graph

SHAPES = [
    (1, 1000), (13, 77), (8, 128),
    (97, 103), (100, 100), (1, 10007), (12, 1024),
    (37, 768), (128, 768), (131, 1031), (1444, 37),
    (511, 768), (1024, 1024), (1001, 1000), (3, 333333), (31250, 32),
    (4096, 2560), (3163, 3161), (156250, 64),
]  # fmt: skip
_EPSILON = np.float32(1e-5)

_SOFTMAX = "(float[rows, columns] x) => (float[rows, columns] y) { y = Softmax<axis = -1>(x) }"
_LAYER_NORM = """(float[rows, columns] x, float[columns] gain, float[columns] shift) => (float[rows, columns] y) {
    y = LayerNormalization<axis = -1, epsilon = 1e-5>(x, gain, shift)
}"""
# The pattern that onnxruntime and OpenVINO turn into a kernel of their own.
_RMS_NORM = """(float[rows, columns] x, float[columns] gain) => (float[rows, columns] y) {
    square = Pow(x, two)           mean = ReduceMean<axes = [-1], keepdims = 1>(square)
    guarded = Add(mean, epsilon)   root = Sqrt(guarded)   scaled = Div(x, root)   y = Mul(scaled, gain)
}"""


def cases() -> list[Case]:
    constants = {"two": np.float32(2), "epsilon": _EPSILON}
    return [
        _case("softmax", _SOFTMAX, {}, 0),
        _case("layer_norm", _LAYER_NORM, {}, 2),
        _case("rms_norm", _RMS_NORM, constants, 1),
    ]


def _case(name: str, text: str, constants: Mapping[str, np.generic], vectors: int) -> Case:
    def inputs(shape, generator):
        columns = shape["columns"]
        gains = {key: normal(generator, columns) for key in ("gain", "shift")[:vectors]}
        return {"x": normal(generator, shape["rows"], columns), **gains}

    return Case(
        "norm",
        name,
        [{"rows": rows, "columns": columns} for rows, columns in SHAPES],
        lambda: parse_graph(text, constants),
        inputs,
        lambda: _torch_function(name),
    )


def _torch_function(name: str) -> Callable[..., Any]:
    import torch.nn.functional as F

    epsilon = float(_EPSILON)
    return {
        "softmax": lambda x: F.softmax(x, -1),
        "layer_norm": lambda x, gain, shift: F.layer_norm(x, gain.shape, gain, shift, epsilon),
        "rms_norm": lambda x, gain: F.rms_norm(x, gain.shape, gain, epsilon),
    }[name]
