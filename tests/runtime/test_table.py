"""Decision tables: what is written is what is found, in Python; exchanges, and bad trees."""

import random

import numpy as np
import pytest

from tvm_dyn.runtime.table import DEPTH, LEAVES, MOST_VARIANTS, SLOT, Table
from tvm_dyn.runtime.variants import FIRST, Leaf, Split, Tree, decide, depth, from_plain, to_plain

EXTENTS = ("rows", "depth")


def random_tree(generator: random.Random, variants: int, levels: int = DEPTH) -> Tree:
    if levels == 0 or generator.random() < 0.3:
        return Leaf(generator.randrange(variants))
    below, above = (random_tree(generator, variants, levels - 1) for _ in range(2))
    return Split(generator.choice(EXTENTS), generator.randrange(0, 100), below, above)


def table(tree: Tree, variants: int = 3) -> Table:
    return Table.create(tree, EXTENTS, [[0, k] for k in range(variants)], group=0)


@pytest.mark.parametrize("seed", range(50))
def test_a_table_decides_as_its_tree_does(seed):
    generator = random.Random(seed)
    tree = random_tree(generator, 3)
    found = table(tree)
    for rows in (0, 1, 50, 99, 1 << 40, *(generator.randrange(100) for _ in range(20))):
        extents = {"rows": rows, "depth": generator.randrange(100)}
        assert found.decide(extents) == decide(tree, extents) == decide(found.tree(), extents)
    assert from_plain(to_plain(tree)) == tree and depth(tree) <= DEPTH


def test_an_exchange_is_one_store_and_what_was_there_stays_until_then():
    found = table(Leaf(0))
    before = found.words.copy()
    found.exchange(Split("rows", 5, Leaf(1), Leaf(2)))
    assert found.words[0] != before[0]
    first = 1 + int(before[0]) * SLOT
    np.testing.assert_array_equal(found.words[first : first + SLOT], before[first : first + SLOT])
    assert [found.decide({"rows": rows, "depth": 0}) for rows in (4, 5)] == [1, 2]
    found.exchange(Leaf(0))
    assert found.tree() == FIRST


def test_a_copy_for_one_variant_leaves_the_table_alone():
    found = table(Split("depth", 7, Leaf(0), Leaf(2)))
    only = found.of_variant(1)
    assert only.tree() == Leaf(1)
    assert found.tree() == Split("depth", 7, Leaf(0), Leaf(2))


def test_every_leaf_word_is_a_variant():
    """A reader that exchanges overtake still finds one."""
    words = table(random_tree(random.Random(1), 3)).words
    for slot in (words[1 : 1 + SLOT], words[1 + SLOT : 1 + 2 * SLOT]):
        assert set(slot[-LEAVES:]) <= {0, 1, 2}


def deep(levels: int) -> Tree:
    return Leaf(0) if levels == 0 else Split("rows", levels, Leaf(1), deep(levels - 1))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (deep(DEPTH + 1), "at most 4 splits"),
        (Leaf(3), "variant 3 of 3"),
        (Split("columns", 1, Leaf(0), Leaf(1)), "'columns'"),
    ],
)
def test_trees_that_do_not_fit_are_refused_and_change_nothing(tree, message):
    with pytest.raises(ValueError, match=message):
        table(tree)
    found = table(Leaf(1))
    with pytest.raises(ValueError, match=message):
        found.exchange(tree)
    assert found.tree() == Leaf(1)


def test_the_number_of_variants_is_bounded():
    with pytest.raises(ValueError, match="1 to 10 variants"):
        table(Leaf(0), MOST_VARIANTS + 1)
    with pytest.raises(ValueError, match="1 to 10 variants"):
        table(Leaf(0), 0)
