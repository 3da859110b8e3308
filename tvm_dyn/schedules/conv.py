"""Dense and grouped convolutions, 1-D to 3-D, NCHW, with everything elementwise that follows.

The output is a matrix product of weights (output channel x tap) and windows (tap x pixel). A register tile holds a few
channels times a few vectors of neighbouring pixels; for each tap one data vector meets one broadcast weight, so weights
are read as they are and results leave in NCHW order.

* Pointwise (1x1, stride 1): pixels of an image are one long row; read and written in place.
* Otherwise the input is first copied, padded, into planes whose rows follow one another, images included, so that pixel
  ``q`` of a plane and tap ``(kh, kw)`` meet at ``q + kh*pitch + kw``: tiles need no care for row ends, and a small map
  costs no more than a large one. A stride of s splits an axis into s such planes. The few outputs that straddle two
  rows are computed and dropped. Work goes in bands of rows that fit the cache, whatever the size of the map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import sym, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import Buffer, PrimFunc, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import as_int, collect, loads, substitute, uses_var
from tvm_dyn.schedules.planes import Planes
from tvm_dyn.schedules.window import NotAWindow, Window, parse

_MAX_UNROLLED_TAPS = 9
_TILES_PER_TASK = 4


@dataclass(frozen=True)
class Conv:
    """A convolution: ``out[n, f, y] = sum over c, r of weight[f, c, r] * data[n, group(f)*channels + c, y*s + r*d]``."""

    window: Window
    weight: Buffer
    groups: int
    filters: int
    channels: int
    dtype: str

    @property
    def batch(self) -> Expr:
        return self.window.extents[0]

    @property
    def taps(self) -> list[int]:
        return [axis.kernel for axis in self.window.axes]


def match(window: Window) -> Conv:
    """Read a window as a convolution. Raises `NotAWindow` when it is none."""
    store = window.block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        raise NotAWindow
    dtype = str(store.buffer.dtype)
    product = store.value.b
    if dtype not in ("float32", "float64") or not isinstance(product, tirx.Mul) or not product.a.same_as(window.load):
        raise NotAWindow
    weight = product.b
    spatial, reduction = window.spatial, window.reduction
    rank = len(window.axes)
    expected = [spatial[1], *reduction]
    if (
        len(reduction) != rank + 1
        or [len(loads(product.b)), len(weight.indices)] != [1, rank + 2]
        or not all(i.same_as(v) for i, v in zip(weight.indices, expected, strict=True))
        or not window.load.indices[0].same_as(spatial[0])
        or (window.pad_value is not None and float(window.pad_value.value) != 0.0)
    ):
        raise NotAWindow
    filters, channels = as_int(window.extents[1]), as_int(window.extents[rank + 2])
    total = as_int(window.data.shape[1])
    if filters is None or channels is None or total is None:
        raise NotAWindow
    groups = total // channels
    _check_groups(window, filters, channels, groups)
    return Conv(window, weight.source, groups, filters, channels, dtype)


def _check_groups(window: Window, filters: int, channels: int, groups: int) -> None:
    """The data channel has to be ``f // (filters / groups) * channels + c``."""
    if groups < 1 or filters % groups:
        raise NotAWindow
    f, c = window.spatial[1], window.reduction[0]
    per_group = filters // groups
    for group in range(groups):
        for member in {0, per_group - 1}:
            for channel in {0, channels - 1}:
                index = {f: emit.const(group * per_group + member), c: emit.const(channel)}
                value = as_int(sym.Analyzer().simplify(substitute(window.load.indices[1], index)))
                if value != group * channels + channel:
                    raise NotAWindow


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    try:
        conv = match(parse(func))
    except NotAWindow:
        return None
    if conv.channels == 1 and conv.groups > 1:
        return None  # depthwise: see `depthwise`
    tile = Tile.choose(conv, target)
    pointwise = all(axis.is_pointwise for axis in conv.window.axes)
    if not pointwise:
        return emit.kernel(func, _staged(conv, tile, target))
    pixels = emit.product([axis.out_extent for axis in conv.window.axes])
    in_place, staged = _in_place(conv, tile, pixels), _staged(conv, tile, target)
    known = as_int(sym.Analyzer().simplify(pixels))
    if known is not None:
        return emit.kernel(func, in_place if known >= tile.lanes else staged)
    return emit.kernel(func, emit.when(pixels >= tile.lanes, in_place, staged))


