"""Which shapes a library is called with: counted while it serves, if asked to, for `tune` and `compile` to read.

    [{"batch": 1, "seq": 37, "count": 1904}, {"batch": 8, "seq": 128, "count": 64}]

Some calls are looked at, drawn at random; the most frequent shapes among them are kept with their counts, in bounded
memory, by the space-saving algorithm (A. Metwally, D. Agrawal, A. El Abbadi, Efficient Computation of Frequent and
Top-k Elements in Data Streams, ICDT 2005). Nothing but extents is kept, and nothing leaves the process unless saved.
"""

from __future__ import annotations

import json
import math
import os
import random
import threading
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from tvm_dyn.errors import InvalidInputError

from .files import replace_text

COUNT = "count"
"""The key of an entry that tells how often; all others are dims."""

Shapes = TypeVar("Shapes", bound=Hashable)


class ShapeRecorder(Generic[Shapes]):
    """Counts shapes, by whatever tells them apart. Calls from several threads are safe.

    every: one call in so many is looked at, on average. capacity: distinct shapes that are kept; where there are more
    the rare ones go first, and counts may then be too high by what the rarest one kept has.
    """

    def __init__(self, every: int = 16, capacity: int = 1024) -> None:
        if every < 1 or capacity < 1:
            raise ValueError(f"every={every}, capacity={capacity}: both are at least 1")
        self.every, self.capacity = every, capacity
        self._counts: dict[Shapes, int] = {}
        self._lock = threading.Lock()
        self._random = random.Random(0)
        self._left = self._skip()

    def note(self, shapes: Shapes) -> None:
        """One call; costs a subtraction unless it is looked at."""
        # Threads may overwrite each other's subtraction: then the next look comes a call later.
        self._left -= 1
        if self._left > 0:
            return
        with self._lock:
            self._left = self._skip()
            if shapes not in self._counts and len(self._counts) >= self.capacity:
                rarest = min(self._counts, key=self._counts.__getitem__)
                self._counts[shapes] = self._counts.pop(rarest)
            self._counts[shapes] = self._counts.get(shapes, 0) + 1

    def entries(self, extents: Callable[[Shapes], Mapping[str, int]]) -> list[dict[str, int]]:
        """The dims of what was seen with about how many calls had them, the most frequent first.

        Raises InvalidInputError where a dim is called "count".
        """
        with self._lock:
            counts = dict(self._counts)
        total: dict[tuple[tuple[str, int], ...], int] = {}
        for shapes, count in counts.items():
            key = tuple(extents(shapes).items())
            total[key] = total.get(key, 0) + count * self.every
        if any(name == COUNT for key in total for name, _ in key):
            raise InvalidInputError(f"a dim is called {COUNT!r}, which profiles need for themselves: rename it")
        ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
        return [{**dict(key), COUNT: count} for key, count in ordered]

    def save(self, path: str | os.PathLike[str], extents: Callable[[Shapes], Mapping[str, int]]) -> None:
        """Write the entries as JSON, complete or not at all."""
        write_entries(path, self.entries(extents))

    def clear(self) -> None:
        """Forget all that was seen."""
        with self._lock:
            self._counts.clear()

    def _skip(self) -> int:
        """Calls up to the next look: geometrically distributed, so that no period in the calls can hide from it."""
        if self.every == 1:
            return 1
        return 1 + int(math.log(1.0 - self._random.random()) / math.log(1.0 - 1.0 / self.every))


def write_entries(path: str | os.PathLike[str], entries: list[dict[str, Any]]) -> None:
    """Write entries as JSON, one a line."""
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    replace_text(Path(path), f"[\n{lines}\n]\n" if entries else "[]\n")
