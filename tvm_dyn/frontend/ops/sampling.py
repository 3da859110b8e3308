"""Sampling at computed coordinates: GridSample, AffineGrid and pooling over regions of interest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tvm import te, tirx

from tvm_dyn.errors import InvalidModelError, UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.resampling import cubic_kernel
from tvm_dyn.frontend.value import Value


def _f32(value: Any) -> Any:
    return tirx.const(float(value), "float32") if isinstance(value, int | float) else value.astype("float32")


def _clamp(index: Any, extent: Any) -> Any:
    return tirx.max(tirx.min(index, prim(extent - 1)), tirx.const(0, "int64"))


# -- GridSample ----------------------------------------------------------------------------------------------

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}


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

    def sample(x: te.Tensor, points: te.Tensor, shape: list[Any]) -> te.Tensor:
        extents = x.shape[2:]

        def at(n: Any, c: Any, *index: Any) -> Any:
            places = [
                _place(points(n, *index, rank - 1 - k).astype("float32"), extents[k], mode, padding, align)
                for k in range(rank)
            ]
            terms = []
            for taps in itertools.product(_TAPS[mode], repeat=rank):
                sides = [_tap(*place, t, e, mode, padding, align) for place, t, e in zip(places, taps, extents, strict=True)]
                weight = reduce(lambda a, b: a * b, [w for _, w in sides])
                terms.append(weight * x(n, c, *[i for i, _ in sides]).astype("float32"))
            return reduce(lambda a, b: a + b, terms).astype(x.dtype)

        return te.compute(shape, at, name="grid_sample")

    return ctx.emit_te(sample, ctx.tensor(data), ctx.tensor(grid), [batch, dims[1], *grid_dims[1:-1]])


def _borders(extent: Any, align: bool) -> tuple[Any, Any]:
    length = _f32(extent)
    return (_f32(0), length - _f32(1)) if align else (_f32(-0.5), length - _f32(0.5))


def _place(normalized: Any, extent: Any, mode: str, padding: str, align: bool) -> tuple[Any, Any]:
    """The coordinate as (element at or below it, fraction)."""
    length, one, half = _f32(extent), _f32(1), _f32(0.5)
    x = (normalized + one) * half * (length - one) if align else ((normalized + one) * length - one) * half
    if mode == "nearest":
        x = tirx.nearbyint(x)
    if padding == "border":
        x = tirx.max(tirx.min(x, length - one), _f32(0))
    elif padding == "reflection":
        x = _reflect(x, *_borders(extent, align))
    below = tirx.nearbyint(x) if mode == "nearest" else tirx.floor(x)
    return below, x - below


def _reflect(x: Any, low: Any, high: Any) -> Any:
    """Fold a coordinate into [low, high] at the borders, as often as it takes."""
    width = tirx.max(high - low, _f32(0))
    period = tirx.max(_f32(2) * width, _f32(1))
    distance = tirx.abs(x - low)
    folded = distance - tirx.floor(distance / period) * period
    return tirx.Select(width > _f32(0), low + tirx.min(folded, _f32(2) * width - folded), low)


def _tap(
    below: Any, fraction: Any, tap: int, extent: Any, mode: str, padding: str, align: bool
) -> tuple[Any, Any]:
    """(element, weight) of a tap along one axis."""
    place = below + _f32(tap)
    weight = _f32(1)
    if mode == "linear":
        weight = fraction if tap else _f32(1) - fraction
    elif mode == "cubic":
        weight = cubic_kernel(tirx.abs(fraction - _f32(tap)), -0.75)
    if padding == "zeros":
        inside = tirx.all(place >= _f32(0), place <= _f32(extent) - _f32(1))
        weight = tirx.Select(inside, weight, _f32(0))
    elif padding == "reflection":
        place = tirx.trunc(_reflect(place, *_borders(extent, align)))
    bounded = tirx.max(tirx.min(place, _f32(extent) - _f32(1)), _f32(0))
    return _clamp(bounded.astype("int64"), extent), weight


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
            place, length, one = _f32(position), _f32(prim(extent)), _f32(1)
            if not align:
                return (_f32(2) * place + one) / length - one
            return tirx.Select(length > one, _f32(2) * place / tirx.max(length - one, one) - one, _f32(0))

        def at(n: Any, *index: Any) -> Any:
            *place, row = index
            total = matrix(n, row, rank).astype("float32")
            for k in range(rank):
                position = rank - 1 - k
                total = total + matrix(n, row, k).astype("float32") * coordinate(place[position], extents[position])
            return total.astype(matrix.dtype)

        return te.compute(shape, at, name="affine_grid")

    return ctx.emit_te(grid, ctx.tensor(theta), size[2:], [batch, *size[2:], rank])


# -- regions of interest -------------------------------------------------------------------------------------


def _largest(ctx: Context, name: str, rois: Value, count: Callable[[te.Tensor, Any], Any]) -> Any:
    """The maximum of an integer over all regions, as a symbol that the run binds (0 without regions)."""

    def largest(regions: te.Tensor) -> te.Tensor:
        region = te.reduce_axis((0, regions.shape[0]), "region")
        zero = tirx.const(0, "int64")
        top = te.compute([1], lambda _: te.max(tirx.max(count(regions, region), zero), axis=region), name="top")
        return te.compute([1], lambda i: tirx.max(top(i), zero), name=name)

    return ctx.scalar(ctx.emit_te(largest, ctx.tensor(rois)), signed=False)


@converter("RoiAlign", since=10)
def roi_align(ctx: Context, node: Node) -> Value:
    """Average (or maximum) of bilinear samples on a regular grid in each bin (Mask R-CNN, He et al. 2017)."""
    data, rois, batches = (node.data(k) for k in range(3))
    dims = ctx.shape(data)
    height, width = node.attr("output_height", 1), node.attr("output_width", 1)
    centred = node.opset >= 16 and node.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    bins = _Bins(node.attr("spatial_scale", 1.0), centred, (height, width), node.attr("sampling_ratio", 0))
    count = ctx.require_equal(ctx.shape(rois)[0], ctx.shape(batches)[0], "the regions and their batch indices")
    ctx.require(prim(ctx.shape(rois)[1]) >= 4, [], f"{node.label}: a region takes four numbers")
    grid = [bins.ratio or _largest(ctx, "samples", rois, lambda r, n, k=k: bins.samples(r, n, k)) for k in range(2)]
    average = node.attr("mode", "avg") == "avg"

    def align(x: te.Tensor, regions: te.Tensor, images: te.Tensor, samples: list[Any], shape: list[Any]) -> te.Tensor:
        steps = [te.reduce_axis((0, s), name) for s, name in zip(samples, ("iy", "ix"), strict=True)]

        def at(n: Any, c: Any, *cell: Any) -> Any:
            image = _clamp(images(n).astype("int64"), x.shape[0])
            own = [bins.samples(regions, n, k) for k in range(2)]
            sides = [bins.sides(regions, n, k, cell[k], steps[k], own[k], x.shape[2 + k]) for k in range(2)]
            corners = [
                wy * wx * x(image, c, y, xx).astype("float32") for y, wy in sides[0] for xx, wx in sides[1]
            ]
            exists = tirx.all(*[i < o for i, o in zip(steps, own, strict=True)])
            if average:
                total = reduce(lambda a, b: a + b, corners)
                points = tirx.max(prim(own[0]) * own[1], tirx.const(1, "int64")).astype("float32")
                return te.sum(tirx.Select(exists, total / points, _f32(0)), axis=steps)
            return te.max(tirx.Select(exists, reduce(tirx.max, corners), tirx.min_value("float32")), axis=steps)

        def finished(n: Any, c: Any, *cell: Any) -> Any:
            value = pooled(n, c, *cell)
            if not average:  # without a single sample the result is 0
                value = tirx.Select(value == tirx.min_value("float32"), _f32(0), value)
            return value.astype(x.dtype)

        pooled = te.compute(shape, at, name="pooled")
        return te.compute(shape, finished, name="roi_align")

    tensors = [ctx.tensor(v) for v in (data, rois, batches)]
    return ctx.emit_te(align, *tensors, grid, [count, dims[1], height, width])


class _Bins:
    """The bins of regions (x1, y1, x2, y2), and the sample points in them. Axis 0 is y, axis 1 is x."""

    def __init__(self, scale: float, centred: bool, cells: Sequence[int], ratio: int):
        self._scale, self._centred, self._cells, self.ratio = _f32(scale), centred, cells, ratio

    def _span(self, regions: te.Tensor, n: Any, axis: int) -> tuple[Any, Any]:
        """(start, length) in the data's coordinates."""
        offset = _f32(0.5 if self._centred else 0.0)
        start, end = (regions(n, k).astype("float32") * self._scale - offset for k in (1 - axis, 3 - axis))
        return start, end - start if self._centred else tirx.max(end - start, _f32(1))

    def samples(self, regions: te.Tensor, n: Any, axis: int) -> Any:
        """Sample points per bin: given, or one for each element that the bin spans."""
        if self.ratio > 0:
            return tirx.const(self.ratio, "int64")
        return tirx.ceil(self._span(regions, n, axis)[1] / _f32(self._cells[axis])).astype("int64")

    def sides(
        self, regions: te.Tensor, n: Any, axis: int, cell: Any, step: Any, samples: Any, extent: Any
    ) -> list[tuple[Any, Any]]:
        """The two elements around a sample point, each with its weight; both weights are 0 far outside."""
        start, length = self._span(regions, n, axis)
        size = length / _f32(self._cells[axis])
        place = start + _f32(cell) * size + (_f32(step) + _f32(0.5)) * size / _f32(samples)
        inside = tirx.all(place >= _f32(-1), place <= _f32(extent))
        bounded = tirx.max(tirx.min(place, _f32(extent) - _f32(1)), _f32(0))
        below = tirx.floor(bounded)
        fraction, low = bounded - below, _clamp(below.astype("int64"), extent)
        weights = (_f32(1) - fraction, fraction)
        return [
            (_clamp(low + k, extent), tirx.Select(inside, weight, _f32(0))) for k, weight in enumerate(weights)
        ]


