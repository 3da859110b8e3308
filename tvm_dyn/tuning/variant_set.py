"""The smallest set of variants that is nearly as fast as all of them together over a shape profile.

Expected regret of a set S: sum over points of weight * (min over S of seconds / min over all of seconds - 1).
Greedy forward choice, then exchanges of one variant for another while that helps; the regret of a set never grows with
it (it is a facility-location objective), so greedy is near the best (Nemhauser, Wolsey, Fisher, Math. Prog. 14, 1978).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_dyn.runtime.table import MOST_VARIANTS

REGRET = 0.03


def expected_regret(seconds: np.ndarray, weights: np.ndarray, chosen: Sequence[int]) -> float:
    """Of a set of variants. seconds: [points, variants], inf where not known. weights: of the points, any scale."""
    best = seconds.min(axis=1)
    return float(np.average(seconds[:, list(chosen)].min(axis=1) / best - 1, weights=weights))


def choose_variants(
    seconds: np.ndarray, weights: np.ndarray, allowed: float = REGRET, most: int = MOST_VARIANTS
) -> list[int]:
    """Positions of the fewest variants whose expected regret is at most ``allowed``, best first; ``most`` at most.

    seconds: [points, variants], inf where a variant was not measured; each point needs a finite one.
    Raises ValueError for no variants and for points without times.
    """
    if not seconds.size or not np.isfinite(seconds.min(axis=1)).all():
        raise ValueError("every point needs the time of at least one variant")
    chosen: list[int] = []
    while not chosen or (expected_regret(seconds, weights, chosen) > allowed and len(chosen) < most):
        rest = [v for v in range(seconds.shape[1]) if v not in chosen]
        if not rest:
            break
        chosen.append(min(rest, key=lambda v: _padded_regret(seconds, weights, [*chosen, v])))
        chosen = _exchanged(seconds, weights, chosen)
    return chosen


def _exchanged(seconds: np.ndarray, weights: np.ndarray, chosen: list[int]) -> list[int]:
    """The set after the exchanges of single variants that lower its regret."""
    best, improved = _padded_regret(seconds, weights, chosen), True
    while improved:
        improved = False
        for place in range(len(chosen)):
            for variant in range(seconds.shape[1]):
                if variant in chosen:
                    continue
                other = [*chosen[:place], variant, *chosen[place + 1 :]]
                regret = _padded_regret(seconds, weights, other)
                if regret < best - 1e-12:
                    chosen, best, improved = other, regret, True
    return chosen


def _padded_regret(seconds: np.ndarray, weights: np.ndarray, chosen: Sequence[int]) -> float:
    """The regret, where a point that no chosen variant was measured at counts as the slowest variant there."""
    known = np.where(np.isfinite(seconds), seconds, 0).max(axis=1)[:, None] * 10
    return expected_regret(np.where(np.isfinite(seconds), seconds, known), weights, chosen)
