"""Pooling over regions of interest, whose sizes only the run knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tvm import te, tirx

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import clamp_index, f32, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value


def _round_away(x: Any) -> Any:
    """To the nearest whole number, halves away from zero."""
    half = f32(0.5)
    return tirx.Select(x < f32(0), tirx.ceil(x - half), tirx.floor(x + half)).astype("int64")


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
            image = clamp_index(images(n).astype("int64"), x.shape[0])
            own = [bins.samples(regions, n, k) for k in range(2)]
            sides = [bins.sides(regions, n, k, cell[k], steps[k], own[k], x.shape[2 + k]) for k in range(2)]
            corners = [wy * wx * x(image, c, y, xx).astype("float32") for y, wy in sides[0] for xx, wx in sides[1]]
            exists = tirx.all(*[i < o for i, o in zip(steps, own, strict=True)])
            if average:
                total = reduce(lambda a, b: a + b, corners)
                points = tirx.max(prim(own[0]) * own[1], tirx.const(1, "int64")).astype("float32")
                return te.sum(tirx.Select(exists, total / points, f32(0)), axis=steps)
            return te.max(tirx.Select(exists, reduce(tirx.max, corners), tirx.min_value("float32")), axis=steps)

        def finished(n: Any, c: Any, *cell: Any) -> Any:
            value = pooled(n, c, *cell)
            if not average:  # without a single sample the result is 0
                value = tirx.Select(value == tirx.min_value("float32"), f32(0), value)
            return value.astype(x.dtype)

        pooled = te.compute(shape, at, name="pooled")
        return te.compute(shape, finished, name="roi_align")

    tensors = [ctx.tensor(v) for v in (data, rois, batches)]
    return ctx.emit_te(align, *tensors, grid, [count, dims[1], height, width])


class _Bins:
    """The bins of regions (x1, y1, x2, y2), and the sample points in them. Axis 0 is y, axis 1 is x."""

    def __init__(self, scale: float, centred: bool, cells: Sequence[int], ratio: int):
        self._scale, self._centred, self._cells, self.ratio = f32(scale), centred, cells, ratio

    def _span(self, regions: te.Tensor, n: Any, axis: int) -> tuple[Any, Any]:
        """(start, length) in the data's coordinates."""
        offset = f32(0.5 if self._centred else 0.0)
        start, end = (regions(n, k).astype("float32") * self._scale - offset for k in (1 - axis, 3 - axis))
        return start, end - start if self._centred else tirx.max(end - start, f32(1))

    def samples(self, regions: te.Tensor, n: Any, axis: int) -> Any:
        """Sample points per bin: given, or one for each element that the bin spans."""
        if self.ratio > 0:
            return tirx.const(self.ratio, "int64")
        return tirx.ceil(self._span(regions, n, axis)[1] / f32(self._cells[axis])).astype("int64")

    def sides(
        self, regions: te.Tensor, n: Any, axis: int, cell: Any, step: Any, samples: Any, extent: Any
    ) -> list[tuple[Any, Any]]:
        """The two elements around a sample point, each with its weight; both weights are 0 far outside."""
        start, length = self._span(regions, n, axis)
        size = length / f32(self._cells[axis])
        place = start + f32(cell) * size + (f32(step) + f32(0.5)) * size / f32(samples)
        inside = tirx.all(place >= f32(-1), place <= f32(extent))
        bounded = tirx.max(tirx.min(place, f32(extent) - f32(1)), f32(0))
        below = tirx.floor(bounded)
        fraction, low = bounded - below, clamp_index(below.astype("int64"), extent)
        weights = (f32(1) - fraction, fraction)
        return [(clamp_index(low + k, extent), tirx.Select(inside, weight, f32(0))) for k, weight in enumerate(weights)]


@converter("MaxRoiPool")
def max_roi_pool(ctx: Context, node: Node) -> Value:
    """The maximum over each bin of regions (image, x1, y1, x2, y2), in whole elements.

    Girshick, "Fast R-CNN", 2015.
    """
    data, rois, scale = node.data(0), node.data(1), node.attr("spatial_scale", 1.0)
    cells = node.attr("pooled_shape")
    dims, regions_dims = ctx.shape(data), ctx.shape(rois)
    if len(dims) != 4 or len(cells) != 2:
        raise InvalidModelError(f"{node.label}: it pools over two spatial axes")

    def span(regions: te.Tensor, n: Any, axis: int) -> tuple[Any, Any]:
        start, end = (_round_away(regions(n, k).astype("float32") * f32(scale)) for k in (2 - axis, 4 - axis))
        return start, tirx.max(end - start + 1, tirx.const(1, "int64"))

    def bounds(regions: te.Tensor, n: Any, axis: int, cell: Any) -> tuple[Any, Any]:
        start, length = span(regions, n, axis)
        size = f32(length) / f32(cells[axis])
        first, last = tirx.floor(f32(cell) * size), tirx.ceil((f32(cell) + f32(1)) * size)
        return start + first.astype("int64"), start + last.astype("int64")

    def reach(regions: te.Tensor, n: Any, axis: int) -> Any:
        return tirx.ceil(f32(span(regions, n, axis)[1]) / f32(cells[axis])).astype("int64") + 1

    longest = [_largest(ctx, "reach", rois, lambda r, n, k=k: reach(r, n, k)) for k in range(2)]

    def pool(x: te.Tensor, regions: te.Tensor, extents: list[Any], shape: list[Any]) -> te.Tensor:
        steps = [te.reduce_axis((0, e), name) for e, name in zip(extents, ("iy", "ix"), strict=True)]
        lowest = tirx.min_value(x.dtype)

        def at(n: Any, c: Any, *cell: Any) -> Any:
            image = clamp_index(regions(n, 0).astype("int64"), x.shape[0])
            ranges = [bounds(regions, n, k, cell[k]) for k in range(2)]
            place = [first + step for (first, _), step in zip(ranges, steps, strict=True)]
            inside = [p < last for p, (_, last) in zip(place, ranges, strict=True)]
            inside += [cond for p, e in zip(place, x.shape[2:], strict=True) for cond in (p >= 0, p < e)]
            bounded = [clamp_index(p, e) for p, e in zip(place, x.shape[2:], strict=True)]
            return te.max(tirx.Select(tirx.all(*inside), x(image, c, *bounded), lowest), axis=steps)

        pooled = te.compute(shape, at, name="pooled")

        def finished(*index: Any) -> Any:  # a bin without elements gives 0
            return tirx.Select(pooled(*index) == lowest, tirx.const(0, x.dtype), pooled(*index))

        return te.compute(shape, finished, name="max_roi_pool")

    return ctx.emit_te(pool, ctx.tensor(data), ctx.tensor(rois), longest, [regions_dims[0], dims[1], *cells])