@converter("MaxRoiPool")
def max_roi_pool(ctx: Context, node: Node) -> Value:
    """The maximum over each bin of regions (image, x1, y1, x2, y2) in whole elements (Fast R-CNN, Girshick 2015)."""
    data, rois, scale = node.data(0), node.data(1), node.attr("spatial_scale", 1.0)
    cells = node.attr("pooled_shape")
    dims, regions_dims = ctx.shape(data), ctx.shape(rois)
    if len(dims) != 4 or len(cells) != 2:
        raise InvalidModelError(f"{node.label}: it pools over two spatial axes")

    def span(regions: te.Tensor, n: Any, axis: int) -> tuple[Any, Any]:
        start, end = (
            tirx.round(regions(n, k).astype("float32") * _f32(scale)).astype("int64") for k in (2 - axis, 4 - axis)
        )
        return start, tirx.max(end - start + 1, tirx.const(1, "int64"))

    def bounds(regions: te.Tensor, n: Any, axis: int, cell: Any) -> tuple[Any, Any]:
        start, length = span(regions, n, axis)
        size = _f32(length) / _f32(cells[axis])
        first, last = tirx.floor(_f32(cell) * size), tirx.ceil((_f32(cell) + _f32(1)) * size)
        return start + first.astype("int64"), start + last.astype("int64")

    def reach(regions: te.Tensor, n: Any, axis: int) -> Any:
        return tirx.ceil(_f32(span(regions, n, axis)[1]) / _f32(cells[axis])).astype("int64") + 1

    longest = [_largest(ctx, "reach", rois, lambda r, n, k=k: reach(r, n, k)) for k in range(2)]

    def pool(x: te.Tensor, regions: te.Tensor, extents: list[Any], shape: list[Any]) -> te.Tensor:
        steps = [te.reduce_axis((0, e), name) for e, name in zip(extents, ("iy", "ix"), strict=True)]
        lowest = tirx.min_value(x.dtype)

        def at(n: Any, c: Any, *cell: Any) -> Any:
            image = _clamp(regions(n, 0).astype("int64"), x.shape[0])
            ranges = [bounds(regions, n, k, cell[k]) for k in range(2)]
            place = [first + step for (first, _), step in zip(ranges, steps, strict=True)]
            inside = [p < last for p, (_, last) in zip(place, ranges, strict=True)]
            inside += [cond for p, e in zip(place, x.shape[2:], strict=True) for cond in (p >= 0, p < e)]
            bounded = [_clamp(p, e) for p, e in zip(place, x.shape[2:], strict=True)]
            return te.max(tirx.Select(tirx.all(*inside), x(image, c, *bounded), lowest), axis=steps)

        pooled = te.compute(shape, at, name="pooled")

        def finished(*index: Any) -> Any:  # a bin without elements gives 0
            return tirx.Select(pooled(*index) == lowest, tirx.const(0, x.dtype), pooled(*index))

        return te.compute(shape, finished, name="max_roi_pool")

    return ctx.emit_te(pool, ctx.tensor(data), ctx.tensor(rois), longest, [regions_dims[0], dims[1], *cells])
