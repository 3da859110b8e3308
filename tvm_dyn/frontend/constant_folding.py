"""Constant folding while the graph is walked: a node whose inputs are all known runs in ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import Value

_NOT_DETERMINISTIC = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
}
_CONTROL = {"If", "Loop", "Scan", "SequenceMap"}
# Folding must not blow up memory: an Expand of a constant may be huge while its kernel is free.
_MAX_BYTES = 1 << 28
_GROWING = {"Expand", "Tile", "ConstantOfShape", "Range", "OneHot", "EyeLike"}
_MAX_GROWN_BYTES = 1 << 16


def fold(node: Node) -> list[Value] | None:
    """The outputs as constants, or None when the node cannot be evaluated at import."""
    inputs = [v for v in node.inputs if v is not None]
    if not inputs or not all(v.is_const for v in inputs):
        return None
    if node.op_type in _NOT_DETERMINISTIC | _CONTROL or sum(v.const.nbytes for v in inputs) > _MAX_BYTES:
        return None
    if node.op_type in _GROWING and _grown_size(node) * 8 > _MAX_GROWN_BYTES:
        return None
    try:
        outputs = _evaluate(node)
    except Exception:  # the evaluator lacks types and forms that converters have; they give the error, if any
        return None
    if not all(isinstance(o, np.ndarray | np.generic) for o in outputs):
        return None
    return [Value(const=np.asarray(o)) for o in outputs]


def _grown_size(node: Node) -> int:
    """Elements of the result of an operator that makes much out of little."""
    if node.op_type in ("Expand", "ConstantOfShape"):
        return int(np.prod(node.data(len(node.inputs) - 1).array, dtype="float64")) if node.inputs else 0
    if node.op_type == "Tile":
        return int(node.data(0).array.size * np.prod(node.data(1).array, dtype="float64"))
    if node.op_type == "Range":
        start, limit, delta = (v.array.item() for v in node.inputs if v is not None)
        return int(abs((limit - start) / delta)) if delta else 0
    return 0


def _evaluate(node: Node) -> list[Any]:
    feeds = {f"i{k}": v.const for k, v in enumerate(node.inputs) if v is not None}
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    del proto.input[:], proto.output[:]
    proto.input.extend("" if v is None else f"i{k}" for k, v in enumerate(node.inputs))
    proto.output.extend(f"o{k}" for k in range(len(node.outputs)))
    graph = onnx.helper.make_graph(
        [proto],
        "fold",
        [
            onnx.helper.make_tensor_value_info(k, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), None)
            for k, v in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in proto.output],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.proto.domain, node.opset)])
    return list(ReferenceEvaluator(model).run(None, feeds))
