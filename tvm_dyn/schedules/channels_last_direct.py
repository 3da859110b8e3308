"""Convolutions of channels-last data as they are defined, a tile of pixels times a panel of filters at a time.

Pixels of a tile are any neighbours in the order of the result, so that rows and images end anywhere in a tile. With
padding, work goes in bands of rows (of images, where these are small), each of which is first copied, padded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.panel import PanelTile, each_panel, product, tasks

if TYPE_CHECKING:
    from tvm_dyn.schedules.channels_last import LastConv

Source = Callable[[Expr], Expr]
"""Offset in (padded) data of the band -> an element."""


def kernel(conv: LastConv, tile: PanelTile, work: Expr, target: Target) -> Stmt:
    """The whole convolution; ``work`` tells whether it goes to several cores (see `tasks`)."""
    if any(axis.before or axis.after for axis in conv.axes):
        return _padded(conv, tile, work, target)
    return _plain(conv, tile, work, target)


def _plain(conv: LastConv, tile: PanelTile, work: Expr, target: Target) -> Stmt:
    """Without padding: the data as it is, in one band; a task takes a few tiles of pixels."""
    batch, height, width, _ = conv.extents
    rows, pitch = (axis.in_extent for axis in conv.axes)
    zero = emit.const(0)
    pixels = emit.product([batch, height, width])
    per_task = tile.rows * _tiles_per_task(conv, tile, target)

    def task(index: Expr) -> Stmt:
        start = index * per_task
        return emit.bind(
            [start, tirx.min(start + per_task, pixels)],
            lambda first, last: _band(
                conv,
                tile,
                _Geometry(height, width, rows, pitch),
                zero,
                zero,
                first,
                last,
                lambda offset: conv.data[(zero, zero, zero, offset)],
            ),
        )

    return tasks(work, emit.ceildiv(pixels, per_task), task, target)


def _tiles_per_task(conv: LastConv, tile: PanelTile, target: Target) -> int:
    """As many as read about half of the second-level cache, which every panel of weights then meets."""
    read = conv.channels * conv.axes[0].stride * conv.axes[1].stride * hardware.dtype_bytes(conv.dtype)
    return max(hardware.cache_bytes(target, 2) // 2 // (read * tile.rows), 1)


class _Geometry:
    """Extents of the result's rows, and rows and pitch of the (padded) data, in pixels."""

    def __init__(self, height: Expr, width: Expr, rows: Expr, pitch: Expr):
        self.height, self.width, self.rows, self.pitch = height, width, rows, pitch


def _padded(conv: LastConv, tile: PanelTile, work: Expr, target: Target) -> Stmt:
    batch, height, width, _ = conv.extents
    down, across = conv.axes
    reach = (down.kernel - 1) * down.dilation + 1
    # a row of windows ends here, whatever padding the stride leaves unused
    pitch = emit.simplify((width - 1) * across.stride + (across.kernel - 1) * across.dilation + 1)
    budget = hardware.cache_bytes(target, 2) // 2 // hardware.dtype_bytes(conv.dtype)
    cores = hardware.cores(target)

    def plan(line: Expr, whole: Expr) -> Stmt:
        # images that fit the budget go together, rows of an image otherwise
        images = tirx.max(tirx.min(emit.quotient(emit.const(budget), whole), emit.ceildiv(batch, cores)), emit.const(1))
        share = tirx.min(
            emit.quotient(emit.const(budget), line * down.stride),
            emit.ceildiv(height * batch, cores),
        )
        rows = tirx.min(tirx.max(share, emit.const(1)), height)
        rows = tirx.Select(images > 1, height, tirx.max(rows, emit.const(1)))
        return emit.bind(
            [images, rows], lambda images, rows: _bands(conv, tile, work, target, line, images, rows, reach)
        )

    line = pitch * conv.channels
    whole = tirx.max(((height - 1) * down.stride + reach) * line, emit.const(1))
    return emit.bind([tirx.max(line, emit.const(1)), whole], plan)


