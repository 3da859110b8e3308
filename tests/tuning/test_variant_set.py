"""The smallest set of variants with bounded regret, against exhaustive search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tvm_dyn.tuning.variant_set import choose_variants, expected_regret


@pytest.mark.parametrize("seed", range(12))
def test_as_small_as_the_best_set(seed):
    generator = np.random.default_rng(seed)
    seconds = generator.lognormal(0, 0.4, (12, 8))
    weights = generator.random(12)
    chosen = choose_variants(seconds, weights, allowed=0.05)
    assert expected_regret(seconds, weights, chosen) <= 0.05
    smallest = next(
        n
        for n in range(1, 9)
        if any(expected_regret(seconds, weights, s) <= 0.05 for s in itertools.combinations(range(8), n))
    )
    assert len(chosen) <= smallest + 1


def test_one_variant_that_is_best_everywhere_is_enough():
    seconds = np.array([[1.0, 2.0, 3.0], [1.0, 0.99, 5.0]])
    assert choose_variants(seconds, np.ones(2)) == [0]


def test_weights_count():
    seconds = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert choose_variants(seconds, np.array([1.0, 0.0])) == [0]
    assert choose_variants(seconds, np.array([0.0, 1.0])) == [1]
    assert sorted(choose_variants(seconds, np.array([0.5, 0.5]))) == [0, 1]


def test_no_more_than_asked_for():
    seconds = 10 - 9 * np.eye(12)
    assert len(choose_variants(seconds, np.ones(12))) == 10
    assert len(choose_variants(seconds, np.ones(12), most=3)) == 3


def test_variants_that_were_not_measured_everywhere():
    seconds = np.array([[1.0, np.inf, 1.5], [np.inf, 1.0, 1.5]])
    assert sorted(choose_variants(seconds, np.ones(2))) == [0, 1]
    assert choose_variants(seconds, np.ones(2), most=1) == [2]


def test_points_without_times_are_refused():
    with pytest.raises(ValueError, match="every point"):
        choose_variants(np.full((2, 2), np.inf), np.ones(2))
    with pytest.raises(ValueError, match="every point"):
        choose_variants(np.zeros((0, 0)), np.ones(0))
