"""Variants of a fusion group and the decision between them, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Decision = int | tuple[int, ...]


@dataclass(frozen=True)
class Variant:
    """One way to run a backbone.

    kind: the class of its tile, such as "PackedTile". decisions: the fields of the tile.
    """

    kind: str
    decisions: Mapping[str, Decision]

    @property
    def name(self) -> str:
        """The kind and what is decided, such as ``PanelTile(rows=6, vectors=4, lanes=16)``."""
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in self.decisions.items())})"

    def __hash__(self) -> int:
        return hash((self.kind, tuple(sorted(self.decisions.items()))))


@dataclass(frozen=True)
class Leaf:
    """Take the variant at this position."""

    variant: int


FIRST = Leaf(0)
"""Take the first variant, whatever the extents."""


@dataclass(frozen=True)
class Split:
    """``below`` where the extent of this name is less than ``threshold``, else ``above``."""

    extent: str
    threshold: int
    below: Tree
    above: Tree


Tree = Leaf | Split
"""A decision between variants by the extents of a call."""


def decide(tree: Tree, extents: Mapping[str, int]) -> int:
    """The position of the variant that ``tree`` takes at these extents."""
    while isinstance(tree, Split):
        tree = tree.below if extents[tree.extent] < tree.threshold else tree.above
    return tree.variant


def pruned(tree: Tree, known: Mapping[str, int]) -> Tree:
    """The tree where these extents are always the same."""
    if isinstance(tree, Leaf):
        return tree
    if tree.extent in known:
        return pruned(tree.below if known[tree.extent] < tree.threshold else tree.above, known)
    return Split(tree.extent, tree.threshold, pruned(tree.below, known), pruned(tree.above, known))


def depth(tree: Tree) -> int:
    """Splits on the longest path."""
    return 0 if isinstance(tree, Leaf) else 1 + max(depth(tree.below), depth(tree.above))


def to_plain(tree: Tree) -> int | list:
    """The tree as JSON has it: a variant, or [extent, threshold, below, above]."""
    if isinstance(tree, Leaf):
        return tree.variant
    return [tree.extent, tree.threshold, to_plain(tree.below), to_plain(tree.above)]


def from_plain(plain: int | list) -> Tree:
    """The tree that `to_plain` made plain."""
    if isinstance(plain, int):
        return Leaf(plain)
    extent, threshold, below, above = plain
    return Split(str(extent), int(threshold), from_plain(below), from_plain(above))
