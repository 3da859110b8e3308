"""One model to measure: how to build it for each peer, its inputs, its shapes, its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

Shape = Mapping[str, int]
Feed = dict[str, np.ndarray]

_ALIGNMENT = 64


@dataclass(frozen=True)
class Case:
    """A dynamic-shape model and the shapes to measure it at.

    model: the ONNX model that tvm_dyn and the peers compile, or the path of its file; built when asked for.
    inputs: fresh inputs of a shape, by the names of the model's inputs and in their order.
    torch: a function of the inputs as tensors, in order, in the form torch itself would be used.
    fused: the same as a model of onnxruntime's own fused operators; its inputs have the same names.
    flops: multiplications and additions of a shape, for the fraction of the FMA peak; None where memory counts.
    tolerance: largest difference allowed between two peers, relative to the largest value.
    seconds: most time to spend on one shape once every peer has run three times.
    """

    suite: str
    name: str
    shapes: Sequence[Shape]
    model: Callable[[], Any]
    inputs: Callable[[Shape, np.random.Generator], Feed]
    torch: Callable[[], Callable[..., Any]]
    fused: Callable[[], Any] | None = None
    flops: Callable[[Shape], float] | None = None
    tolerance: float = 1e-4
    seconds: float = 2.0

    def feeds(self, shape: Shape, count: int) -> list[Feed]:
        """`count` different sets of inputs, each array where every peer takes it without a copy."""
        generator = np.random.default_rng(list(shape.values()))
        made = [self.inputs(shape, generator) for _ in range(count)]
        return [{name: aligned(array) for name, array in feed.items()} for feed in made]


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 64 bytes."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def parse_graph(text: str, weights: Mapping[str, np.ndarray | np.generic], opset: int = 17) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form, `(inputs) => (outputs) { nodes }`, with constant weights."""
    import onnx.numpy_helper
    import onnx.parser

    header = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> bench '
    model = onnx.parser.parse_model(header + text)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()
    )
    return model


def normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32 values."""
    return generator.standard_normal(shape, "float32")


def weight(name: str, *shape: int, fan_in: int) -> np.ndarray:
    """Constant values, the same at every call, scaled such that a layer keeps the scale of its inputs."""
    return normal(np.random.default_rng(list(name.encode())), *shape) / np.float32(np.sqrt(fan_in))
