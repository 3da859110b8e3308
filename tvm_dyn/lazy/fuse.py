"""Groups: which nodes one program computes.

    m = max(x, axis=-1); e = exp(x - m); s = sum(e, axis=-1); y = e / s     -->     one group over the space of x

A group has one space, the shape that its tiles are cut from. A node joins the first group, from that of its last
operand on, that has its space (or a column of it) and can reach its operands: groups run in their order, so what
a node reads of earlier groups is there. Where rows end and columns begin is up to the first reduction that joins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tvm_dyn.lazy.graph import Node, Shape
from tvm_dyn.runtime.bytecode.encode import ACCUMULATE
from tvm_dyn.runtime.bytecode.isa import BY_ROW
from tvm_dyn.runtime.bytecode.recipe import Layout

MAX_NODES = 32
"""Nodes of a group: beyond, registers leave the first-level cache and more fusion saves nothing. Their operands,
results and registers always fit the slots of a program."""

REDUCTIONS = frozenset(ACCUMULATE)


_SPLITTING = frozenset({"find", "gather", *BY_ROW})
"""Operations, beside reductions, that ask where the columns begin."""


class Group:
    """Nodes that one program computes, with the layout of each in the group's space."""

    def __init__(self, space: Shape) -> None:
        self.space = space
        self.split: int | None = None
        self.nodes: list[Node] = []
        self.layouts: dict[int, Layout] = {}

    def layout_for(self, node: Node) -> Layout | None:
        """What the node would be in this group; None where it does not fit."""
        if len(self.nodes) >= MAX_NODES:
            return None
        if node.op in REDUCTIONS:
            return self._reduced(node)
        if node.op == "find":
            return self._found(node)
        if node.op == "gather":
            return self._gathered(node)
        if self._fits_tile(node):
            by_row = node.op in BY_ROW and self.split not in (None, _split_of(node))
            return None if by_row else Layout.TILE
        if node.op in BY_ROW:
            return None
        if self._fits_column(node):
            return Layout.COLUMN
        return Layout.ONE if self._fits_late(node) else None

    def add(self, node: Node, layout: Layout) -> None:
        if (node.op in REDUCTIONS and layout is not Layout.ONE) or node.op in _SPLITTING:
            self.split = _split_of(node)
        self.nodes.append(node)
        self.layouts[id(node)] = layout

    def takes_alias(self, node: Node) -> bool:
        """Whether the node's elements are at hand in this group, under its new shape."""
        own = self.layouts.get(id(node.args[0]))
        if own is None:
            return False
        column = own is Layout.COLUMN and (self._is_spread(node.shape) or node.shape == self.space[: self.split])
        if not (column or own is Layout.ONE or (own is Layout.TILE and node.shape == self.space)):
            return False
        self.layouts[id(node)] = own
        return True

    def _reduced(self, node: Node) -> Layout | None:
        (operand,) = node.args
        layout = Layout[node.attr[0]]
        own = self.layouts.get(id(operand))
        if layout is Layout.ONE and own is Layout.COLUMN:
            return layout
        if operand.shape != self.space or own not in (None, Layout.TILE):
            return None
        if layout is not Layout.ONE and self.split not in (None, _split_of(node)):
            return None
        return layout

    def _found(self, node: Node) -> Layout | None:
        searched, wanted = node.args
        fits = searched.shape == self.space and self.layouts.get(id(searched)) in (None, Layout.TILE)
        is_column = self.layouts.get(id(wanted)) is Layout.COLUMN
        return Layout.COLUMN if fits and is_column and self.split == _split_of(node) else None

    def _gathered(self, node: Node) -> Layout | None:
        table, index = node.args
        new = not {id(table), id(index)}.isdisjoint(self.layouts)
        return Layout.TILE if not new and node.shape == self.space and self.split in (None, _split_of(node)) else None

    def _fits_tile(self, node: Node) -> bool:
        if node.shape != self.space:
            return False
        for arg in node.args:
            own = self.layouts.get(id(arg))
            if own is Layout.COLUMN and not self._is_spread(arg.shape):
                return False
            if own not in (None, Layout.TILE, Layout.COLUMN) or (own is Layout.TILE and arg.shape != self.space):
                return False
        return True

    def _fits_column(self, node: Node) -> bool:
        if self.split is None or math.prod(node.shape) != math.prod(self.space[: self.split]):
            return False
        if not (self._is_spread(node.shape) or node.shape == self.space[: self.split]):
            return False
        own = [self.layouts.get(id(arg)) for arg in node.args]
        if Layout.COLUMN not in own:
            return False
        for arg, layout in zip(node.args, own, strict=True):
            if layout is None and not _is_plain_column(arg, node.shape):
                return False
            if layout is not None and (layout is not Layout.COLUMN or arg.shape != node.shape):
                return False
        return True

    def _is_spread(self, shape: Shape) -> bool:
        """Whether a column of this shape meets the space row by row: it has all axes, the reduced ones of 1."""
        if self.split is None:
            return False
        return shape == (*self.space[: self.split], *[1] * (len(self.space) - self.split))

    def _fits_late(self, node: Node) -> bool:
        """Whether the node is computed from totals, and from numbers."""
        own = [self.layouts.get(id(arg)) for arg in node.args]
        if Layout.ONE not in own:
            return False
        return all(layout in (None, Layout.ONE) and _is_single(arg) for arg, layout in zip(node.args, own, strict=True))


def _split_of(node: Node) -> int:
    """The axis where the columns begin: after the rows of a row reduction, or of a reduction over rows."""
    if node.op == "gather":
        return len(node.args[1].shape)
    return node.attr[1]


def _is_single(node: Node) -> bool:
    return math.prod(node.shape) == 1


def _is_plain_column(node: Node, shape: Shape) -> bool:
    """Whether an array in memory has its elements in the order of a column of ``shape``, or is one number."""
    if _is_single(node):
        return True
    return node.shape == shape and (node.value is None or bool(node.value.flags.c_contiguous))


def space_of(node: Node) -> Shape:
    """The space of a group that the node starts."""
    return node.args[0].shape if node.op in REDUCTIONS or node.op == "find" else node.shape


def groups_of(nodes: Sequence[Node]) -> list[Group]:
    """The groups, in the order in which they have to run; ``nodes`` come after their operands."""
    groups: list[Group] = []
    home: dict[int, int] = {}
    for node in nodes:
        first = max((home[id(arg)] for arg in node.args if id(arg) in home), default=0)
        if node.op == "alias":
            taken = first < len(groups) and groups[first].takes_alias(node)
            home[id(node)] = first if taken else min(first + 1, len(groups))
            continue
        home[id(node)] = _place(node, groups, first)
    return groups


def _place(node: Node, groups: list[Group], first: int) -> int:
    """Add the node to the first group that takes it, or to a new one; the number of that."""
    for number in range(first, len(groups)):
        layout = groups[number].layout_for(node)
        if layout is not None:
            groups[number].add(node, layout)
            return number
    groups.append(Group(space_of(node)))
    groups[-1].add(node, _first_layout(groups[-1], node))
    return len(groups) - 1


def _first_layout(group: Group, node: Node) -> Layout:
    if node.op == "find":
        return Layout.COLUMN
    layout = group.layout_for(node)
    return layout or Layout.TILE


def pending(roots: Iterable[Node]) -> list[Node]:
    """The nodes without a value that ``roots`` need, after their operands."""
    order: list[Node] = []
    seen: set[int] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node.value is None and id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(arg, False) for arg in reversed(node.args)]
    return order
