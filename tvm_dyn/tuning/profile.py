"""Which shapes a model meets and how often: given as ranges of dims, as a histogram file, or recorded.

batch,seq,count            {"batch": 1, "seq": 37, "count": 120}
1,37,120                   {"batch": 8, "seq": 128, "count": 4}
8,128,4                    as .json (an array) or .jsonl (an object a line)          without counts each line is one
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_dyn.dims import Dim
from tvm_dyn.errors import TuningError
from tvm_dyn.runtime.shape_profile import COUNT

_OPEN_LIMIT = 512
"""Where a dim without an upper bound ends..."""
_OPEN_PRODUCT = 4096
"""... and the product of several of them."""


@dataclass(frozen=True)
class ShapeProfile:
    """Extents by name of dim, each with its share of the calls; shares add up to 1."""

    points: tuple[dict[str, int], ...]
    weights: tuple[float, ...]

    @staticmethod
    def of_counts(counted: Iterable[tuple[Mapping[str, int], float]]) -> ShapeProfile:
        """The profile of (extents, how often) in any order; extents may repeat. Raises TuningError."""
        total: dict[tuple[tuple[str, int], ...], float] = defaultdict(float)
        for extents, count in counted:
            if count < 0 or any(value < 0 for value in extents.values()):
                raise TuningError(f"the profile counts {dict(extents)} {count:g} times: neither may be negative")
            total[tuple(sorted(extents.items()))] += count
        kept = {extents: count for extents, count in total.items() if count > 0}
        if not kept:
            raise TuningError("the profile has no shapes: give at least one with a count above 0")
        whole = sum(kept.values())
        return ShapeProfile(tuple(map(dict, kept)), tuple(count / whole for count in kept.values()))

    @staticmethod
    def uniform(dims: Mapping[str, Dim], count: int) -> ShapeProfile:
        """About ``count`` shapes that weigh the same, spread evenly over the orders of magnitude of each range.

        The first two hold all least and all greatest extents, the others follow Halton's sequence (Numer. Math. 2,
        1960). A dim without an upper bound goes to 512, and several of them together to a product of 4096.
        """
        limits = _limits(dims)
        fixed = math.prod(high - low + 1 for low, high in limits.values()) if limits else 1
        if fixed <= count:
            return ShapeProfile.of_counts((point, 1) for point in _all_points(dims, limits))
        places = [(0.0,) * len(dims), (1.0,) * len(dims)]
        places += [tuple(_halton(n, base) for base in _primes(len(dims))) for n in range(1, count - 1)]
        drawn = [
            {name: _spread(dims[name], *limits[name], share) for name, share in zip(dims, place, strict=True)}
            for place in places
        ]
        distinct = {tuple(point.items()) for point in drawn}
        return ShapeProfile.of_counts((dict(point), 1) for point in sorted(distinct))

    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> ShapeProfile:
        """Read a histogram: .csv, .json or .jsonl, see above. Raises TuningError, which names the line."""
        file = Path(path)
        readers = {".csv": _csv_rows, ".json": json.loads, ".jsonl": _json_lines}
        if file.suffix not in readers:
            raise TuningError(f"cannot read the profile {file}: name it .csv, .json or .jsonl by its format")
        try:
            rows = [*readers[file.suffix](file.read_text())]
        except (OSError, ValueError) as error:
            raise TuningError(f"cannot read the profile {file}: {error}") from error
        return ShapeProfile.of_counts(_counted(row, f"{file}, entry {n}") for n, row in enumerate(rows, 1))

    def summarized(self, count: int) -> ShapeProfile:
        """The same with at most ``count`` shapes: close ones (in the logarithm of extents) are taken together, and
        the most frequent of them stands for all.
        """
        for steps in (32, 16, 8, 4, 3, 2, 1, 0.5, 0.25):
            if len(self.points) <= count:
                return self
            groups: dict[tuple, list[int]] = defaultdict(list)
            for n, extents in enumerate(self.points):
                groups[tuple(round(steps * math.log2(v + 1)) for v in extents.values())].append(n)
            if len(groups) <= count:
                return ShapeProfile.of_counts(
                    (self.points[max(group, key=lambda n: self.weights[n])], sum(self.weights[n] for n in group))
                    for group in groups.values()
                )
        heaviest = sorted(range(len(self.points)), key=lambda n: -self.weights[n])[:count]
        return ShapeProfile.of_counts((self.points[n], self.weights[n]) for n in heaviest)


def _limits(dims: Mapping[str, Dim]) -> dict[str, tuple[int, int]]:
    """Least and greatest multiple of its divisor of each dim."""
    unbounded = sum(dim.max is None for dim in dims.values())
    top = min(_OPEN_LIMIT, round(_OPEN_PRODUCT ** (1 / unbounded))) if unbounded else 0
    found = {}
    for name, dim in dims.items():
        low = -(-max(dim.min, 1) // dim.divisor)
        high = (max(top, dim.min) if dim.max is None else dim.max) // dim.divisor
        found[name] = (low, max(low, high))
    return found


def _all_points(dims: Mapping[str, Dim], limits: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    points: list[dict[str, int]] = [{}]
    for name, (low, high) in limits.items():
        steps = range(low, high + 1)
        points = [{**point, name: step * dims[name].divisor} for point in points for step in steps]
    return points


def _spread(dim: Dim, low: int, high: int, share: float) -> int:
    """The extent at this share of the way from ``low`` to ``high`` multiples of the divisor, in logarithms."""
    return round(low * (high / low) ** share) * dim.divisor


def _halton(n: int, base: int) -> float:
    value, scale = 0.0, 1.0
    while n:
        n, digit = divmod(n, base)
        scale /= base
        value += digit * scale
    return value


def _primes(count: int) -> list[int]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found):
            found.append(number)
        number += 1
    return found


def _csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _json_lines(text: str) -> list:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _counted(row: object, where: str) -> tuple[dict[str, int], float]:
    if not isinstance(row, Mapping):
        raise TuningError(f"{where}: {row!r} is no shape; write extents by name of dim")
    try:
        extents = {str(name): int(value) for name, value in row.items() if name != COUNT}
        return extents, float(row.get(COUNT, 1))
    except (TypeError, ValueError) as error:
        raise TuningError(f"{where}: {dict(row)} is no shape: {error}; write whole numbers") from error


def check_dims(profile: ShapeProfile, dims: Sequence[str]) -> None:
    """Raise TuningError unless every shape of the profile gives exactly these dims."""
    for extents in profile.points:
        if set(extents) != set(dims):
            missing, unknown = set(dims) - set(extents), set(extents) - set(dims)
            words = [f"{kind} {', '.join(sorted(names))}" for kind, names in
                     (("lacks", missing), ("has unknown dims", unknown)) if names]  # fmt: skip
            raise TuningError(f"the profile {' and '.join(words)}; the model's dims are {', '.join(dims) or 'none'}")
