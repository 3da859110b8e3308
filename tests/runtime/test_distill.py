"""Trees of the least regret: compared with brute force, and on costs that are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tvm_dyn.runtime.distill import distill, measured
from tvm_dyn.runtime.table import DEPTH, Table
from tvm_dyn.runtime.variants import Leaf, Split, decide, depth


def rows(values) -> list[dict[str, int]]:
    return [{"rows": int(value)} for value in values]


def test_takes_the_best_variant_of_each_interval():
    points = rows(range(1, 101))
    costs = np.array([[1.0 + 0.01 * p["rows"], 1.5] for p in points])  # the first wins below 50
    found = distill(points, costs)
    assert found.tree == Split("rows", 50, Leaf(0), Leaf(1)) or found.tree == Split("rows", 51, Leaf(0), Leaf(1))
    assert found.expected == pytest.approx(0, abs=1e-9) and found.worst == pytest.approx(0, abs=1e-9)


def test_thresholds_lie_between_what_was_measured():
    found = distill(rows([1, 100]), [[1.0, 2.0], [2.0, 1.0]])
    assert found.tree == Split("rows", 10, Leaf(0), Leaf(1))
    assert distill(rows([6, 7]), [[1.0, 2.0], [2.0, 1.0]]).tree == Split("rows", 7, Leaf(0), Leaf(1))
    assert distill(rows([0, 1]), [[1.0, 2.0], [2.0, 1.0]]).tree == Split("rows", 1, Leaf(0), Leaf(1))


def test_regret_counts_more_than_wins():
    # The second variant wins at most shapes, by nothing; the first is three times as fast at one of them.
    points, costs = rows(range(1, 10)), np.array([[1.001, 1.0]] * 8 + [[1.0, 3.0]])
    assert distill(points, costs, max_leaves=1).tree == Leaf(0)


def test_weights_are_respected():
    points, costs = rows([1, 2]), [[1.0, 2.0], [2.0, 1.0]]
    assert distill(points, costs, [9.0, 1.0], max_leaves=1).tree == Leaf(0)
    found = distill(points, costs, [1.0, 9.0], max_leaves=1)
    assert found.tree == Leaf(1) and found.expected == pytest.approx(0.1) and found.worst == pytest.approx(1.0)


def test_one_variant_needs_no_decision():
    assert distill(rows([1, 2, 3]), [[1.0], [2.0], [3.0]]).tree == Leaf(0)
    assert distill([{}], [[2.0, 1.0]]).tree == Leaf(1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("leaves", [1, 2, 3, 4])
def test_one_extent_is_divided_as_well_as_can_be(seed, leaves):
    generator = np.random.default_rng(seed)
    points, costs = rows(range(1, 11)), generator.uniform(1, 2, (10, 3))
    relative = costs / costs.min(axis=1, keepdims=True)
    best = np.inf
    for parts in range(leaves):
        for cuts in itertools.combinations(range(1, 10), parts):
            bounds = [0, *cuts, 10]
            best = min(best, sum(relative[a:b].sum(axis=0).min() for a, b in itertools.pairwise(bounds)))
    found = distill(points, costs, max_leaves=leaves)
    assert found.expected == pytest.approx(best / 10 - 1, abs=3e-4)


def test_more_extents_than_one():
    points = [{"batch": b, "rows": r} for b in (1, 2, 4, 8, 16) for r in (1, 3, 7, 15, 40, 100)]
    # An exclusive or: no single split is of any use alone.
    costs = np.array([[1.0, 2.0] if (p["batch"] < 4) == (p["rows"] < 15) else [2.0, 1.0] for p in points])
    found = distill(points, costs)
    assert found.expected == 0 and depth(found.tree) == 2
    assert all(costs[n, decide(found.tree, p)] == 1 for n, p in enumerate(points))


@pytest.mark.parametrize("seed", range(4))
def test_trees_fit_the_table(seed):
    generator = np.random.default_rng(seed)
    points = [{"batch": int(b), "rows": int(r)} for b, r in generator.integers(1, 300, (200, 2))]
    costs = generator.uniform(1, 3, (200, 10))
    for given in (points, rows(generator.integers(1, 1000, 200))):
        found = distill(given, costs)
        assert depth(found.tree) <= DEPTH
        table = Table.create(found.tree, list(given[0]), [[n] for n in range(10)], 0)
        assert [table.decide(p) for p in given] == [decide(found.tree, p) for p in given]


def test_what_is_not_legal_is_never_taken():
    points, costs = rows([1, 2, 3]), [[np.inf, 5.0], [1.0, 5.0], [1.0, 5.0]]
    found = distill(points, costs)
    assert decide(found.tree, {"rows": 1}) == 1
    assert decide(distill(points, costs, max_leaves=1).tree, {"rows": 3}) == 1


def test_the_regret_of_a_given_decision():
    found = measured(Leaf(1), rows([1, 2]), [[1.0, 2.0], [2.0, 1.0]], [1.0, 3.0])
    assert (found.expected, found.worst) == (pytest.approx(0.25), pytest.approx(1.0))


@pytest.mark.parametrize(
    ("costs", "weights", "message"),
    [
        ([[1.0]], None, "2 points need costs"),
        ([[np.inf], [1.0]], None, "finite time"),
        ([[0.0], [1.0]], None, "above 0"),
        ([[1.0], [1.0]], [1.0], "as many weights"),
        ([[1.0], [1.0]], [1.0, -1.0], "none below 0"),
        ([[1.0], [1.0]], [0.0, 0.0], "not all 0"),
    ],
)
def test_bad_costs_are_refused(costs, weights, message):
    with pytest.raises(ValueError, match=message):
        distill(rows([1, 2]), costs, weights)
