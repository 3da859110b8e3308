"""Dense and grouped convolutions, 1-D to 3-D, NCHW, with everything elementwise that follows.

A matrix product of weights and windows (see `tiles`).

* Pointwise (1x1, stride 1): pixels of an image are one long row; read and written in place.
* Pointwise on maps of a single pixel: dot products (see `pixel`).
* Otherwise the input is first copied, padded, into planes whose rows follow one another, images included, so
  that pixel ``q`` of a plane and tap ``(kh, kw)`` meet at ``q + kh*pitch + kw``: tiles need no care
  for row ends, and a small map costs no more than a large one. A stride of s splits an axis into s such
  planes. The few outputs that straddle two rows are computed and dropped. Work goes in bands of rows that
  fit the cache, whatever the size of the map.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import sym, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import Buffer, PrimFunc, Stmt

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import as_int, collect, loads, substitute, uses_var
from tvm_dyn.schedules.pixel import dot_products
from tvm_dyn.schedules.planes import Planes
from tvm_dyn.schedules.replay import decided
from tvm_dyn.schedules.space import Space
from tvm_dyn.schedules.tasks import enough_elements, tasks
from tvm_dyn.schedules.tiles import Product, Tile, cover, staged, tile_product
from tvm_dyn.schedules.window import NotAWindow, Window, parse


@dataclass(frozen=True)
class Conv:
    """``out[n, f, y] = sum over c, r of weight[f, c, r] * data[n, group(f)*channels + c, y*s + r*d]``."""

    window: Window
    weight: Buffer
    groups: int
    filters: int
    channels: int
    dtype: str

    def product(self) -> Product:
        return Product(
            data=self.window.data,
            axes=self.window.axes,
            batch=self.window.extents[0],
            dtype=self.dtype,
            filters=self.filters,
            groups=self.groups,
            channels=self.channels,
            taps=[axis.kernel for axis in self.window.axes],
            weight=lambda f, c, tap: self.weight[(f, c, *tap)],
            source=lambda group, c: group * self.channels + c,
            place=lambda planes, _, tap: planes.tap(tap),
        )


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
        return None  # depthwise: see `sliding`
    product = conv.product()
    tile = decided(func, Tile.choose(product.per_group, conv.dtype, target))

    def everywhere() -> Stmt:
        return staged(
            product, tile, target, lambda *band: write_rows(conv.window, conv.filters, tile.lanes, target, *band)
        )

    if not all(axis.is_pointwise for axis in conv.window.axes):
        return emit.kernel(func, everywhere())
    pixels = emit.simplify(emit.product([axis.out_extent for axis in conv.window.axes]))
    if as_int(pixels) == 1:
        return emit.kernel(
            func, dot_products(product, tile.lanes, lambda n, f, acc: _write_pixel(conv, n, f, acc), target)
        )
    return emit.kernel(func, emit.when(pixels >= tile.lanes, _in_place(conv, tile, pixels, target), everywhere()))


def space(func: PrimFunc, target: Target) -> Space | None:
    """The decisions about a convolution that is not depthwise, None for anything else."""
    try:
        conv = match(parse(func))
    except NotAWindow:
        return None
    if conv.channels == 1 and conv.groups > 1:
        return None
    images, _, *pixels = conv.window.extents[: len(conv.window.spatial)]
    taps = math.prod(axis.kernel for axis in conv.window.axes)
    known = {"filters": conv.filters, "channels": conv.channels, "taps": taps}
    extents = {"images": images, "pixels": emit.product(pixels), **{k: emit.const(v) for k, v in known.items()}}
    tile = Tile.choose(conv.product().per_group, conv.dtype, target)
    return Space((tile,), extents, (tile,))


def _write_pixel(conv: Conv, n: Expr, f: Expr, acc: Expr) -> Stmt:
    at = [n, f, *[emit.const(0)] * len(conv.window.axes)]
    return emit.store(conv.window.result, conv.window.epilogue(acc, at), *at)


def _in_place(conv: Conv, tile: Tile, pixels: Expr, target: Target) -> Stmt:
    """Pointwise: data and result are rows of ``pixels`` elements, at least one vector long.

    A pixel is addressed through the last coordinate alone, as rows of an image follow one another in memory.
    """
    rank = len(conv.window.axes)
    product = conv.product()
    data, result = conv.window.data, conv.window.result
    coordinates = _pixel_coordinates(conv, rank)
    lead = [emit.const(0)] * (rank - 1)

    def body(image: Expr, first: Expr, vectors: int, group: Expr, block: Expr) -> Stmt:
        def at(start: Expr) -> Stmt:
            def load(c: Expr, _: list[Expr], j: Expr) -> Expr:
                return data[(image, product.source(group, c), *lead, start + j)]

            def store(f: Expr, j: Expr, acc: Expr) -> Stmt:
                value = conv.window.epilogue(acc, [image, f, *coordinates(start + j)])
                return tirx.BufferStore(result, value, [image, f, *lead, start + j])

            return tile_product(product, tile, vectors, group, block, load, store)

        return emit.bind([tirx.min(first, pixels - vectors * tile.lanes)], at)

    return emit.bind([pixels], lambda pixels: cover(product, tile, product.batch, pixels, body, target))


def _pixel_coordinates(conv: Conv, rank: int) -> Callable[[Expr], list[Expr]]:
    """How the epilogue addresses pixel ``q``: (0, .., q) if all it reads has these rows, else split."""
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


def write_rows(
    window: Window, filters: int, lanes: int, target: Target, layout: Planes, sums: emit.At, first: Expr, count: Expr
) -> Stmt:
    """Rows of sums to rows of the result, through the epilogue."""

    def write(f: Expr, row: Expr) -> Stmt:
        def line(n: Expr, outer: list[Expr]) -> Stmt:
            def elements(start: Expr, width: Expr) -> Stmt:
                def element(x: Expr) -> Stmt:
                    at = [n, f, *outer, x]
                    return emit.store(window.result, window.epilogue(emit.load(*sums(f, start, lane=x)), at), *at)

                return emit.chunks(width, lanes, element)

            return emit.bind([row * layout.pitch, window.axes[-1].out_extent], elements)

        return layout.output_row(first + row, line)

    worth = enough_elements(count * layout.pitch * filters, str(window.result.dtype))
    return tasks(
        worth, count * filters, lambda index: emit.bind(emit.unflatten(index, [filters, count]), write), target
    )