def _bands(
    conv: LastConv, tile: PanelTile, work: Expr, target: Target, line: Expr, images: Expr, rows: Expr, reach: int
) -> Stmt:
    batch, height, width, _ = conv.extents
    down, across = conv.axes
    per_image = emit.ceildiv(height, rows)

    def task(index: Expr) -> Stmt:
        def band(group: Expr, part: Expr) -> Stmt:
            first_image, first_row = group * images, part * rows
            return emit.bind(
                [first_image, tirx.min(images, batch - first_image), first_row, tirx.min(rows, height - first_row)],
                lambda n, count, y, h: emit.bind(
                    [(h - 1) * down.stride + reach], lambda stored: one(n, count, y, h, stored)
                ),
            )

        return emit.bind(emit.unflatten(index, [emit.ceildiv(batch, images), per_image]), band)

    def one(n: Expr, count: Expr, y: Expr, h: Expr, stored: Expr) -> Stmt:
        budget = hardware.cache_bytes(target, 2) // 2 // hardware.dtype_bytes(conv.dtype)
        pitch = emit.simplify((width - 1) * across.stride + (across.kernel - 1) * across.dilation + 1)
        size = emit.simplify(tirx.max(pitch, emit.const(1)) * (conv.channels * (reach + down.stride)) + 2 * budget)

        def body(padded) -> Stmt:
            geometry = _Geometry(h, width, stored, pitch)
            return emit.seq(
                _fill(conv, tile.lanes, padded, n, count, y * down.stride - down.before, stored, line),
                emit.bind(
                    [count * h * width],
                    lambda pixels: _band(
                        conv, tile, geometry, n, y, emit.const(0), pixels, lambda offset: padded[offset]
                    ),
                ),
            )

        return emit.scratch([([size], conv.dtype)], body)

    return tasks(work, emit.ceildiv(batch, images) * per_image, task, target)


def _fill(
    conv: LastConv, lanes: int, padded: Buffer, first: Expr, count: Expr, top: Expr, stored: Expr, line: Expr
) -> Stmt:
    """Copy ``stored`` rows from row ``top`` on of ``count`` images, with zeros around them."""
    down, across = conv.axes
    channels = conv.channels
    zero = tirx.const(0.0, conv.dtype)
    left = across.before * channels

    def row(index: Expr) -> Stmt:
        def at(image: Expr, r: Expr) -> Stmt:
            def inside(start: Expr, source: Expr, length: Expr) -> Stmt:
                return emit.seq(
                    emit.serial(left, lambda j: emit.store(padded, zero, start + j), "j"),
                    emit.chunks(
                        length,
                        lanes,
                        lambda j: emit.store(
                            padded, conv.data[(first + image, source, emit.const(0), j)], start + left + j
                        ),
                    ),
                    emit.serial(
                        line - left - length, lambda j: emit.store(padded, zero, start + left + length + j), "j"
                    ),
                )

            return emit.bind(
                [index * line, top + r, tirx.min(across.in_extent * channels, line - left)],
                lambda start, source, length: emit.when(
                    tirx.all(source >= 0, source < down.in_extent, length > 0),
                    inside(start, source, length),
                    emit.chunks(line, lanes, lambda j: emit.store(padded, zero, start + j)),
                ),
            )

        return emit.bind(emit.unflatten(index, [count, stored]), at)

    return emit.serial(count * stored, row, "row")


def _band(
    conv: LastConv,
    tile: PanelTile,
    geometry: _Geometry,
    n: Expr,
    y: Expr,
    first: Expr,
    last: Expr,
    source: Source,
) -> Stmt:
    """Pixels ``first`` to ``last`` in the order of the result, counted from row ``y`` of image ``n``; all filters."""

    def panel(p: Expr, columns: int) -> Stmt:
        def some(start: Expr) -> Stmt:
            return emit.bind([start], lambda start: _tile(conv, tile, geometry, n, y, start, last, p, columns, source))

        return emit.serial(emit.ceildiv(last - first, tile.rows), lambda t: some(first + t * tile.rows), "tile")

    return each_panel(conv.filters, conv.columns, panel)


