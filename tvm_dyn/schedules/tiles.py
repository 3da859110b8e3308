"""The matrix product inside convolutions: weights (filter x tap) times windows (tap x pixel) in register
tiles.

A tile holds a few filters times a few vectors of neighbouring pixels; for each tap one data vector meets one
broadcast weight, so weights are read as they are and results leave in NCHW order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.planes import Planes
from tvm_dyn.schedules.tasks import enough_sums, tasks
from tvm_dyn.schedules.window import Axis

_MAX_UNROLLED_TAPS = 9
_TILES_PER_TASK = 4

Load = Callable[[Expr, list[Expr], Expr], Expr]
"""(channel, tap, pixel) -> a data element."""
Store = Callable[[Expr, Expr, Expr], Stmt]
"""(filter, pixel, sum) -> the statement that keeps it."""


@dataclass(frozen=True)
class Product:
    """What is to be summed: ``sum over c < channels, tap of weight(f, c, tap) * data[n, source(group, c),
    ...]``.

    Filters come in ``groups`` of equal size. ``place(planes, group, tap)`` says where a tap lies in a padded
    plane.
    """

    data: Buffer
    axes: list[Axis]
    batch: Expr
    dtype: str
    filters: int
    groups: int
    channels: int
    taps: list[int]
    weight: Callable[[Expr, Expr, list[Expr]], Expr]
    source: Callable[[Expr, Expr], Expr]
    place: Callable[[Planes, Expr, list[Expr]], tuple[Expr, Expr]]

    @property
    def per_group(self) -> int:
        return self.filters // self.groups

    @property
    def sources(self) -> int:
        return int(self.data.shape[1])


@dataclass(frozen=True)
class Tile:
    """A register tile: ``rows`` filters times ``vectors`` vectors of ``lanes`` pixels."""

    rows: int
    vectors: int
    lanes: int

    @property
    def pixels(self) -> int:
        return self.vectors * self.lanes

    @staticmethod
    def choose(per_group: int, dtype: str, target: Target) -> Tile:
        """Fill three quarters of the registers with sums, with as few filters computed twice as possible."""
        sums = hardware.registers(target) * 3 // 4
        sizes = [r for r in range(sums // 6, sums // 3 + 1) if r <= per_group] or [per_group]
        rows = min(sizes, key=lambda r: (-(-per_group // r) * r, -r))
        return Tile(rows, min(sums // rows, 6), hardware.lanes(target, dtype))


def tile_product(
    product: Product, tile: Tile, vectors: int, group: Expr, block: Expr, load: Load, store: Store
) -> Stmt:
    """Sum ``rows`` x ``vectors`` outputs in registers and store them."""
    first = group * product.per_group + tirx.min(block * tile.rows, emit.const(product.per_group - tile.rows))
    return emit.bind([first], lambda first: _sums(product, tile, vectors, first, load, store))


def _sums(product: Product, tile: Tile, vectors: int, first: Expr, load: Load, store: Store) -> Stmt:
    def each(body: Callable[[Expr, Expr], Stmt], rows: Callable[..., Stmt] = emit.unrolled) -> Stmt:
        return rows(
            tile.rows,
            lambda i: emit.unrolled(
                vectors, lambda v: emit.vectorized(tile.lanes, lambda j: body(i, v * tile.lanes + j)), "v"
            ),
        )

    def add(acc: Buffer, c: Expr, tap: list[Expr]) -> Stmt:
        return each(lambda i, j: emit.store(acc, acc[i, j] + load(c, tap, j) * product.weight(first + i, c, tap), i, j))

    def body(acc: Buffer) -> Stmt:
        return emit.seq(
            each(lambda i, j: emit.store(acc, tirx.const(0.0, product.dtype), i, j)),
            emit.serial(product.channels, lambda c: _each_tap(product.taps, lambda tap: add(acc, c, tap)), "c"),
            each(lambda i, j: store(first + i, j, acc[i, j]), emit.serial),
        )

    return emit.scratch([([tile.rows, vectors * tile.lanes], product.dtype)], body)


def _each_tap(taps: list[int], body: Callable[[list[Expr]], Stmt]) -> Stmt:
    """``body`` of every tap; the innermost axis is written out as far as code size allows."""
    *outer, last = taps

    def inner(tap: list[Expr]) -> Stmt:
        if last <= _MAX_UNROLLED_TAPS:
            return emit.seq(*[body([*tap, emit.const(k)]) for k in range(last)])
        return emit.serial(last, lambda k: body([*tap, k]), "k")

    return _outer_taps(outer, [], inner)


def _outer_taps(taps: list[int], tap: list[Expr], body: Callable[[list[Expr]], Stmt]) -> Stmt:
    if not taps:
        return body(tap)
    return emit.serial(taps[0], lambda k: _outer_taps(taps[1:], [*tap, k], body), "k")


def cover(
    product: Product,
    tile: Tile,
    images: Expr,
    pixels: Expr,
    body: Callable[[Expr, Expr, int, Expr, Expr], Stmt],
    target: Target,
) -> Stmt:
    """Cover ``images`` x ``pixels`` x filters with tiles, each task a few of them.

    ``body(image, first pixel, vectors, group, block)`` gets full tiles, then one vector at a time for what
    is left of a row of pixels; the last vector may reach up to ``lanes - 1`` pixels beyond the end.
    """
    blocks = -(-product.per_group // tile.rows)
    per_task = min(blocks, _TILES_PER_TASK)
    parts = -(-blocks // per_task)

    def all_tasks(full: Expr, columns: Expr) -> Stmt:
        def task(image: Expr, column: Expr, group: Expr, part: Expr) -> Stmt:
            def row(first: Expr, vectors: int) -> Stmt:
                count = tirx.min(emit.const(per_task), blocks - part * per_task) if blocks % per_task else per_task
                return emit.serial(count, lambda b: body(image, first, vectors, group, part * per_task + b), "b")

            start = column * tile.pixels
            rest = emit.ceildiv(pixels - start, tile.lanes)
            return emit.when(
                column < full,
                emit.bind([start], lambda start: row(start, tile.vectors)),
                emit.serial(rest, lambda v: emit.bind([start + v * tile.lanes], lambda start: row(start, 1)), "rest"),
            )

        where = [images, columns, product.groups, parts]
        return tasks(
            enough_sums(images * pixels * (product.filters * product.channels * math.prod(product.taps))),
            images * columns * (product.groups * parts),
            lambda index: emit.bind(emit.unflatten(index, where), task),
            target,
        )

    return emit.bind([emit.quotient(pixels, tile.pixels), emit.ceildiv(pixels, tile.pixels)], all_tasks)


Finish = Callable[[Planes, "emit.At", Expr, Expr], Stmt]
"""(planes, sums, first row, rows) -> the statement that takes rows of sums to the result."""


def staged(product: Product, tile: Tile, target: Target, finish: Finish) -> Stmt:
    """Bands of rows, each copied to padded planes, multiplied, and finished."""
    pitches = Planes.pitches(product.axes)
    unbound = Planes(product.axes, product.batch, pitches, slack=tile.lanes)
    pixels = _band_pixels(product, tile, unbound, target)

    def bands(padded: Buffer, sums: Buffer) -> Stmt:
        def loop(layout: Planes, rows: Expr, height: Expr, plane: Expr, line: Expr) -> Stmt:
            padded_at = emit.rows_of(padded, layout.phases, plane)
            sums_at = emit.rows_of(sums, line)

            def band(first: Expr, count: Expr) -> Stmt:
                zero = tirx.const(0.0, product.dtype)
                return emit.seq(
                    layout.fill(product.data, padded_at, first, count, tile.lanes, zero, target),
                    emit.bind(
                        [count * layout.pitch],
                        lambda n: _multiply(product, tile, layout, padded_at, sums_at, n, target),
                    ),
                    finish(layout, sums_at, first, count),
                )

            return emit.serial(
                emit.ceildiv(rows, height),
                lambda i: emit.bind([i * height, tirx.min(height, rows - i * height)], band),
            )

        def each(*pitches: Expr) -> Stmt:
            layout = Planes(product.axes, product.batch, list(pitches), slack=tile.lanes)
            height = tirx.max(emit.quotient(emit.const(pixels), tirx.max(layout.pitch, emit.const(1))), 2 * layout.halo)
            height = tirx.max(tirx.min(height, layout.rows), emit.const(1))
            return emit.bind(
                [layout.rows, height],
                lambda rows, height: emit.bind(
                    [layout.plane(height), layout.line(height)],
                    lambda plane, line: loop(layout, rows, height, plane, line),
                ),
            )

        return emit.bind(pitches, each)

    # Sizes that bound those of any band and are simple in the extents, which TVM analyses at length.
    margin = (2 * unbound.halo + 1) * unbound.pitch + pixels
    plane = margin + unbound.plane(emit.const(0))
    lines = margin + unbound.line(emit.const(0))
    sizes = [product.sources * unbound.phases * plane, product.filters * lines]
    return emit.scratch([([emit.simplify(size)], product.dtype) for size in sizes], bands)


def _band_pixels(product: Product, tile: Tile, layout: Planes, target: Target) -> int:
    """Pixels whose copy and sums fit the second-level caches, though enough to be worth a round of tasks."""
    per_pixel = product.sources * layout.phases + product.filters
    budget = hardware.cache_bytes(target, 2) * hardware.cores(target) * 3 // 4 // hardware.dtype_bytes(product.dtype)
    return max(budget // per_pixel, 4 * tile.pixels)


def _multiply(
    product: Product, tile: Tile, layout: Planes, padded: emit.At, sums: emit.At, pixels: Expr, target: Target
) -> Stmt:
    def body(_: Expr, start: Expr, vectors: int, group: Expr, block: Expr) -> Stmt:
        def load(c: Expr, tap: list[Expr], j: Expr) -> Expr:
            phase, offset = product.place(layout, group, tap)
            return emit.load(*padded(product.source(group, c), phase, start + offset, lane=j))

        return tile_product(
            product,
            tile,
            vectors,
            group,
            block,
            load,
            lambda f, j, acc: emit.store_at(sums(f, start, lane=j), acc),
        )

    return cover(product, tile, emit.const(1), pixels, body, target)
