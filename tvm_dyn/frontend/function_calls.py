"""Model-local functions: no recursion, and no more nodes after inlining than a real model has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.node_order import subgraphs

MAX_INLINED_NODES = 1_000_000

_Key = tuple[str, str, str]


def check_functions(model: onnx.ModelProto) -> None:
    """Raise `InvalidModelError` where functions call each other in a ring, or inline to too many nodes."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[_Key, int] = {}
    for key in functions:
        _inlined_size(key, functions, sizes, ())
    total = sum(sizes.get(_key(node), 1) for node in _walk(model.graph.node)) if functions else 0
    _check_size(total, "the graph")


def _inlined_size(
    key: _Key, functions: dict[_Key, onnx.FunctionProto], sizes: dict[_Key, int], callers: tuple[_Key, ...]
) -> int:
    if key in callers:
        ring = " -> ".join(name for _, name, _ in (*callers[callers.index(key) :], key))
        raise InvalidModelError(f"functions call each other in a ring: {ring}")
    if key not in sizes:
        size = 0
        for node in _walk(functions[key].node):
            callee = _key(node)
            size += _inlined_size(callee, functions, sizes, (*callers, key)) if callee in functions else 1
        _check_size(size, f"function {key[1]!r}")
        sizes[key] = size
    return sizes[key]


def _check_size(size: int, what: str) -> None:
    if size > MAX_INLINED_NODES:
        raise InvalidModelError(f"{what} has more than {MAX_INLINED_NODES} nodes once functions are inlined")


def _walk(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _walk(graph.node)


def _key(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload
