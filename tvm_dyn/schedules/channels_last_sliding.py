"""Windows over one channel at a time on channels-last data: depthwise convolutions and pooling, with what follows.

Vectors run over channels, so that nothing is copied and no map is too narrow. A few neighbouring results share the
weights they meet; taps that lie in the padding are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import Buffer, IterVar, PrimFunc, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import as_int, is_reduction, leaf_blocks, loads, same_exprs, stores, substitute
from tvm_dyn.schedules.replay import decided
from tvm_dyn.schedules.space import Space
from tvm_dyn.schedules.tasks import enough_sums, tasks
from tvm_dyn.schedules.window import Axis, Epilogue, NotAWindow, parse_epilogue, slopes, unpad

_NEUTRAL = {tirx.Add: 0.0, tirx.Max: -float("inf"), tirx.Min: float("inf")}


@dataclass(frozen=True)
class LastSliding:
    """``result[n, y, x, c] = epilogue(combine over ry, rx of data[n, y*s + ry*d, x*s + rx*d, c])``."""

    block: s_tir.SBlock
    load: TensorLoad
    data: Buffer
    axes: tuple[Axis, ...]
    extents: tuple[Expr, ...]
    dtype: str
    result: Buffer
    epilogue: Epilogue

    @property
    def initial(self) -> Expr:
        return stores(self.block.init)[0].value

    def combined(self, acc: Expr, element: Expr, c: Expr, tap: tuple[Expr, Expr]) -> Expr:
        """The update of the reduction with the sum so far, the element of the data and the tap put in place."""
        (store,) = stores(self.block.body)
        axes = [iv.var for iv in self.block.iter_vars]
        point = {axes[3]: c, **{axis: emit.const(0) for axis in axes[4:-2]}}
        point.update(zip(axes[-2:], tap, strict=True))

        def replace(load: TensorLoad) -> Expr:
            if load.source.same_as(store.buffer):
                return acc
            return element if load.source.same_as(self.load.source) else load

        return tvm_ffi.structural_map(substitute(store.value, point), (TensorLoad, replace))


@dataclass(frozen=True)
class SlidingTile:
    """``pixels`` neighbouring results of ``lanes`` channels at a time."""

    pixels: int
    lanes: int

    @staticmethod
    def for_target(dtype: str, target: Target) -> SlidingTile:
        return SlidingTile(hardware.registers(target) // 8, hardware.lanes(target, dtype))


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    try:
        found = match(func)
    except NotAWindow:
        return None
    return emit.kernel(func, kernel(found, decided(func, SlidingTile.for_target(found.dtype, target)), target))


def space(func: PrimFunc, target: Target) -> Space | None:
    """The decisions about a depthwise convolution or a pooling, None for anything else."""
    try:
        found = match(func)
    except NotAWindow:
        return None
    images, height, width, channels = found.extents
    taps = emit.const(math.prod(axis.kernel for axis in found.axes))
    extents = {"images": images, "height": height, "width": width, "channels": channels, "taps": taps}
    tile = SlidingTile.for_target(found.dtype, target)
    return Space((tile,), extents, (tile,))


def match(func: PrimFunc) -> LastSliding:
    """Raises `NotAWindow` for every other form."""
    sch = Schedule(func)
    blocks = [sch.get(block) for block in leaf_blocks(sch)]
    reductions = [block for block in blocks if is_reduction(block)]
    if len(reductions) != 1 or reductions[0].init is None or len(stores(reductions[0].body)) != 1:
        raise NotAWindow
    main, at = reductions[0], blocks.index(reductions[0])
    axes, single, taps = main.iter_vars[:4], main.iter_vars[4:-2], main.iter_vars[-2:]
    (store,) = stores(main.body)
    if len(main.iter_vars) < 6 or type(store.value) not in _NEUTRAL:
        raise NotAWindow
    # a single channel per result: TVM no longer takes the axis for a reduction
    if any(as_int(iv.dom.extent) != 1 for iv in single) or any(iv.iter_type != IterVar.DataPar for iv in axes):
        raise NotAWindow
    load = _data_load(store, list(axes), {iv.var: emit.const(0) for iv in single})
    params = list(func.params)
    data, before, pad_value = unpad(load.source, blocks[:at], params)
    neutral = _NEUTRAL[type(store.value)]
    if (pad_value is not None and not _is_neutral(pad_value, neutral)) or before[0] or before[3]:
        raise NotAWindow
    windows = [_axis(load, data, before, dim, o, r) for dim, o, r in zip((1, 2), axes[1:3], taps, strict=True)]
    dtype = str(store.buffer.dtype)
    if str(data.dtype) != dtype or not dtype.startswith("float"):
        raise NotAWindow
    result, epilogue = parse_epilogue(main, blocks[at + 1 :], params)
    extents = tuple(iv.dom.extent for iv in axes)
    return LastSliding(main, load, data, tuple(windows), extents, dtype, result, epilogue)


def _is_neutral(value: Expr, neutral: float) -> bool:
    """Whether an element of padding changes nothing; the least finite number passes for minus infinity."""
    known = float(value.value) if isinstance(value, tirx.FloatImm) else None
    return known is not None and (known == neutral or (neutral != 0.0 and abs(known) > 3e38 and known * neutral > 0))


def _data_load(store: tirx.BufferStore, spatial: list[IterVar], single: dict) -> TensorLoad:
    """The read that slides; others may follow the channel only."""
    n, _, _, c = (iv.var for iv in spatial)
    reads = [load for load in loads(store.value) if not load.source.same_as(store.buffer)]
    if not reads or len(reads[0].indices) != 4 or not same_exprs([reads[0].indices[0]], [n]):
        raise NotAWindow
    channel = emit.simplify(substitute(reads[0].indices[3], single) - c)
    moving = [iv.var for iv in spatial[:3]]
    others = [i for load in reads[1:] for i in load.indices]
    if as_int(channel) != 0 or any(any(v.same_as(w) for w in moving) for i in others for v in _variables(i)):
        raise NotAWindow
    return reads[0]


def _variables(root) -> list:
    found: list = []
    tvm_ffi.structural_walk(root, (tirx.Var, lambda v: found.append(v)))
    return found


def _axis(load: TensorLoad, data: Buffer, before: list[int], dim: int, o: IterVar, r: IterVar) -> Axis:
    kernel_size = as_int(r.dom.extent)
    after = as_int(emit.simplify(load.source.shape[dim] - data.shape[dim] - before[dim]))
    if kernel_size is None or after is None:
        raise NotAWindow
    stride, dilation = slopes(load.indices[dim], o.var, r.var)
    return Axis(data.shape[dim], o.dom.extent, kernel_size, stride, dilation, before[dim], after)


def kernel(found: LastSliding, tile: SlidingTile, target: Target) -> Stmt:
    """Rows of results, in parallel."""
    batch, height, width, channels = found.extents
    down, across = found.axes
    reach = (across.kernel - 1) * across.dilation + 1

    def row(n: Expr, y: Expr) -> Stmt:
        def taps(top: Expr, low: Expr, high: Expr) -> Stmt:
            # results whose windows lie inside the row
            start = tirx.min(emit.const(-(-across.before // across.stride)), width)
            end = tirx.max(
                tirx.min(
                    emit.quotient(
                        tirx.max(across.in_extent + across.before - reach, emit.const(-across.stride)) + across.stride,
                        across.stride,
                    ),
                    width,
                ),
                start,
            )
            return emit.bind([start, end], lambda start, end: spans(top, low, high, start, end))

        def spans(top: Expr, low: Expr, high: Expr, start: Expr, end: Expr) -> Stmt:
            def edge(x: Expr) -> Stmt:
                left = x * across.stride - across.before
                return emit.bind(
                    [left],
                    lambda left: _clipped(
                        left, across, lambda a, b: _results(found, tile, n, y, x, top, left, (low, high), (a, b))
                    ),
                )

            def block(i: Expr) -> Stmt:
                x = tirx.min(start + i * tile.pixels, end - tile.pixels)
                return emit.bind(
                    [x],
                    lambda x: emit.bind(
                        [x * across.stride - across.before],
                        lambda left: _results(found, tile, n, y, x, top, left, (low, high), None),
                    ),
                )

            return emit.when(
                end - start >= tile.pixels,
                emit.seq(
                    emit.serial(start, edge, "x"),
                    emit.serial(emit.ceildiv(end - start, tile.pixels), block, "block"),
                    emit.serial(width - end, lambda x: emit.bind([end + x], edge), "x"),
                ),
                emit.serial(width, edge, "x"),
            )

        return emit.bind(
            [y * down.stride - down.before],
            lambda top: _clipped(top, down, lambda low, high: taps(top, low, high)),
        )

    work = emit.product([batch, height, width, channels, down.kernel * across.kernel])
    each = batch * height
    return tasks(enough_sums(work), each, lambda i: emit.bind(emit.unflatten(i, [batch, height]), row), target)


def _clipped(origin: Expr, axis: Axis, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """``body(first tap, last tap + 1)`` of the taps that meet data, for a window that starts at ``origin``."""
    d = axis.dilation
    low = emit.quotient(tirx.max(-origin, emit.const(0)) + (d - 1), d)
    high = tirx.min(
        emit.quotient(tirx.max(axis.in_extent - origin, emit.const(0)) + (d - 1), d), emit.const(axis.kernel)
    )
    return emit.bind([low, high], body)


def _results(
    found: LastSliding,
    tile: SlidingTile,
    n: Expr,
    y: Expr,
    x: Expr,
    top: Expr,
    left: Expr,
    rows: tuple[Expr, Expr],
    columns: tuple[Expr, Expr] | None,
) -> Stmt:
    """All channels of ``tile.pixels`` results from ``x`` on, or of one whose taps are ``columns``."""
    down, across = found.axes
    pixels = 1 if columns else tile.pixels

    def piece(first: Expr, width: int) -> Stmt:
        def each(body: Callable[[Expr, Expr], Stmt]) -> Stmt:
            return emit.unrolled(pixels, lambda i: emit.vectorized(width, lambda j: body(i, j)), "i")

        def sums(acc: Buffer) -> Stmt:
            def tap(ry: Expr, rx: Expr) -> Stmt:
                def add(i: Expr, j: Expr) -> Stmt:
                    at = (n, top + ry * down.dilation, left + rx * across.dilation + i * across.stride, first + j)
                    return emit.store(acc, found.combined(acc[i, j], found.data[at], first + j, (ry, rx)), i, j)

                return each(add)

            def row_of_taps(r: Expr) -> Stmt:
                ry = rows[0] + r
                if columns:
                    return emit.serial(columns[1] - columns[0], lambda k: tap(ry, columns[0] + k), "rx")
                return emit.unrolled(across.kernel, lambda rx: tap(ry, rx), "rx")

            def keep(i: Expr, j: Expr) -> Stmt:
                where = [n, y, x + i, first + j]
                return emit.store(found.result, found.epilogue(acc[i, j], where), *where)

            return emit.seq(
                each(lambda i, j: emit.store(acc, found.initial, i, j)),
                emit.serial(rows[1] - rows[0], row_of_taps, "ry"),
                each(keep),
            )

        return emit.scratch([([pixels, width], found.dtype)], sums)

    return emit.pieces(found.extents[3], tile.lanes, piece)