def _tile(
    conv: LastConv,
    tile: PanelTile,
    geometry: _Geometry,
    n: Expr,
    y: Expr,
    start: Expr,
    last: Expr,
    p: Expr,
    columns: int,
    source: Source,
) -> Stmt:
    by_row = conv.by_row()

    def at(offsets: Buffer) -> Stmt:
        def write(i: Expr, first: Expr, width: int, value) -> Stmt:
            pixel = tirx.min(start + i, last - 1)
            column = p * conv.columns + first

            def stored(pixel: Expr) -> Stmt:
                def element(where: list[Expr]) -> Stmt:
                    def lane(j: Expr) -> Stmt:
                        where_f = [*where, column + j]
                        to = [n, y, pixel, column + j]
                        return emit.store(conv.result, conv.epilogue(value(j), where_f), *to)

                    return emit.vectorized(width, lane)

                if by_row:
                    return element([n, y, pixel])
                extents = [emit.const(1), geometry.height, geometry.width]
                return emit.bind(
                    emit.unflatten(pixel, extents),
                    lambda image, row, x: emit.bind([n + image, y + row], lambda a, b: element([a, b, x])),
                )

            return emit.bind([pixel], stored)

        return product(
            tile, tile.rows, conv.dtype, columns, lambda run: _steps(conv, geometry, offsets, p, source, run), write
        )

    return _offsets(conv, tile.rows, geometry, start, last, at)


def _offsets(
    conv: LastConv, rows: int, geometry: _Geometry, start: Expr, last: Expr, body: Callable[[Buffer], Stmt]
) -> Stmt:
    """Where the windows of a tile's pixels start; pixels beyond the last one repeat it.

    They go through memory: TVM would put one definition into the next, at exponential length.
    """
    down, across = conv.axes
    channels = conv.channels
    line = geometry.pitch * (down.stride * channels)

    def walk(table: Buffer, at: Buffer) -> Stmt:
        def go(n: int, value: Expr | int) -> Stmt:
            return emit.store(at, value, n)

        next_image = go(0, at[0] + (geometry.rows - geometry.height * down.stride) * geometry.pitch * channels)
        next_row = emit.seq(
            go(0, at[0] + (line - geometry.width * (across.stride * channels))),
            go(1, emit.const(0)),
            go(2, at[2] + 1),
            emit.when(at[2].equal(geometry.height), emit.seq(next_image, go(2, emit.const(0)))),
        )

        def pixel(i: Expr) -> Stmt:
            ahead = emit.seq(
                go(0, at[0] + across.stride * channels),
                go(1, at[1] + 1),
                emit.when(at[1].equal(geometry.width), next_row),
            )
            return emit.seq(emit.store(table, at[0], i), emit.when(start + i + 1 < last, ahead))

        def begin(image: Expr, row: Expr, x: Expr) -> Stmt:
            offset = ((image * geometry.rows + row * down.stride) * geometry.pitch + x * across.stride) * channels
            return emit.seq(
                go(0, offset),
                go(1, x),
                go(2, row),
                emit.serial(rows, pixel, "i"),
                body(table),
            )

        return emit.bind(emit.unflatten(start, [emit.const(1), geometry.height, geometry.width]), begin)

    return emit.scratch([([rows], "int64"), ([3], "int64")], walk)


def _steps(conv: LastConv, geometry: _Geometry, offsets: Buffer, p: Expr, source: Source, run) -> Stmt:
    """Taps in order; those of a row that follow one another in memory in one stretch with the channels."""
    down, across = conv.axes
    channels = conv.channels
    stretch = across.kernel if across.dilation == 1 else 1

    def from_tap(ry: Expr, rx: Expr) -> Stmt:
        lead = (ry * down.dilation * geometry.pitch + rx * across.dilation) * channels

        def stretch_of(lead: Expr, tap: Expr) -> Stmt:
            return run(
                lambda i, k: source(offsets[i] + (lead + k)),
                lambda k, j: conv.weight[(p, tap, k, j)],
                stretch * channels,
            )

        return emit.bind([lead, ry * across.kernel + rx], stretch_of)

    return emit.serial(
        down.kernel,
        lambda ry: emit.serial(across.kernel // stretch, lambda rx: from_tap(ry, rx), "rx"),
        "ry",
    )
