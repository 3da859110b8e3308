"""Winograd's minimal filtering for 3x3 windows of stride 1: a quarter of the multiplications, on channels-last data.

A tile of 4x4 results is ``A^T [(G w G^T) * (B^T d B)] A`` of the 6x6 data ``d`` below it (A. Lavin, S. Gray, Fast
Algorithms for Convolutional Neural Networks, 2016, F(4x4, 3x3)). The sum over channels of the 36 products in the
brackets is 36 matrix products, of tiles times channels and channels times filters. `passes.choose_layouts` has put
``G w G^T`` behind the weights.

Errors grow to some 1e-5 of the largest result, from 1e-6 of sums that are computed as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.panel import PanelTile, each_panel, product
from tvm_dyn.schedules.tasks import enough_sums, tasks

if TYPE_CHECKING:
    from tvm_dyn.schedules.channels_last import LastConv

OUT, IN = 4, 6
_G = np.array(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
)


def transformed(weight: np.ndarray) -> np.ndarray:
    """``G w G^T``, [36, ...] of [3, 3, ...], computed in float64."""
    w = weight.astype("float64").reshape(3, 3, -1)
    return np.einsum("ai,bj,ijr->abr", _G, _G, w).reshape(IN * IN, *weight.shape[2:])


def pays(conv: LastConv) -> Expr:
    """Whether at least half of the results of the tiles are wanted, and there are enough for several cores."""
    _, height, width, _ = conv.extents
    wanted = _tiles(height) * _tiles(width) * (OUT * OUT // 2) <= height * width
    return tirx.all(wanted, enough_sums(conv.sums))


def _tiles(extent: Expr) -> Expr:
    return emit.ceildiv(extent, OUT)


def kernel(conv: LastConv, tile: PanelTile, target: Target) -> Stmt:
    """The whole convolution, in blocks of tiles whose transforms fit the second-level cache."""
    batch, height, width, _ = conv.extents
    padded = -(-conv.filters // conv.columns) * conv.columns
    fit = hardware.cache_bytes(target, 2) // (IN * IN * (conv.channels + padded) * hardware.dtype_bytes(conv.dtype))
    block = min(max(fit // tile.rows, 2), 8) * tile.rows

    def blocks(down: Expr, across: Expr, count: Expr) -> Stmt:
        def task(index: Expr) -> Stmt:
            start = index * block
            return emit.bind(
                [start, tirx.min(emit.const(block), count - start)],
                # An odd number of tiles apart: places a multiple of a page apart push each other out of the cache.
                lambda start, mine: _block(conv, tile, block | 1, padded, (start, mine, down, across)),
            )

        return tasks(True, emit.ceildiv(count, block), task, target)

    return emit.bind(
        [_tiles(height), _tiles(width)],
        lambda down, across: emit.bind([batch * down * across], lambda count: blocks(down, across, count)),
    )


def _block(conv: LastConv, tile: PanelTile, block: int, padded: int, where: tuple[Expr, Expr, Expr, Expr]) -> Stmt:
    start, mine, down, across = where
    places = IN * IN

    def body(data: Buffer, sums: Buffer, patch: Buffer, inner: Buffer, results: Buffer) -> Stmt:
        def every(one: Callable[[Expr, Expr, Expr, Expr], Stmt]) -> Stmt:
            def at(t: Expr) -> Stmt:
                return emit.bind(
                    emit.unflatten(start + t, [emit.const(1), down, across]),
                    lambda n, ty, tx: emit.bind([ty * OUT, tx * OUT], lambda y, x: one(t, n, y, x)),
                )

            return emit.serial(mine, at, "tile")

        return emit.seq(
            every(lambda t, n, y, x: _take(conv, tile, data, patch, inner, block, t, n, y, x)),
            emit.serial(places, lambda place: _multiply(conv, tile, data, sums, block, padded, mine, place), "place"),
            every(lambda t, n, y, x: _give(conv, tile, sums, inner, results, block, padded, t, n, y, x)),
        )

    return emit.scratch(
        [
            ([places * block * conv.channels], conv.dtype),
            ([places * block * padded], conv.dtype),
            ([places * conv.channels], conv.dtype),
            ([places * tile.lanes], conv.dtype),
            ([OUT * OUT * tile.lanes], conv.dtype),
        ],
        body,
    )


def _take(
    conv: LastConv,
    tile: PanelTile,
    out: Buffer,
    patch: Buffer,
    inner: Buffer,
    block: int,
    t: Expr,
    n: Expr,
    y: Expr,
    x: Expr,
) -> Stmt:
    """``B^T d B`` of one tile."""
    rows, pitch = (axis.in_extent for axis in conv.axes)
    channels = conv.channels

    def transform(load: Callable[[int, int, Expr], Expr]) -> Stmt:
        def piece(first: Expr, width: int) -> Stmt:
            def lanes(store: Callable[[Expr], Stmt]) -> Stmt:
                return emit.vectorized(width, store)

            columns = [
                lanes(
                    lambda j, a=a, b=b: emit.store(
                        inner, _data_side([load(i, b, first + j) for i in range(IN)])[a], (a * IN + b) * tile.lanes + j
                    )
                )
                for b in range(IN)
                for a in range(IN)
            ]
            across = [
                lanes(
                    lambda j, a=a, b=b: emit.store(
                        out,
                        _data_side([inner[(a * IN + i) * tile.lanes + j] for i in range(IN)])[b],
                        (t + (a * IN + b) * block) * channels + (first + j),
                    )
                )
                for a in range(IN)
                for b in range(IN)
            ]
            return emit.seq(*columns, *across)

        return emit.pieces(emit.const(channels), tile.lanes, piece)

    def at(top: Expr, left: Expr) -> Stmt:
        inside = tirx.all(top >= 0, top + IN <= rows, left >= 0, left + IN <= pitch)
        zero = tirx.const(0.0, conv.dtype)

        def fill(k: Expr) -> Stmt:
            def pixel(i: Expr, j: Expr, r: Expr, c: Expr) -> Stmt:
                valid = tirx.all(r >= 0, r < rows, c >= 0, c < pitch)
                to = (i * IN + j) * channels
                return emit.when(
                    valid,
                    emit.chunks(
                        emit.const(channels), tile.lanes, lambda k: emit.store(patch, conv.data[(n, r, c, k)], to + k)
                    ),
                    emit.chunks(emit.const(channels), tile.lanes, lambda k: emit.store(patch, zero, to + k)),
                )

            i, j = emit.quotient(k, IN), tirx.truncmod(k, emit.const(IN))
            return emit.bind([i, j], lambda i, j: emit.bind([top + i, left + j], lambda r, c: pixel(i, j, r, c)))

        return emit.when(
            inside,
            transform(lambda i, j, c: conv.data[(n, top + i, left + j, c)]),
            emit.seq(
                emit.serial(IN * IN, fill, "pixel"),
                transform(lambda i, j, c: patch[(i * IN + j) * channels + c]),
            ),
        )

    return emit.bind([y - conv.axes[0].before, x - conv.axes[1].before], at)


def _data_side(d: list[Expr]) -> list[Expr]:
    """``B^T d``."""
    even, odd = d[4] - d[2] * 4.0, d[3] - d[1] * 4.0
    even2, odd2 = d[4] - d[2], (d[3] - d[1]) * 2.0
    return [
        d[0] * 4.0 - d[2] * 5.0 + d[4],
        even + odd,
        even - odd,
        even2 + odd2,
        even2 - odd2,
        d[1] * 4.0 - d[3] * 5.0 + d[5],
    ]


def _result_side(m: list[Expr]) -> list[Expr]:
    """``A^T m``."""
    sum1, difference1, sum2, difference2 = m[1] + m[2], m[1] - m[2], m[3] + m[4], m[3] - m[4]
    return [
        m[0] + sum1 + sum2,
        difference1 + difference2 * 2.0,
        sum1 + sum2 * 4.0,
        difference1 + difference2 * 8.0 + m[5],
    ]


def _multiply(
    conv: LastConv,
    tile: PanelTile,
    data: Buffer,
    sums: Buffer,
    block: int,
    padded: int,
    mine: Expr,
    place: Expr,
) -> Stmt:
    """The product of one of the 36 places."""
    channels = conv.channels
    small = max(tile.rows // 3, 1)

    def panel(p: Expr, columns: int) -> Stmt:
        def some(rows: int) -> Callable[[Expr], Stmt]:
            def at(first: Expr) -> Stmt:
                def write(i: Expr, column: Expr, width: int, value) -> Stmt:
                    to = (place * block + (first + i)) * padded + p * conv.columns + column
                    return emit.vectorized(width, lambda j: emit.store(sums, value(j), to + j))

                def steps(run) -> Stmt:
                    return run(
                        lambda i, k: data[(place * block + first) * channels + (k + i * channels)],
                        lambda k, j: conv.weight[(p, place + conv.taps, k, j)],
                        channels,
                    )

                return product(tile, rows, conv.dtype, columns, steps, write)

            return at

        full = emit.quotient(mine, tile.rows)
        rest = emit.ceildiv(mine - full * tile.rows, small)
        return emit.bind(
            [full, rest],
            lambda full, rest: emit.seq(
                emit.serial(full, lambda r: emit.bind([r * tile.rows], some(tile.rows)), "rows"),
                emit.serial(rest, lambda r: emit.bind([full * tile.rows + r * small], some(small)), "rest"),
            ),
        )

    return each_panel(conv.filters, conv.columns, panel)


def _give(
    conv: LastConv,
    tile: PanelTile,
    sums: Buffer,
    inner: Buffer,
    results: Buffer,
    block: int,
    padded: int,
    t: Expr,
    n: Expr,
    y: Expr,
    x: Expr,
) -> Stmt:
    """``A^T m A`` of one tile, and what follows the convolution."""
    _, height, width, _ = conv.extents
    lanes = tile.lanes

    def piece(first: Expr, count: int) -> Stmt:
        def at(a: int, b: int, j: Expr) -> Expr:
            return sums[((a * IN + b) * block + t) * padded + (first + j)]

        down = [
            emit.vectorized(
                count,
                lambda j, a=a, b=b: emit.store(
                    inner, _result_side([at(i, b, j) for i in range(IN)])[a], (a * IN + b) * lanes + j
                ),
            )
            for b in range(IN)
            for a in range(OUT)
        ]
        across = [
            emit.vectorized(
                count,
                lambda j, a=a, b=b: emit.store(
                    results,
                    _result_side([inner[(a * IN + i) * lanes + j] for i in range(IN)])[b],
                    (a * OUT + b) * lanes + j,
                ),
            )
            for a in range(OUT)
            for b in range(OUT)
        ]

        def keep(a: Expr, b: Expr) -> Stmt:
            def lane(j: Expr) -> Stmt:
                where = [n, y + a, x + b, first + j]
                return emit.store(conv.result, conv.epilogue(results[(a * OUT + b) * lanes + j], where), *where)

            return emit.vectorized(count, lane)

        return emit.seq(
            *down,
            *across,
            emit.serial(
                tirx.min(height - y, emit.const(OUT)),
                lambda a: emit.serial(tirx.min(width - x, emit.const(OUT)), lambda b: keep(a, b), "b"),
                "a",
            ),
        )

    return emit.pieces(emit.const(conv.filters), lanes, piece)
