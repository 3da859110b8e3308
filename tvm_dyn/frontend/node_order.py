"""Nodes in an order in which each value is computed before it is used; finds cycles and missing values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from tvm_dyn.errors import InvalidModelError


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes (the branches of If, the body of Loop and Scan)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def ordered_nodes(
    nodes: Sequence[onnx.NodeProto], graph_name: str, known: set[str], outer: Sequence[set[str]]
) -> list[onnx.NodeProto] | None:
    """The nodes sorted so that producers come first, or None where they are in order already.

    known: graph inputs and initializers. outer: what the graphs around provide. Kahn's algorithm, stable.
    Raises `InvalidModelError` on a value that nothing provides and on a cycle, which it names.
    """
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs: list[list[int]] = []
    for node in nodes:
        needs.append([])
        for name in _used(node):
            if name in producer:
                needs[-1].append(producer[name])
            elif name not in known and not any(name in scope for scope in outer):
                raise InvalidModelError(
                    f"{label(node)} uses {name!r}, which nothing in graph {graph_name!r} provides: "
                    "it is no graph input, no initializer and no node's output"
                )
    if all(source < index for index, sources in enumerate(needs) for source in sources):
        return None
    return [nodes[index] for index in _sort(nodes, needs)]


def label(node: onnx.NodeProto) -> str:
    """How messages name a node."""
    return f"node {node.name or (node.output[0] if node.output else '?')!r} ({node.op_type})"


def _used(node: onnx.NodeProto) -> set[str]:
    """The values a node reads, its subgraphs' reads of outer values included."""
    used = {name for name in node.input if name}
    for graph in subgraphs(node):
        used |= _captured(graph)
    return used


def _captured(graph: onnx.GraphProto) -> set[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {sparse.values.name for sparse in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    used = {value.name for value in graph.output}.union(*(_used(node) for node in graph.node))
    return used - own


def _sort(nodes: Sequence[onnx.NodeProto], needs: Sequence[Sequence[int]]) -> list[int]:
    waiting = [len(set(sources)) for sources in needs]
    users: list[list[int]] = [[] for _ in nodes]
    for index, sources in enumerate(needs):
        for source in set(sources):
            users[source].append(index)
    order = [index for index, count in enumerate(waiting) if count == 0]
    for index in order:
        for user in users[index]:
            waiting[user] -= 1
            if waiting[user] == 0:
                order.append(user)
    if len(order) < len(nodes):
        stuck = {index: needs[index] for index, count in enumerate(waiting) if count}
        raise InvalidModelError(f"the graph has a cycle: {_cycle(nodes, stuck)}")
    return order


def _cycle(nodes: Sequence[onnx.NodeProto], stuck: Mapping[int, Sequence[int]]) -> str:
    """Walk from a stuck node to the stuck nodes it waits for until one comes back."""
    path = [next(iter(stuck))]
    while path[-1] not in path[:-1]:
        path.append(next(source for source in stuck[path[-1]] if source in stuck))
    loop = path[path.index(path[-1]) :]
    shown = [label(nodes[index]) for index in reversed(loop)]
    return " -> ".join(shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-3:]])
