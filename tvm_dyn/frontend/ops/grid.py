"""Sampling at computed coordinates: GridSample and AffineGrid."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import reduce
from operator import add, mul
from typing import Any

from tvm import te, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import clamp_index, f32, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.resampling import cubic_kernel
from tvm_dyn.frontend.value import Value

# -- GridSample ----------------------------------------------------------------------------------------------

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}  # relative to the element at or below


@converter("GridSample", since=16)
def grid_sample(ctx: Context, node: Node) -> Value:
    """Coordinates in [-1, 1] pick elements; the last grid axis lists them innermost axis first."""
    data, grid = node.data(0), node.data(1)
    dims, grid_dims = ctx.shape(data), ctx.shape(grid)
    mode = _MODES.get(node.attr("mode", "linear"), node.attr("mode", "linear"))
    padding, align = node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    if mode not in _TAPS or padding not in ("zeros", "border", "reflection"):
        raise UnsupportedOperatorError(f"{node.label}: mode '{mode}' with padding '{padding}' is not supported")
    rank = len(dims) - 2
    batch = ctx.require_equal(dims[0], grid_dims[0], "the batch of data and grid")
    ctx.require_equal(grid_dims[-1], rank, "the coordinates of a grid point and the spatial axes")

    sampler = _Sampler(mode, padding, align)
    taps = _TAPS[mode]
    places = [*grid_dims[1:-1], len(taps)]
    tables = []
    for k in range(rank):
        arguments = ctx.tensor(grid), dims[2 + k], [batch, *places]
        for entry in (sampler.element, sampler.weight):
            tables.append(ctx.tensor(ctx.emit_te(_table(rank - 1 - k, entry), *arguments, name=entry.__name__)))

    def grid_sample(x: te.Tensor, tables: list[te.Tensor], shape: list[Any]) -> te.Tensor:
        def at(n: Any, c: Any, *index: Any) -> Any:
            terms = []
            for combination in itertools.product(range(len(taps)), repeat=rank):
                elements = [tables[2 * k](n, *index, t) for k, t in enumerate(combination)]
                weights = [tables[2 * k + 1](n, *index, t) for k, t in enumerate(combination)]
                terms.append(reduce(mul, weights) * x(n, c, *elements).astype("float32"))
            return reduce(add, terms).astype(x.dtype)

        return te.compute(shape, at, name="grid_sample")

    return ctx.emit_te(grid_sample, ctx.tensor(data), tables, [batch, dims[1], *places[:-1]])


def _table(column: int, entry: Callable[..., Any]) -> Callable[..., te.Tensor]:
    """(n, grid..., taps): an entry for each tap along the axis whose coordinates stand in `column`."""

    def table(points: te.Tensor, extent: Any, shape: list[Any]) -> te.Tensor:
        def at(*index: Any) -> Any:
            *point, tap = index
            return entry(points(*point, column).astype("float32"), prim(extent), tap)

        return te.compute(shape, at, name="table")

    return table


class _Sampler:
    """What the taps of a coordinate read along one axis, and with which weights."""

    def __init__(self, mode: str, padding: str, align: bool):
        self._mode, self._padding, self._align = mode, padding, align

    def _borders(self, extent: Any) -> tuple[Any, Any]:
        length = f32(extent)
        return (f32(0), length - f32(1)) if self._align else (f32(-0.5), length - f32(0.5))

    def _coordinate(self, normalized: Any, extent: Any) -> Any:
        """In elements; beyond the borders moved inside where the padding says so."""
        length, one, half = f32(extent), f32(1), f32(0.5)
        shifted = normalized + one
        x = shifted * half * (length - one) if self._align else (shifted * length - one) * half
        if self._mode == "nearest":
            x = tirx.nearbyint(x)
        low, high = self._borders(extent)
        if self._padding == "border":
            x = tirx.Select(tirx.any(x < low, x > high), tirx.max(tirx.min(x, length - one), f32(0)), x)
        elif self._padding == "reflection":
            x = _reflect(x, low, high)
        return tirx.nearbyint(x) if self._mode == "nearest" else x

    def _place(self, normalized: Any, extent: Any, tap: Any) -> Any:
        first = _TAPS[self._mode][0]
        return tirx.floor(self._coordinate(normalized, extent)) + f32(tap + first)

    def element(self, normalized: Any, extent: Any, tap: Any) -> Any:
        place, last = self._place(normalized, extent, tap), f32(extent) - f32(1)
        if self._padding == "reflection":
            place = tirx.trunc(_reflect(place, *self._borders(extent)))
        return clamp_index(tirx.max(tirx.min(place, last), f32(0)).astype("int64"), extent)

    def weight(self, normalized: Any, extent: Any, tap: Any) -> Any:
        place = self._place(normalized, extent, tap)
        distance = tirx.abs(self._coordinate(normalized, extent) - place)
        weight = f32(1)
        if self._mode == "linear":
            weight = tirx.max(weight - distance, f32(0))
        elif self._mode == "cubic":
            weight = cubic_kernel(distance, -0.75)
        if self._padding != "zeros":
            return weight
        inside = tirx.all(place >= f32(0), place <= f32(extent) - f32(1))
        return tirx.Select(inside, weight, f32(0))


def _reflect(x: Any, low: Any, high: Any) -> Any:
    """Fold a coordinate into [low, high] at the borders, as often as it takes."""
    width = tirx.max(high - low, f32(0))
    period = tirx.max(f32(2) * width, f32(1))
    distance = tirx.abs(x - low)
    folded = distance - tirx.floor(distance / period) * period
    return tirx.Select(width > f32(0), low + tirx.min(folded, f32(2) * width - folded), low)


# -- AffineGrid ----------------------------------------------------------------------------------------------


@converter("AffineGrid", since=20)
def affine_grid(ctx: Context, node: Node) -> Value:
    """theta (n, r, r + 1) times the homogeneous coordinates of a grid over [-1, 1], innermost axis first."""
    theta, align = node.data(0), bool(node.attr("align_corners", 0))
    size = list(ctx.elements(node.data(1), signed=False))
    dims, rank = ctx.shape(theta), len(size) - 2
    batch = ctx.require_equal(dims[0], size[0], "the batch of theta and of the size")
    for axis, extent in ((1, rank), (2, rank + 1)):
        ctx.require_equal(dims[axis], extent, f"axis {axis} of theta and the spatial axes")

    def grid(matrix: te.Tensor, extents: list[Any], shape: list[Any]) -> te.Tensor:
        def coordinate(position: Any, extent: Any) -> Any:
            place, length, one = f32(position), f32(prim(extent)), f32(1)
            if not align:
                return (f32(2) * place + one) / length - one
            return tirx.Select(length > one, f32(2) * place / tirx.max(length - one, one) - one, f32(0))

        def at(n: Any, *index: Any) -> Any:
            *place, row = index
            total = matrix(n, row, rank).astype("float32")
            for k in range(rank):
                position = rank - 1 - k
                total = total + matrix(n, row, k).astype("float32") * coordinate(place[position], extents[position])
            return total.astype(matrix.dtype)

        return te.compute(shape, at, name="affine_grid")

    return ctx.emit_te(grid, ctx.tensor(theta), size[2:], [batch, *size[2:], rank])
