"""Closed forms of the CPU kernels: which register tiles a variant computes at given extents, in which order.

One function for each kind of tile; they follow the loop nests of the schedules of the same tiles, as those say them
in their docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .estimate import Estimate
from .occupancy_cpu import CpuMachine, Work, sum_of

Extents = Mapping[str, int]
Form = Callable[[Mapping[str, Any], Extents, CpuMachine, int], Estimate]
"""(decisions, extents, machine, threads) -> the estimate."""


def packed_product(tile: Mapping[str, Any], extents: Extents, machine: CpuMachine, threads: int) -> Estimate:
    """``PackedTile``: panels of constant weights; extents rows, columns, depth (batch is 1)."""
    rows, columns, depth = (extents[name] for name in ("rows", "columns", "depth"))
    lanes, vectors, heights = tile["lanes"], tile["vectors"], tile["heights"]
    if min(rows, columns) == 0:
        return Estimate.of({"compute": 0.0})
    panels = -(-columns // (lanes * vectors))
    blocks = max(-(-rows // tile["block_rows"]), min(-(-tile["tasks"] // panels), -(-rows // heights[-1])))
    tasks = blocks * panels
    workers = min(threads, tasks) if tile["tasks"] > 1 else 1
    work = Work(machine, lanes, depth, workers)
    plan = _even_tiles(rows, blocks, heights)
    computed = sum(count * height for count, height in plan) * panels * vectors * lanes
    work.useful = rows * columns / computed

    panel_bytes, row_bytes = depth * vectors * machine.vector_bytes, depth * work.element_bytes
    weights, data = panels * panel_bytes / workers, rows * row_bytes
    in_order = tile["panel_major"] or blocks == 1
    home = machine.level(weights + (data if in_order else data / blocks))
    again = machine.level(panel_bytes + heights[-1] * row_bytes)
    met_before = data if in_order else data / blocks
    row_level = machine.level(met_before + panel_bytes)
    for count, height in plan:
        first = min(blocks * count / sum(n for n, _ in plan), count)  # one tile of each block meets a new panel
        work.tiles(panels * first, height, vectors, home, row_level, new_stream=True)
        work.tiles(panels * (count - first), height, vectors, again, row_level)
    work.results(rows * columns, machine.level(rows * columns * work.element_bytes))
    return work.estimate(tasks)


def _even_tiles(rows: int, blocks: int, heights: tuple[int, ...]) -> list[tuple[float, int]]:
    """(count, height of the micro-kernel) of rows in blocks, each in the fewest tiles, of one height or one less."""
    found: dict[int, float] = {}
    for block, times in ((rows // blocks, blocks - rows % blocks), (rows // blocks + 1, rows % blocks)):
        if block and times:
            count = -(-block // heights[-1])
            low, extra = divmod(block, count)
            for height, tiles in ((low, count - extra), (low + 1, extra)):
                if tiles:
                    kernel = next(h for h in heights if h >= height)
                    found[kernel] = found.get(kernel, 0) + times * tiles
    return [(count, height) for height, count in found.items()]


def plain_product(tile: Mapping[str, Any], extents: Extents, machine: CpuMachine, threads: int) -> Estimate:
    """``MatmulTile``: both operands as they come; extents batch, rows, columns, depth."""
    batch, rows, columns, depth = (extents[name] for name in ("batch", "rows", "columns", "depth"))
    parallel = threads > 1 and batch * rows * columns * depth >= machine.parallel_sums
    parts, left = [], columns
    for vectors in tile["single_row_vectors"] if rows == 1 else (tile["vectors"],):
        panels, left = divmod(left, vectors * tile["lanes"])
        parts.append((panels, vectors, (1,) if rows == 1 else tile["rows"]))
    narrow = -(-left // tile["lanes"])
    parts.append((narrow, 1, (1,) if rows == 1 else tile["narrow_rows"]))
    return sum_of(
        _column_part(tile, extents, machine, threads if parallel else 1, part) for part in parts if part[0] and batch
    )


def _column_part(tile: Mapping[str, Any], extents: Extents, machine: CpuMachine, threads: int, part) -> Estimate:
    """The tasks over panels of one width: (panels, vectors, heights with the highest first)."""
    panels, vectors, heights = part
    batch, rows, depth = (extents[name] for name in ("batch", "rows", "depth"))
    blocks = -(-rows // tile["block_rows"])
    tasks = batch * panels * blocks
    work = Work(machine, tile["lanes"], depth, min(threads, max(tasks, 1)))
    if not tasks:
        return work.estimate(1)
    plan = [_full_and_tail(min(tile["block_rows"], rows - n * tile["block_rows"]), heights) for n in range(blocks)]
    computed = sum(full * heights[0] + tail for full, tail in plan)
    work.useful = rows / computed

    panel_bytes, row_bytes = depth * vectors * machine.vector_bytes, depth * work.element_bytes
    operands = batch * (extents["columns"] + rows) * row_bytes / work.workers
    one_product = (extents["columns"] + rows) * row_bytes
    home = machine.level(operands)
    again = machine.level(panel_bytes + heights[0] * row_bytes)
    row_level = machine.level(rows * row_bytes + panel_bytes)
    if panels == 1 or row_level < machine.level(one_product):
        row_level = max(row_level, home if panels == 1 else row_level)
    packs = rows >= tile["pack_rows"]
    for full, tail in plan:
        if packs:
            rate = machine.bytes_per_cycle(max(home, 2), work.workers)
            work.stream("packing", batch * panels * 2 * panel_bytes, rate)
        first = 0 if packs else min(full, 1)
        work.tiles(batch * panels * first, heights[0], vectors, home, row_level, new_stream=True)
        work.tiles(batch * panels * (full - first), heights[0], vectors, again, row_level)
        if tail:
            from_home = full == 0 or packs
            work.tiles(batch * panels, tail, vectors, home if from_home else again, row_level, new_stream=from_home)
    written = rows * panels * vectors * tile["lanes"]
    work.results(batch * written, machine.level(batch * written * work.element_bytes))
    return work.estimate(tasks)


def _full_and_tail(rows: int, heights: tuple[int, ...]) -> tuple[int, int]:
    """Number of full tiles, and the height of the one that takes the rows left; 0 where none are."""
    full, left = divmod(rows, heights[0])
    return full, min((h for h in heights if h >= left), default=0) if left else 0


def channels_last_convolution(tile: Mapping[str, Any], extents: Extents, machine: CpuMachine, threads: int) -> Estimate:
    """``PanelTile``: extents images, height, width (of the result), filters, channels, taps; winograd (1) where the
    weights for Winograd's algorithm are there.
    """
    images, height, width = (extents[name] for name in ("images", "height", "width"))
    lanes, vectors, size = tile["lanes"], tile["vectors"], tile["rows"]
    depth, pixels = extents["channels"] * extents["taps"], images * height * width
    if not pixels:
        return Estimate.of({"compute": 0.0})
    if extents.get("winograd") and _winograd_pays(extents, machine):
        return _winograd(tile, extents, machine, threads)
    panels = -(-extents["filters"] // (lanes * vectors))
    element = machine.vector_bytes / lanes
    budget = machine.cache_bytes[1] // 2 / element
    bands = _bands(extents, budget, size, machine.cores)
    parallel = pixels * extents["filters"] * depth >= machine.parallel_sums
    tasks = sum(count for count, _ in bands)
    work = Work(machine, lanes, depth, min(threads, tasks) if parallel else 1)
    tiles = sum(count * -(-band // size) for count, band in bands)
    work.useful = pixels * extents["filters"] / (tiles * size * panels * vectors * lanes)
    panel_bytes = depth * vectors * machine.vector_bytes
    home = machine.level(panels * panel_bytes + pixels / tasks * depth * element)
    again = machine.level(panel_bytes + size * depth * element)
    work.tiles(panels * tasks, size, vectors, home, 2, new_stream=True)
    work.tiles(panels * (tiles - tasks), size, vectors, again, 2)
    if extents["taps"] > 1:
        level = machine.level(pixels * extents["channels"] * element)
        copied = 2 * pixels * extents["channels"] * element
        work.stream("packing", copied, machine.bytes_per_cycle(max(level, 2), work.workers))
    work.results(pixels * extents["filters"], machine.level(pixels * extents["filters"] * element))
    return work.estimate(tasks)


_OUT, _PLACES = 4, 36
_TRANSFORM_CYCLES = 190.0
"""Of a vector of channels or filters of one tile of 4x4 results, into or out of the 36 places."""


def _winograd_tiles(extents: Extents) -> int:
    """Tiles of 4x4 results in one image."""
    return -(-extents["height"] // _OUT) * -(-extents["width"] // _OUT)


def _winograd_pays(extents: Extents, machine: CpuMachine) -> bool:
    """The condition of the kernel: half of what is computed is wanted, and it is worth several cores."""
    pixels = extents["height"] * extents["width"]
    sums = extents["images"] * pixels * extents["filters"] * extents["channels"] * extents["taps"]
    return _winograd_tiles(extents) * (_OUT * _OUT // 2) <= pixels and sums >= machine.parallel_sums


def _winograd(tile: Mapping[str, Any], extents: Extents, machine: CpuMachine, threads: int) -> Estimate:
    """36 products of tiles times channels and channels times filters, block by block, between two transforms."""
    lanes, vectors, size = tile["lanes"], tile["vectors"], tile["rows"]
    channels, filters = extents["channels"], extents["filters"]
    panels = -(-filters // (lanes * vectors))
    element = machine.vector_bytes / lanes
    fit = int(machine.cache_bytes[1] / (_PLACES * (channels + panels * lanes * vectors) * element))
    block, small = min(max(fit // size, 2), 8) * size, max(size // 3, 1)
    count = extents["images"] * _winograd_tiles(extents)
    tasks = -(-count // block)
    work = Work(machine, lanes, channels, min(threads, tasks))
    full, rest = divmod(block, size)
    plan = [(count // block, full, rest), (1, *divmod(count % block, size))]
    computed = sum(n * (high * size + -(-low // small) * small) for n, high, low in plan)
    work.useful = count * filters / (computed * panels * vectors * lanes)
    panel_bytes = channels * vectors * machine.vector_bytes
    home = machine.level(_PLACES * panels * panel_bytes)
    again = machine.level(panel_bytes + size * channels * element)
    for blocks, high, low in plan:
        for n, height, met in ((high, size, 0), (-(-low // small), small, min(high, 1))):
            first = blocks * (min(n, 1) - min(n, met))  # later tiles find the panel in the cache
            work.tiles(_PLACES * panels * first, height, vectors, home, 2, new_stream=True)
            work.tiles(_PLACES * panels * (blocks * n - first), height, vectors, again, 2)
    transformed = count * (-(-channels // lanes) + -(-filters // lanes))
    work.stream("packing", transformed * _TRANSFORM_CYCLES, 1.0)
    return work.estimate(tasks)


def _bands(extents: Extents, budget: float, size: int, cores: int) -> list[tuple[int, int]]:
    """(count, pixels) of the tasks: a few tiles each, or, where windows overlap, bands of rows or whole images."""
    images, height, width = (extents[name] for name in ("images", "height", "width"))
    pixels, channels = images * height * width, extents["channels"]
    if extents["taps"] == 1:
        each = size * max(int(budget / (channels * size)), 1)
        return _equal_parts(pixels, each, 1)
    together = max(min(int(budget / (height * width * channels)), -(-images // cores)), 1)
    if together > 1:
        return _equal_parts(images, together, height * width)
    rows = max(min(int(budget / (width * channels)), -(-height * images // cores), height), 1)
    return [(count * images, band) for count, band in _equal_parts(height, rows, width)]


def _equal_parts(total: int, each: int, scale: int) -> list[tuple[int, int]]:
    full, rest = divmod(total, each)
    return [(count, part * scale) for count, part in ((full, each), (1, rest)) if count and part]


def channels_first_convolution(
    tile: Mapping[str, Any], extents: Extents, machine: CpuMachine, threads: int
) -> Estimate:
    """``Tile``: a few filters times vectors of pixels; extents images, pixels, filters, channels, taps."""
    images, pixels, filters = (extents[name] for name in ("images", "pixels", "filters"))
    lanes, vectors, size = tile["lanes"], tile["vectors"], tile["rows"]
    depth = extents["channels"] * extents["taps"]
    if not images * pixels:
        return Estimate.of({"compute": 0.0})
    groups = -(-filters // size)
    full, rest = divmod(pixels, vectors * lanes)
    single = -(-rest // lanes)
    tasks = images * (full + (rest > 0)) * -(-groups // 4)
    parallel = images * pixels * filters * depth >= machine.parallel_sums
    work = Work(machine, lanes, depth, min(threads, tasks) if parallel else 1)
    computed = groups * size * (full * vectors + single) * lanes
    work.useful = pixels * filters / computed
    data = machine.level(depth * vectors * machine.vector_bytes + size * depth * work.element_bytes)
    work.tiles(images * groups * full, size, vectors, data, 2)
    work.tiles(images * groups * single, size, 1, data, 2)
    work.results(images * pixels * filters, machine.level(images * pixels * filters * work.element_bytes))
    return work.estimate(tasks)


def channels_last_sliding(tile: Mapping[str, Any], extents: Extents, machine: CpuMachine, threads: int) -> Estimate:
    """``SlidingTile``: windows over one channel; extents images, height, width, channels, taps."""
    images, height, width, channels = (extents[name] for name in ("images", "height", "width", "channels"))
    lanes, size = tile["lanes"], tile["pixels"]
    results = images * height * width * channels
    if not results:
        return Estimate.of({"compute": 0.0})
    vectors, blocks = -(-channels // lanes), -(-width // size)
    tasks = images * height
    parallel = results * extents["taps"] >= machine.parallel_sums
    work = Work(machine, lanes, extents["taps"], min(threads, tasks) if parallel else 1)
    work.useful = width * channels / (blocks * size * vectors * lanes)
    level = machine.level(results * work.element_bytes)
    # one vector of weights, and a vector of data for each pixel
    work.tiles(tasks * blocks * vectors, 1, size, level, 1)
    work.results(results, level)
    return work.estimate(tasks)


FORMS: dict[str, Form] = {
    "PackedTile": packed_product,
    "MatmulTile": plain_product,
    "PanelTile": channels_last_convolution,
    "SlidingTile": channels_last_sliding,
    "Tile": channels_first_convolution,
}
"""By the kind of a variant."""
