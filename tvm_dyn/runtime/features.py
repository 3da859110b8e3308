"""What the learned part of the cost model sees of a variant at given extents: numbers, by name, in a fixed order.

extents      log2(1 + x) of rows (pixels), columns (filters), depth (channels x taps), batch (images), taps; the number
             of threads; log2 of the multiply-adds
tile         vectors, height (of the highest register tile), heights (how many micro-kernels), sums (accumulators),
             log2 of block_rows and of pack_rows, tasks, panel_major; kind (its position among the kinds with a form)
fit          tiles (log2), filled_rows and filled_columns (share of the tiles' rows and columns that results need),
             last_height (of an even division of the rows, over the highest)
caches       log2 of the bytes of a panel, of the rows of a tile and of all weights, over those of each level;
             alignment: log2 of the largest power of two that divides the bytes from a row to the next, up to 16 KiB
estimate     log2 of the predicted seconds, and the share that each term has in it
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .occupancy import Estimate
from .occupancy_cpu import CpuMachine
from .tile_forms import FORMS
from .variants import Variant

_EXTENTS = {
    "rows": ("rows", "pixels"),
    "columns": ("columns", "filters"),
    "batch": ("batch", "images"),
}
_TERMS = ("compute", "tail", "registers", "cache", "bandwidth", "packing", "imbalance", "launch")
_MOST_ALIGNED = 16 << 10

FEATURES = (
    *("log_rows", "log_columns", "log_depth", "log_batch", "log_taps", "threads", "log_sums"),
    *("kind", "vectors", "height", "heights", "sums", "log_block_rows", "log_pack_rows", "tasks", "panel_major"),
    *("log_tiles", "filled_rows", "filled_columns", "last_height"),
    *("panel_in_1", "panel_in_2", "rows_in_1", "weights_in_2", "weights_in_3", "alignment"),
    *("log_seconds", *(f"share_{term}" for term in _TERMS)),
)
"""The names, in the order of the columns."""


def features(
    variant: Variant, extents: Mapping[str, int], found: Estimate, machine: CpuMachine, threads: int
) -> NDArray[np.float32]:
    """The row of one variant at one shape. found: its estimate on the machine."""
    sizes = _sizes(extents)
    tile = _tile(variant)
    row = {**_of_extents(sizes, threads), **_of_tile(variant, tile), **_of_fit(sizes, tile)}
    row |= _of_caches(sizes, tile, machine)
    total = max(found.seconds, 1e-12)
    row["log_seconds"] = math.log2(total)
    row |= {f"share_{term}": found.terms.get(term, 0.0) / total for term in _TERMS}
    return np.array([row[name] for name in FEATURES], "float32")


def _sizes(extents: Mapping[str, int]) -> dict[str, int]:
    """Extents of a product or a convolution under the names of a product."""
    found = {name: next((extents[n] for n in names if n in extents), 1) for name, names in _EXTENTS.items()}
    if "height" in extents:
        found["rows"] = extents["height"] * extents["width"]
    found["taps"] = extents.get("taps", 1)
    found["depth"] = extents["depth"] if "depth" in extents else extents.get("channels", 1) * found["taps"]
    return found


def _tile(variant: Variant) -> dict[str, int]:
    """The register tile of any kind: lanes, vectors, height."""
    decisions = variant.decisions
    heights = decisions.get("heights") or decisions.get("rows") or decisions.get("pixels") or 1
    many = heights if isinstance(heights, tuple) else (heights,)
    vectors = decisions.get("vectors", 1)
    assert isinstance(vectors, int)
    lanes = decisions["lanes"]
    assert isinstance(lanes, int)
    return {"lanes": lanes, "vectors": vectors, "height": max(many), "heights": len(many)}


def _of_extents(sizes: Mapping[str, int], threads: int) -> dict[str, float]:
    logs = {f"log_{name}": math.log2(1 + size) for name, size in sizes.items()}
    sums = math.prod(sizes[name] for name in ("rows", "columns", "depth", "batch"))
    return {**logs, "threads": threads, "log_sums": math.log2(1 + sums)}


def _of_tile(variant: Variant, tile: Mapping[str, int]) -> dict[str, float]:
    numbers = {name: value for name, value in variant.decisions.items() if isinstance(value, int)}
    return {
        "kind": list(FORMS).index(variant.kind),
        "vectors": tile["vectors"],
        "height": tile["height"],
        "heights": tile["heights"],
        "sums": tile["vectors"] * tile["height"],
        "log_block_rows": math.log2(1 + numbers.get("block_rows", 0)),
        "log_pack_rows": math.log2(1 + numbers.get("pack_rows", 0)),
        "tasks": numbers.get("tasks", 0),
        "panel_major": numbers.get("panel_major", 0),
    }


def _of_fit(sizes: Mapping[str, int], tile: Mapping[str, int]) -> dict[str, float]:
    height, width = tile["height"], tile["vectors"] * tile["lanes"]
    rows, columns = max(sizes["rows"], 1), max(sizes["columns"], 1)
    high, wide = -(-rows // height), -(-columns // width)
    return {
        "log_tiles": math.log2(high * wide),
        "filled_rows": rows / (high * height),
        "filled_columns": columns / (wide * width),
        "last_height": -(-rows // high) / height,
    }


def _of_caches(sizes: Mapping[str, int], tile: Mapping[str, int], machine: CpuMachine) -> dict[str, float]:
    element = machine.vector_bytes / tile["lanes"]
    row = sizes["depth"] * element
    panel = row * tile["vectors"] * tile["lanes"]

    def over(size: float, level: int) -> float:
        return math.log2((1 + size) / machine.cache_bytes[level - 1])

    return {
        "panel_in_1": over(panel, 1),
        "panel_in_2": over(panel, 2),
        "rows_in_1": over(row * tile["height"], 1),
        "weights_in_2": over(row * sizes["columns"], 2),
        "weights_in_3": over(row * sizes["columns"], 3),
        "alignment": math.log2(math.gcd(int(row), _MOST_ALIGNED)) if row >= 1 else 0.0,
    }
