"""The decision table of a fusion group: int64 words in the library that compiled code walks and Python may exchange.

    word 0                     which of two slots is in use
    slot: 15 x extent          a complete binary tree of depth 4 in the order of levels: the position of the extent to
          15 x threshold       look at in each inner node, and the value from which on the path goes to the right
          16 x variant         the position of the variant in each leaf
    per variant: copy, ...     the copy of the code that computes it, then the decisions that this code takes as numbers
    last word                  the number of the group, as a compiler may merge constants that are alike

A tree is written to the slot that is not in use; one store of word 0 then exchanges both. Whatever a thread reads
while others write, every path ends in a leaf and every leaf holds a variant: a reader that two exchanges overtake
runs some variant, and each is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .variants import Leaf, Split, Tree, depth

DEPTH = 4
"""Splits from the root to each leaf."""
INNER = 2**DEPTH - 1
LEAVES = 2**DEPTH
SLOT = 2 * INNER + LEAVES
VARIANTS = 1 + 2 * SLOT
"""The position of the first variant's words."""
MOST_VARIANTS = 10


class Table:
    """A table over ``words`` in place. extents: names of the extents that its splits know by position."""

    def __init__(self, words: np.ndarray, extents: Sequence[str], variants: int) -> None:
        self.words, self.extents, self.variants = words, tuple(extents), variants

    @staticmethod
    def create(tree: Tree, extents: Sequence[str], rows: Sequence[Sequence[int]], group: int) -> Table:
        """A new table. rows: of each variant the copy of the code and the decisions that it takes as numbers.

        Raises ValueError for a tree that is deeper than `DEPTH` or does not fit ``extents`` and ``rows``.
        """
        if not 0 < len(rows) <= MOST_VARIANTS:
            raise ValueError(f"a table has 1 to {MOST_VARIANTS} variants, not {len(rows)}")
        slot = _encoded(tree, extents, len(rows))
        words = np.concatenate([[0], slot, slot, np.asarray(rows, "int64").ravel(), [group]]).astype("int64")
        return Table(words, extents, len(rows))

    def decide(self, values: Mapping[str, int]) -> int:
        """The position of the variant at these extents: what compiled code finds."""
        slot = self._slot(int(self.words[0]))
        given = [values[name] for name in self.extents]
        node = 0
        for _ in range(DEPTH):
            right = given[slot[node]] >= slot[INNER + node]
            node = 2 * node + 1 + int(right)
        return int(slot[2 * INNER + node - INNER])

    def exchange(self, tree: Tree) -> None:
        """Let every call from now on decide by ``tree``.

        Raises ValueError as `create` does, and changes nothing then.
        """
        unused = 1 - int(self.words[0])
        self._slot(unused)[:] = _encoded(tree, self.extents, self.variants)
        self.words[0] = unused

    def tree(self) -> Tree:
        """The tree in use."""
        return _decoded(self._slot(int(self.words[0])), self.extents, 0)

    def of_variant(self, variant: int) -> Table:
        """A copy that always takes ``variant``."""
        copy = Table(self.words.copy(), self.extents, self.variants)
        copy.exchange(Leaf(variant))
        return copy

    def _slot(self, number: int) -> np.ndarray:
        first = 1 + number * SLOT
        return self.words[first : first + SLOT]


def _encoded(tree: Tree, extents: Sequence[str], variants: int) -> np.ndarray:
    if depth(tree) > DEPTH:
        raise ValueError(f"a tree has at most {DEPTH} splits on a path, not {depth(tree)}")
    slot = np.zeros(SLOT, "int64")
    _write(slot, tree, extents, variants, 0)
    return slot


def _write(slot: np.ndarray, tree: Tree, extents: Sequence[str], variants: int, node: int) -> None:
    if node >= INNER:
        assert isinstance(tree, Leaf)  # the depth is checked
        if not 0 <= tree.variant < variants:
            raise ValueError(f"the tree takes variant {tree.variant} of {variants}")
        slot[2 * INNER + node - INNER] = tree.variant
        return
    below, above = tree, tree
    if isinstance(tree, Split):
        if tree.extent not in extents:
            raise ValueError(f"the tree splits by {tree.extent!r}; there are {', '.join(extents) or 'no extents'}")
        slot[node], slot[INNER + node] = list(extents).index(tree.extent), tree.threshold
        below, above = tree.below, tree.above
    _write(slot, below, extents, variants, 2 * node + 1)
    _write(slot, above, extents, variants, 2 * node + 2)


def _decoded(slot: np.ndarray, extents: Sequence[str], node: int) -> Tree:
    if node >= INNER:
        return Leaf(int(slot[2 * INNER + node - INNER]))
    below, above = (_decoded(slot, extents, 2 * node + 1 + side) for side in (0, 1))
    if below == above:
        return below
    return Split(extents[int(slot[node])], int(slot[INNER + node]), below, above)
