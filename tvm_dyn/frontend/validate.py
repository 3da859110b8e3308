"""Read an ONNX model and check that it is well formed, before anything trusts its sizes, names or files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.function_calls import check_functions
from tvm_dyn.frontend.node_order import ordered_nodes, subgraphs
from tvm_dyn.frontend.tensor_data import check_sparse_tensor, check_tensor


def load_model(model: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """A model by path or as an object, checked, its nodes in order and its external data loaded.

    Dims written as -1 become unnamed dims, as their writers mean them. An object passed in stays as it is.
    Raises `InvalidModelError`: unreadable or truncated files, cycles, values with no source or with two,
    negative dims, tensors whose data is not what their dims claim, external data outside the model's folder,
    recursive functions. Time and memory are linear in the size of the files.
    """
    if isinstance(model, onnx.ModelProto):
        proto, folder = onnx.ModelProto(), None
        proto.CopyFrom(model)
    else:
        path = Path(model)
        proto, folder = _read(path), path.parent
    try:
        _check_model(proto, folder)
    except RecursionError as error:
        raise InvalidModelError("the model nests graphs too deeply") from error
    return proto


def _read(path: Path) -> onnx.ModelProto:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidModelError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    try:
        return onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise InvalidModelError(
            f"{str(path)!r} is not an ONNX model, or is cut off ({len(content)} bytes): {error}"
        ) from error


def _check_model(model: onnx.ModelProto, folder: Path | None) -> None:
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InvalidModelError("the model holds no graph: the file is empty, cut off, or no ONNX model")
    if not model.opset_import:
        raise InvalidModelError("the model imports no operator set")
    for version in model.opset_import:
        if version.version < 1:
            raise InvalidModelError(f"operator set {version.domain!r} has the version {version.version}")
    for value in model.graph.input:
        if value.type.WhichOneof("value") is None:
            raise InvalidModelError(f"graph input {value.name!r} has no type")
    for value in (*model.graph.input, *model.graph.output):
        _check_dims(value)
    check_functions(model)
    for function in model.functions:
        _check_nodes(function.node, function.name, set(function.input), [], folder, function.output)
    _check_graph(model.graph, [], folder)
    for graph in _walk_graphs(model.graph):
        for value in graph.input:
            _open_unknown_dims(value)


def _check_dims(value: onnx.ValueInfoProto) -> None:
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value < -1:
            raise InvalidModelError(f"{value.name!r}, axis {axis}: negative dim {dim.dim_value}")


def _open_unknown_dims(value: onnx.ValueInfoProto) -> None:
    for dim in value.type.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value == -1:
            dim.ClearField("dim_value")


def _check_graph(graph: onnx.GraphProto, outer: Sequence[set[str]], folder: Path | None) -> None:
    """Check a graph that sees the values `outer` around it, and put its nodes in order."""
    stored = [tensor.name for tensor in graph.initializer]
    stored += [sparse.values.name for sparse in graph.sparse_initializer]
    _check_once(stored, "initializer")
    _check_once([value.name for value in graph.input], "graph input")
    for tensor in graph.initializer:
        check_tensor(tensor, folder)
    for sparse in graph.sparse_initializer:
        check_sparse_tensor(sparse, folder)
    known = {*stored, *(value.name for value in graph.input)}
    _check_nodes(graph.node, graph.name, known, outer, folder, [value.name for value in graph.output])


def _check_nodes(
    nodes, graph_name: str, known: set[str], outer: Sequence[set[str]], folder: Path | None, outputs
) -> None:
    produced = [name for node in nodes for name in node.output if name]
    _check_once(produced, "node output")
    clash = known.intersection(produced)
    if clash:
        raise InvalidModelError(f"value {min(clash)!r} is a node output and a graph input or initializer too")
    order = ordered_nodes(nodes, graph_name, known, outer)
    if order is not None:
        del nodes[:]
        nodes.extend(order)
    known = {*known, *produced}
    for name in outputs:
        if name not in known and not any(name in scope for scope in outer):
            raise InvalidModelError(f"graph output {name!r} is produced by no node of graph {graph_name!r}")
    for node in nodes:
        _check_attributes(node, [*outer, known], folder)


def _check_attributes(node: onnx.NodeProto, scopes: Sequence[set[str]], folder: Path | None) -> None:
    for attribute in node.attribute:
        for tensor in (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors:
            check_tensor(tensor, folder)
        if attribute.HasField("sparse_tensor"):
            check_sparse_tensor(attribute.sparse_tensor, folder)
    for graph in subgraphs(node):
        _check_graph(graph, scopes, folder)


def _check_once(names: Sequence[str], what: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidModelError(f"{what} {name!r} appears {count} times; each value has one source")


def _walk_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for nested in subgraphs(node):
            yield from _walk_graphs(nested)
