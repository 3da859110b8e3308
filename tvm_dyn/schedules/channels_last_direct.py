"""Convolutions of channels-last data as they are defined, a tile of pixels times a panel of filters at a time.

Pixels of a tile are any neighbours in the order of the result, so that rows and images end anywhere in a tile. With
padding, work goes in bands of rows (of images, where these are small), each of which is first copied, padded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.panel import PanelTile, each_panel, product
from tvm_dyn.schedules.tasks import tasks

if TYPE_CHECKING:
    from tvm_dyn.schedules.channels_last import LastConv

Source = Callable[[Expr], Expr]
"""Offset in (padded) data of the band -> an element."""


def kernel(conv: LastConv, tile: PanelTile, worth: Expr | bool, target: Target) -> Stmt:
    """The whole convolution, on several cores where it is ``worth`` them (see `tasks`)."""
    padded = any(axis.before or axis.after for axis in conv.axes)
    return (_Padded if padded else _Direct)(conv, tile, worth, target).emit()


@dataclass(frozen=True)
class _Band:
    """Pixels ``first`` to ``last`` in the order of the result, counted from row ``y`` of image ``n``.

    height, width: extents of its rows of the result. rows, pitch: of its (padded) data, in pixels.
    """

    n: Expr
    y: Expr
    height: Expr
    width: Expr
    rows: Expr
    pitch: Expr
    first: Expr
    last: Expr
    source: Source


class _Direct:
    """Without padding: the data as it is, in one band; a task takes a few tiles of pixels."""

    def __init__(self, conv: LastConv, tile: PanelTile, worth: Expr | bool, target: Target):
        self.conv, self.tile, self.worth, self.target = conv, tile, worth, target
        self.budget = hardware.cache_bytes(target, 2) // 2 // hardware.dtype_bytes(conv.dtype)

    def emit(self) -> Stmt:
        batch, height, width, _ = self.conv.extents
        rows, pitch = (axis.in_extent for axis in self.conv.axes)
        zero = emit.const(0)
        pixels = emit.product([batch, height, width])
        per_task = self.tile.rows * self._tiles_per_task()

        def source(offset: Expr) -> Expr:
            return self.conv.data[(zero, zero, zero, offset)]

        def task(index: Expr) -> Stmt:
            start = index * per_task
            return emit.bind(
                [start, tirx.min(start + per_task, pixels)],
                lambda first, last: self.band(_Band(zero, zero, height, width, rows, pitch, first, last, source)),
            )

        return tasks(self.worth, emit.ceildiv(pixels, per_task), task, self.target)

    def _tiles_per_task(self) -> int:
        """As many as read about half of the second-level cache, which every panel of weights then meets."""
        down, across = self.conv.axes
        return max(self.budget // (self.conv.channels * down.stride * across.stride * self.tile.rows), 1)

    def band(self, band: _Band) -> Stmt:
        """All filters of a band."""
        size = self.tile.rows

        def panel(p: Expr, columns: int) -> Stmt:
            return emit.serial(
                emit.ceildiv(band.last - band.first, size),
                lambda t: emit.bind([band.first + t * size], lambda start: self._tile(band, start, p, columns)),
                "tile",
            )

        return each_panel(self.conv.filters, self.conv.columns, panel)

    def _tile(self, band: _Band, start: Expr, p: Expr, columns: int) -> Stmt:
        conv, by_row = self.conv, self.conv.by_row()

        def write(i: Expr, first: Expr, width: int, value: Callable[[Expr], Expr]) -> Stmt:
            column = p * conv.columns + first

            def stored(pixel: Expr) -> Stmt:
                def element(where: list[Expr]) -> Stmt:
                    def lane(j: Expr) -> Stmt:
                        to = [band.n, band.y, pixel, column + j]
                        return emit.store(conv.result, conv.epilogue(value(j), [*where, column + j]), *to)

                    return emit.vectorized(width, lane)

                if by_row:
                    return element([band.n, band.y, pixel])
                return emit.bind(
                    emit.unflatten(pixel, [emit.const(1), band.height, band.width]),
                    lambda image, row, x: emit.bind([band.n + image, band.y + row], lambda n, y: element([n, y, x])),
                )

            return emit.bind([tirx.min(start + i, band.last - 1)], stored)

        return self._offsets(
            band,
            start,
            lambda offsets: product(
                self.tile, self.tile.rows, conv.dtype, columns, lambda run: self._steps(band, offsets, p, run), write
            ),
        )

    def _offsets(self, band: _Band, start: Expr, body: Callable[[Buffer], Stmt]) -> Stmt:
        """Where the windows of a tile's pixels start; pixels beyond the last one repeat it.

        They go through memory: TVM would put one definition into the next, at exponential length.
        """
        down, across = self.conv.axes
        channels = self.conv.channels
        line = band.pitch * (down.stride * channels)

        def walk(table: Buffer, at: Buffer) -> Stmt:
            def go(n: int, value: Expr | int) -> Stmt:
                return emit.store(at, value, n)

            next_image = go(0, at[0] + (band.rows - band.height * down.stride) * band.pitch * channels)
            next_row = emit.seq(
                go(0, at[0] + (line - band.width * (across.stride * channels))),
                go(1, emit.const(0)),
                go(2, at[2] + 1),
                emit.when(at[2].equal(band.height), emit.seq(next_image, go(2, emit.const(0)))),
            )

            def pixel(i: Expr) -> Stmt:
                ahead = emit.seq(
                    go(0, at[0] + across.stride * channels),
                    go(1, at[1] + 1),
                    emit.when(at[1].equal(band.width), next_row),
                )
                return emit.seq(emit.store(table, at[0], i), emit.when(start + i + 1 < band.last, ahead))

            def begin(image: Expr, row: Expr, x: Expr) -> Stmt:
                offset = ((image * band.rows + row * down.stride) * band.pitch + x * across.stride) * channels
                pixels = emit.serial(self.tile.rows, pixel, "i")
                return emit.seq(go(0, offset), go(1, x), go(2, row), pixels, body(table))

            return emit.bind(emit.unflatten(start, [emit.const(1), band.height, band.width]), begin)

        return emit.scratch([([self.tile.rows], "int64"), ([3], "int64")], walk)

    def _steps(self, band: _Band, offsets: Buffer, p: Expr, run: Callable[..., Stmt]) -> Stmt:
        """Taps in order; those of a row that follow one another in memory in one stretch with the channels."""
        down, across = self.conv.axes
        channels = self.conv.channels
        stretch = across.kernel if across.dilation == 1 else 1

        def from_tap(ry: Expr, rx: Expr) -> Stmt:
            lead = (ry * down.dilation * band.pitch + rx * across.dilation) * channels

            def stretch_of(lead: Expr, tap: Expr) -> Stmt:
                return run(
                    lambda i, k: band.source(offsets[i] + (lead + k)),
                    lambda k, j: self.conv.weight[(p, tap, k, j)],
                    stretch * channels,
                )

            return emit.bind([lead, ry * across.kernel + rx], stretch_of)

        return emit.serial(
            down.kernel,
            lambda ry: emit.serial(across.kernel // stretch, lambda rx: from_tap(ry, rx), "rx"),
            "ry",
        )


class _Padded(_Direct):
    """With padding: bands of rows, or of whole images where these are small, each copied with zeros around it."""

    def __init__(self, conv: LastConv, tile: PanelTile, worth: Expr | bool, target: Target):
        super().__init__(conv, tile, worth, target)
        down, across = conv.axes
        self.reach = (down.kernel - 1) * down.dilation + 1
        # a row of windows ends here, whatever padding the stride leaves unused
        pitch = (conv.extents[2] - 1) * across.stride + (across.kernel - 1) * across.dilation + 1
        self.pitch = emit.simplify(pitch)

    def emit(self) -> Stmt:
        batch, height, _, _ = self.conv.extents
        stride, cores = self.conv.axes[0].stride, hardware.cores(self.target)
        one, budget = emit.const(1), emit.const(self.budget)

        def plan(line: Expr, whole: Expr) -> Stmt:
            # images that fit the budget go together, rows of an image otherwise
            images = tirx.max(tirx.min(emit.quotient(budget, whole), emit.ceildiv(batch, cores)), one)
            share = tirx.min(emit.quotient(budget, line * stride), emit.ceildiv(height * batch, cores))
            rows = tirx.max(tirx.min(tirx.max(share, one), height), one)
            rows = tirx.Select(images > 1, height, rows)
            return emit.bind([images, rows], lambda images, rows: self._bands(line, images, rows))

        line = self.pitch * self.conv.channels
        whole = tirx.max(((height - 1) * stride + self.reach) * line, one)
        return emit.bind([tirx.max(line, one), whole], plan)

    def _bands(self, line: Expr, images: Expr, rows: Expr) -> Stmt:
        batch, height, _, _ = self.conv.extents
        stride = self.conv.axes[0].stride

        def task(index: Expr) -> Stmt:
            def band(group: Expr, part: Expr) -> Stmt:
                n, y = group * images, part * rows
                return emit.bind(
                    [n, tirx.min(images, batch - n), y, tirx.min(rows, height - y)],
                    lambda n, count, y, h: emit.bind(
                        [(h - 1) * stride + self.reach], lambda stored: self._copied(line, n, count, y, h, stored)
                    ),
                )

            return emit.bind(emit.unflatten(index, [emit.ceildiv(batch, images), emit.ceildiv(height, rows)]), band)

        return tasks(self.worth, emit.ceildiv(batch, images) * emit.ceildiv(height, rows), task, self.target)

    def _copied(self, line: Expr, n: Expr, count: Expr, y: Expr, h: Expr, stored: Expr) -> Stmt:
        """``h`` rows of the result from row ``y`` on of ``count`` images, which take ``stored`` rows of data."""
        down, width = self.conv.axes[0], self.conv.extents[2]
        line_most = tirx.max(self.pitch, emit.const(1)) * (self.conv.channels * (self.reach + down.stride))
        size = emit.simplify(line_most + 2 * self.budget)

        def body(padded: Buffer) -> Stmt:
            def band(pixels: Expr) -> Stmt:
                zero = emit.const(0)
                return self.band(_Band(n, y, h, width, stored, self.pitch, zero, pixels, lambda offset: padded[offset]))

            return emit.seq(
                self._fill(padded, line, n, count, y * down.stride - down.before, stored),
                emit.bind([count * h * width], band),
            )

        return emit.scratch([([size], self.conv.dtype)], body)

    def _fill(self, padded: Buffer, line: Expr, first: Expr, count: Expr, top: Expr, stored: Expr) -> Stmt:
        """Copy ``stored`` rows from row ``top`` on of ``count`` images, with zeros around them."""
        down, across = self.conv.axes
        channels, lanes = self.conv.channels, self.tile.lanes
        left = across.before * channels

        def clear(at: Expr) -> Stmt:
            return emit.store(padded, tirx.const(0.0, self.conv.dtype), at)

        def row(index: Expr) -> Stmt:
            def at(image: Expr, r: Expr) -> Stmt:
                def inside(start: Expr, source: Expr, length: Expr) -> Stmt:
                    def element(j: Expr) -> Stmt:
                        value = self.conv.data[(first + image, source, emit.const(0), j)]
                        return emit.store(padded, value, start + left + j)

                    return emit.seq(
                        emit.serial(left, lambda j: clear(start + j), "j"),
                        emit.chunks(length, lanes, element),
                        emit.serial(line - left - length, lambda j: clear(start + left + length + j), "j"),
                    )

                return emit.bind(
                    [index * line, top + r, tirx.min(across.in_extent * channels, line - left)],
                    lambda start, source, length: emit.when(
                        tirx.all(source >= 0, source < down.in_extent, length > 0),
                        inside(start, source, length),
                        emit.chunks(line, lanes, lambda j: clear(start + j)),
                    ),
                )

            return emit.bind(emit.unflatten(index, [count, stored]), at)

        return emit.serial(count * stored, row, "row")
