"""From times of variants at shapes to a decision: the tree over extents with the least expected regret.

The regret of a decision at a shape is its time over that of the best variant there, less 1; the tree that is sought
makes the mean over the shape profile small. That is a cost-sensitive classification (C. Elkan, The Foundations of
Cost-Sensitive Learning, IJCAI 2001): which variant wins does not matter where all take about the same time.

Where a single extent varies, the tree is the best there is (dynamic programming over intervals); with several it is
grown from the root, each split the best one when both of its sides are split once more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .variants import Leaf, Split, Tree, decide

MOST_THRESHOLDS = 128
"""Places at which one extent is considered for a split; more shapes are looked at in as many steps."""

_LOOK_AHEAD_THRESHOLDS = 32

WORTH_A_LEAF = 2e-4
"""Mean regret that another leaf has to save: less than that is noise of the measurements."""


@dataclass(frozen=True)
class Distilled:
    """A decision and its regret over the shapes it was made from: the weighted mean and the worst."""

    tree: Tree
    expected: float
    worst: float


def distill(
    points: Sequence[Mapping[str, int]],
    costs: ArrayLike,
    weights: Sequence[float] | None = None,
    max_leaves: int = 16,
) -> Distilled:
    """The decision between variants.

    points: extents by name, the same names in each. costs: seconds, [points, variants]; infinite where a variant is
    not known to be legal. weights: of the points; by default all the same. max_leaves: the tree is no deeper than a
    complete one with as many leaves. Raises ValueError where a point has no finite cost, and for other sizes.
    """
    seconds = np.asarray(costs, "float64")
    share = _checked(points, seconds, weights)
    relative = seconds / seconds.min(axis=1, keepdims=True)
    relative[~np.isfinite(relative)] = 1e6
    table = {name: np.array([point[name] for point in points]) for name in points[0]}
    varying = {name: values for name, values in table.items() if values.min() < values.max()}
    if len(varying) == 1:
        ((name, values),) = varying.items()
        tree = _intervals(name, values, relative * share[:, None], max_leaves)
    else:
        tree = _grown(varying, relative * share[:, None], int(math.log2(max_leaves)), share.sum())
    return measured(tree, points, seconds, weights)


def measured(
    tree: Tree,
    points: Sequence[Mapping[str, int]],
    costs: ArrayLike,
    weights: Sequence[float] | None = None,
) -> Distilled:
    """The regret of a given decision at shapes whose costs are known; arguments as in `distill`."""
    seconds = np.asarray(costs, "float64")
    share = _checked(points, seconds, weights)
    chosen = [decide(tree, point) for point in points]
    regret = seconds[np.arange(len(points)), chosen] / seconds.min(axis=1) - 1
    return Distilled(tree, float(regret @ share), float(regret.max()))


def _checked(points: Sequence, seconds: NDArray, weights: Sequence[float] | None) -> NDArray:
    """The weights, of sum 1."""
    if seconds.ndim != 2 or len(points) != len(seconds) or not seconds.size:
        raise ValueError(f"{len(points)} points need costs of shape (points, variants), not {seconds.shape}")
    share = np.ones(len(points)) if weights is None else np.asarray(weights, "float64")
    if share.shape != (len(points),) or (share < 0).any() or not 0 < share.sum() < np.inf:
        raise ValueError(f"{len(points)} points need as many weights, none below 0 and not all 0")
    if not (np.isfinite(seconds.min(axis=1)) & (seconds.min(axis=1) > 0)).all():
        raise ValueError("every point needs a variant that takes a finite time above 0")
    return share / share.sum()


def _thresholds(values: NDArray) -> NDArray:
    """Where to cut between neighbouring values: in the middle of their logarithms."""
    distinct = np.unique(values)
    cuts = [math.isqrt(max(int(a), 1) * int(b) - 1) + 1 for a, b in itertools.pairwise(distinct)]
    kept = [max(cut, int(a) + 1) for cut, a in zip(cuts, distinct, strict=False)]
    step = max(-(-len(kept) // MOST_THRESHOLDS), 1)
    return np.array(kept[::step], "int64")


def _intervals(name: str, values: NDArray, costs: NDArray, max_leaves: int) -> Tree:
    """The best division of one extent into intervals, of the fewest that are worth it."""
    cuts = _thresholds(values)
    place = np.searchsorted(cuts, values, side="right")
    bins = len(cuts) + 1
    summed = np.zeros((bins + 1, costs.shape[1]))
    np.add.at(summed, place + 1, costs)
    summed = summed.cumsum(axis=0)
    # of an interval from bin i to bin j - 1: what its best variant costs
    cost = (summed[None, :, :] - summed[:, None, :]).min(axis=2)
    best, origins = cost[0].copy(), []
    totals = [best[bins]]
    for _ in range(min(max_leaves, bins) - 1):
        ways = best[:, None] + np.where(np.tri(bins + 1, k=0, dtype=bool), np.inf, cost)
        origins.append(ways.argmin(axis=0))
        best = ways.min(axis=0)
        totals.append(best[bins])
    leaves = next(n for n, total in enumerate(totals) if total - min(totals) <= WORTH_A_LEAF)
    ends = [bins]
    for origin in reversed(origins[:leaves]):
        ends.append(int(origin[ends[-1]]))
    ends.append(0)
    bounds = ends[::-1]
    parts = [
        (int(cuts[start - 1]) if start else 0, int((summed[end] - summed[start]).argmin()))
        for start, end in itertools.pairwise(bounds)
    ]
    return _balanced(name, parts)


def _balanced(name: str, parts: list[tuple[int, int]]) -> Tree:
    """The tree of (first value, variant) of intervals in order."""
    if len(parts) == 1:
        return Leaf(parts[0][1])
    middle = len(parts) // 2
    below, above = _balanced(name, parts[:middle]), _balanced(name, parts[middle:])
    return below if below == above else Split(name, parts[middle][0], below, above)


def _grown(columns: dict[str, NDArray], costs: NDArray, depth: int, total: float) -> Tree:
    """The tree of at most ``depth`` splits on a path over several extents."""
    leaf, alone = int(costs.sum(axis=0).argmin()), costs.sum(axis=0).min()
    if not depth or len(costs) < 2 or alone - costs.min(axis=1).sum() <= WORTH_A_LEAF * total:
        return Leaf(leaf)
    best = min(_splits(columns, costs, look_ahead=depth > 1), default=None)
    if best is None or alone - best.cost <= WORTH_A_LEAF * total:
        return Leaf(leaf)
    name, threshold = best.extent, best.threshold
    low = columns[name] < threshold
    below, above = (
        _grown({n: values[side] for n, values in columns.items()}, costs[side], depth - 1, total)
        for side in (low, ~low)
    )
    return below if below == above else Split(name, threshold, below, above)


@dataclass(frozen=True, order=True)
class _Cut:
    """A split: what its sides cost when they are split once more (of equals the best as they are), and as they are."""

    cost: float
    alone: float
    extent: str
    threshold: int


def _splits(columns: dict[str, NDArray], costs: NDArray, look_ahead: bool) -> list[_Cut]:
    """Every split; without ``look_ahead`` sides are not split once more."""
    found = []
    for name, values in columns.items():
        cuts = _thresholds(values)
        if look_ahead:
            cuts = cuts[:: max(-(-len(cuts) // _LOOK_AHEAD_THRESHOLDS), 1)]
        order = np.argsort(values, kind="stable")
        summed = np.vstack([np.zeros(costs.shape[1]), costs[order].cumsum(axis=0)])
        for cut, n in zip(cuts, np.searchsorted(values[order], cuts, side="left"), strict=True):
            alone = float(summed[n].min() + (summed[-1] - summed[n]).min())
            ahead = _once_more(columns, costs, values < cut) if look_ahead else alone
            found.append(_Cut(round(ahead, 9), alone, name, int(cut)))
    return found


def _once_more(columns: dict[str, NDArray], costs: NDArray, low: NDArray) -> float:
    """What both sides of a split cost, each after the best split of its own."""
    total = 0.0
    for side in (low, ~low):
        splits = _splits({name: values[side] for name, values in columns.items()}, costs[side], look_ahead=False)
        total += min([float(costs[side].sum(axis=0).min()), *(split.cost for split in splits)])
    return total