@dataclass(frozen=True)
class Tile:
    """A register tile: ``rows`` output channels times ``vectors`` vectors of ``lanes`` pixels."""

    rows: int
    vectors: int
    lanes: int

    @property
    def pixels(self) -> int:
        return self.vectors * self.lanes

    @staticmethod
    def choose(conv: Conv, target: Target) -> Tile:
        """Fill three quarters of the registers with sums, with as few channels computed twice as possible."""
        per_group = conv.filters // conv.groups
        sums = hardware.registers(target) * 3 // 4
        sizes = [r for r in range(sums // 6, sums // 3 + 1) if r <= per_group] or [per_group]
        rows = min(sizes, key=lambda r: (-(-per_group // r) * r, -r))
        return Tile(rows, min(sums // rows, 6), hardware.lanes(target, conv.dtype))


Load = Callable[[Expr, list[Expr], Expr], Expr]
"""(channel, tap, pixel) -> a data element."""
Store = Callable[[Expr, Expr, Expr], Stmt]
"""(filter, pixel, sum) -> the statement that keeps it."""


def _tile_product(conv: Conv, tile: Tile, vectors: int, group: Expr, block: Expr, load: Load, store: Store) -> Stmt:
    """Sum ``rows`` x ``vectors`` outputs in registers and store them."""
    per_group = conv.filters // conv.groups
    first = group * per_group + tirx.min(block * tile.rows, emit.const(per_group - tile.rows))
    return emit.bind([first], lambda first: _sums(conv, tile, vectors, first, group * conv.channels, load, store))


def _sums(conv: Conv, tile: Tile, vectors: int, first: Expr, channel: Expr, load: Load, store: Store) -> Stmt:

    def each(body: Callable[[Expr, Expr], Stmt], rows: Callable[..., Stmt] = emit.unrolled) -> Stmt:
        return rows(
            tile.rows,
            lambda i: emit.unrolled(
                vectors, lambda v: emit.vectorized(tile.lanes, lambda j: body(i, v * tile.lanes + j)), "v"
            ),
        )

    def product(acc: Buffer, c: Expr, tap: list[Expr]) -> Stmt:
        return each(
            lambda i, j: tirx.BufferStore(
                acc,
                acc[i, j] + load(channel + c, tap, j) * conv.weight[(first + i, c, *tap)],
                [i, j],
            )
        )

    def body(acc: Buffer) -> Stmt:
        return emit.seq(
            each(lambda i, j: tirx.BufferStore(acc, tirx.const(0.0, conv.dtype), [i, j])),
            emit.serial(conv.channels, lambda c: _each_tap(conv.taps, lambda tap: product(acc, c, tap)), "c"),
            each(lambda i, j: store(first + i, j, acc[i, j]), emit.serial),
        )

    return emit.scratch([([tile.rows, vectors * tile.lanes], conv.dtype)], body)


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


def _tiles(
    conv: Conv, tile: Tile, images: Expr, pixels: Expr, body: Callable[[Expr, Expr, int, Expr, Expr], Stmt]
) -> Stmt:
    """Cover ``images`` x ``pixels`` x filters with tiles, in parallel.

    ``body(image, first pixel, vectors, group, block)`` gets full tiles, then one vector at a time for what is left of
    a row of pixels; the last vector may reach up to ``lanes - 1`` pixels beyond the end.
    """
    blocks = -(-(conv.filters // conv.groups) // tile.rows)
    per_task = min(blocks, _TILES_PER_TASK)
    tasks = -(-blocks // per_task)

    def cover(full: Expr, columns: Expr) -> Stmt:
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

        where = [images, columns, emit.const(conv.groups), emit.const(tasks)]
        return emit.parallel(
            images * columns * (conv.groups * tasks), lambda index: emit.bind(emit.unflatten(index, where), task)
        )

    return emit.bind([emit.quotient(pixels, tile.pixels), emit.ceildiv(pixels, tile.pixels)], cover)


def _in_place(conv: Conv, tile: Tile, pixels: Expr) -> Stmt:
    """Pointwise: data and result are rows of ``pixels`` elements, at least one vector long.

    A pixel is addressed through the last coordinate alone, as rows of an image follow one another in memory.
    """
    rank = len(conv.window.axes)
    data, result = conv.window.data, conv.window.result
    coordinates = _pixel_coordinates(conv, rank)
    lead = [emit.const(0)] * (rank - 1)

    def body(image: Expr, first: Expr, vectors: int, group: Expr, block: Expr) -> Stmt:
        def product(start: Expr) -> Stmt:
            def load(c: Expr, _: list[Expr], j: Expr) -> Expr:
                return data[(image, c, *lead, start + j)]

            def store(f: Expr, j: Expr, acc: Expr) -> Stmt:
                value = conv.window.epilogue(acc, [image, f, *coordinates(start + j)])
                return tirx.BufferStore(result, value, [image, f, *lead, start + j])

            return _tile_product(conv, tile, vectors, group, block, load, store)

        return emit.bind([tirx.min(first, pixels - vectors * tile.lanes)], product)

    return emit.bind([pixels], lambda pixels: _tiles(conv, tile, conv.batch, pixels, body))


def _pixel_coordinates(conv: Conv, rank: int) -> Callable[[Expr], list[Expr]]:
    """How the epilogue addresses pixel ``q``: (0, .., 0, q) where all it reads has the result's rows, else split up."""
    extents = [axis.out_extent for axis in conv.window.axes]
    at = [tirx.Var(f"y{n}", "int64") for n in range(rank + 2)]
    expr = conv.window.epilogue(tirx.const(0.0, conv.dtype), list(at))
    analyzer = sym.Analyzer()

    def rowwise(load) -> bool:
        indices = load.indices[-rank:]
        if not uses_var(indices, at[2:]):
            return True
        return all(i.same_as(v) for i, v in zip(indices, at[2:], strict=True)) and all(
            analyzer.can_prove_equal(a, b) for a, b in zip(load.source.shape[-rank:], extents, strict=True)
        )

    mentions = sum(uses_var(v, at[2:]) for v in collect(expr, tirx.Var))
    if all(rowwise(load) for load in loads(expr)) and mentions == sum(
        sum(uses_var(v, at[2:]) for v in collect(load, tirx.Var)) for load in loads(expr)
    ):
        return lambda q: [*[emit.const(0)] * (rank - 1), q]
    return lambda q: emit.unflatten(q, list(extents))


def _staged(conv: Conv, tile: Tile, target: Target) -> Stmt:
    """Everything but pointwise: bands of rows, each copied, multiplied and written out."""
    axes = conv.window.axes
    pitches = Planes.pitches(axes)
    unbound = Planes(axes, conv.batch, pitches, slack=tile.lanes)
    pixels = _band_pixels(conv, tile, unbound, target)

    def bands(padded: Buffer, sums: Buffer) -> Stmt:
        def loop(layout: Planes, rows: Expr, height: Expr, plane: Expr, line: Expr) -> Stmt:
            padded_at = emit.rows_of(padded, layout.phases, plane)
            sums_at = emit.rows_of(sums, line)

            def band(first: Expr, count: Expr) -> Stmt:
                return _band(conv, tile, layout, padded_at, sums_at, first, count)

            return emit.serial(
                emit.ceildiv(rows, height), lambda i: emit.bind([i * height, tirx.min(height, rows - i * height)], band)
            )

        def each(*pitches: Expr) -> Stmt:
            layout = Planes(axes, conv.batch, list(pitches), slack=tile.lanes)
            height = tirx.max(emit.quotient(emit.const(pixels), layout.pitch), 2 * layout.halo)
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
    sizes = [conv.groups * conv.channels * unbound.phases * plane, conv.filters * lines]
    return emit.scratch([([emit.simplify(size)], conv.dtype) for size in sizes], bands)


def _band_pixels(conv: Conv, tile: Tile, layout: Planes, target: Target) -> int:
    """Pixels whose copy and sums fit the second-level caches, though enough to be worth a round of tasks."""
    per_pixel = conv.groups * conv.channels * layout.phases + conv.filters
    budget = hardware.cache_bytes(target, 2) * hardware.cores(target) * 3 // 4 // hardware.dtype_bytes(conv.dtype)
    return max(budget // per_pixel, 4 * tile.pixels)


def _band(conv: Conv, tile: Tile, layout: Planes, padded: emit.At, sums: emit.At, first: Expr, count: Expr) -> Stmt:
    """``count`` rows of sums from row ``first`` on."""
    zero = tirx.const(0.0, conv.dtype)
    return emit.seq(
        layout.fill(conv.window.data, padded, first, count, tile.lanes, zero),
        emit.bind([count * layout.pitch], lambda pixels: _multiply(conv, tile, layout, padded, sums, pixels)),
        _finish(conv, tile, layout, sums, first, count),
    )


def _multiply(conv: Conv, tile: Tile, layout: Planes, padded: emit.At, sums: emit.At, pixels: Expr) -> Stmt:
    def body(_: Expr, start: Expr, vectors: int, group: Expr, block: Expr) -> Stmt:
        def load(c: Expr, tap: list[Expr], j: Expr) -> Expr:
            phase, offset = layout.tap(tap)
            return emit.load(*padded(c, phase, start + offset, lane=j))

        def store(f: Expr, j: Expr, acc: Expr) -> Stmt:
            return emit.store_at(sums(f, start, lane=j), acc)

        return _tile_product(conv, tile, vectors, group, block, load, store)

    return _tiles(conv, tile, emit.const(1), pixels, body)


def _finish(conv: Conv, tile: Tile, layout: Planes, sums: emit.At, first: Expr, count: Expr) -> Stmt:
    """Rows of sums to rows of the result, through the epilogue."""
    window = conv.window

    def write(f: Expr, row: Expr) -> Stmt:
        def line(n: Expr, outer: list[Expr]) -> Stmt:
            def elements(start: Expr, width: Expr) -> Stmt:
                def element(x: Expr) -> Stmt:
                    value = window.epilogue(emit.load(*sums(f, start, lane=x)), [n, f, *outer, x])
                    return tirx.BufferStore(window.result, value, [n, f, *outer, x])

                return emit.chunks(width, tile.lanes, element)

            return emit.bind([row * layout.pitch, window.axes[-1].out_extent], elements)

        return layout.output_row(first + row, line)

    def task(index: Expr) -> Stmt:
        return emit.bind(emit.unflatten(index, [emit.const(conv.filters), count]), write)

    return emit.parallel(count * conv.filters, task)
