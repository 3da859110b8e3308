"""Fold a BatchNormalization into the constant weights of the convolution that feeds it alone.

c = Conv(x, w, b)                                        y = Conv(x, w * f, (b - mean) * f + shift)
y = BatchNormalization(c, scale, shift, mean, var)   ->      with f = scale / sqrt(var + epsilon)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, MutableMapping

import numpy as np
import onnx
from onnx import numpy_helper

from tvm_dyn.frontend.node_order import subgraphs
from tvm_dyn.frontend.value import Value

Values = MutableMapping[str, Value | None]


def fold_batch_norm(graph: onnx.GraphProto, values: Values) -> list[onnx.NodeProto]:
    """The nodes of a graph with every such pair as one convolution, whose weights are added to `values`.

    values: what is known ahead of the first node; its constants are the candidates, as are Constant nodes.
    """
    constants = {name: value.const for name, value in values.items() if value is not None and value.const is not None}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    uses = Counter(_reads(graph.node))
    uses.update(output.name for output in graph.output)
    producers = {name: node for node in graph.node for name in node.output if name}
    replaced: dict[str, onnx.NodeProto] = {}
    dropped: set[str] = set()
    for node in graph.node:
        source = producers.get(node.input[0]) if node.input else None
        if source is None or uses[node.input[0]] != 1 or not _fits(node, source, constants):
            continue
        weight, bias = _folded(node, source, constants)
        names = [f"{node.output[0]}/folded_weight", f"{node.output[0]}/folded_bias"]
        values.update(zip(names, (Value(const=weight), Value(const=bias)), strict=True))
        merged = onnx.NodeProto()
        merged.CopyFrom(source)
        del merged.input[1:]
        merged.input.extend(names)
        merged.output[0] = node.output[0]
        replaced[node.output[0]] = merged
        dropped.add(source.output[0])
    return [replaced.get(next(iter(n.output), ""), n) for n in graph.node if next(iter(n.output), "") not in dropped]


def _reads(nodes: Iterable[onnx.NodeProto]) -> Iterable[str]:
    for node in nodes:
        yield from node.input
        for graph in subgraphs(node):
            yield from _reads(graph.node)
            yield from (output.name for output in graph.output)


def _fits(node: onnx.NodeProto, source: onnx.NodeProto, constants: dict[str, np.ndarray]) -> bool:
    training = any(a.name == "training_mode" and a.i for a in node.attribute)
    return (
        node.op_type == "BatchNormalization"
        and source.op_type in ("Conv", "ConvTranspose")
        and {node.domain, source.domain} <= {"", "ai.onnx"}
        and not training
        and not any(node.output[1:])
        and all(name in constants for name in [*node.input[1:], *[n for n in source.input[1:] if n]])
        and constants[node.input[1]].shape == (_filters(source, constants[source.input[1]]),)
    )


def _group(source: onnx.NodeProto) -> int:
    return next((a.i for a in source.attribute if a.name == "group"), 1)


def _filters(source: onnx.NodeProto, weight: np.ndarray) -> int:
    return weight.shape[0] if source.op_type == "Conv" else weight.shape[1] * _group(source)


def _folded(
    node: onnx.NodeProto, source: onnx.NodeProto, constants: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(weight, bias) of the one convolution, computed in float64."""
    weight = constants[source.input[1]]
    scale, shift, mean, variance = (constants[name].astype("float64") for name in node.input[1:5])
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    has_bias = len(source.input) > 2 and source.input[2]
    bias = constants[source.input[2]].astype("float64") if has_bias else np.zeros_like(mean)
    factor = scale / np.sqrt(variance + epsilon)
    if source.op_type == "Conv":
        scaled = weight * factor.reshape([-1, *[1] * (weight.ndim - 1)])
    else:  # (c, f / group, ...): the filters of a group are its own
        group = _group(source)
        grouped = weight.reshape([group, weight.shape[0] // group, *weight.shape[1:]])
        scaled = (grouped * factor.reshape([group, 1, -1, *[1] * (weight.ndim - 2)])).reshape(weight.shape)
    return scaled.astype(weight.dtype), ((bias - mean) * factor + shift).astype(weight.dtype)
