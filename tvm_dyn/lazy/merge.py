"""Equal operations on equal operands are one.

    a = exp(x - m); b = (x - m) * 2      -->      t = x - m; a = exp(t); b = t * 2
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_dyn.lazy.graph import Node


def merged(nodes: Sequence[Node]) -> list[Node]:
    """For each node a copy of its own or of an equal one before it, with operands that are such copies or leaves."""
    copies: dict[int, Node] = {}
    known: dict[tuple, Node] = {}
    result = []
    for node in nodes:
        args = tuple([copies.get(id(arg), arg) for arg in node.args])
        key = (node.op, node.attr, node.dtype, node.shape, *map(id, args))
        if key not in known:
            known[key] = Node(node.op, args, node.dtype, node.shape, node.attr)
        copies[id(node)] = known[key]
        result.append(known[key])
    return result
