"""Where a resized axis reads its input, and with which weights: tables of one row per output position.

    Resize(x, mode=linear)  ->  index[y, t], weight[y, t]
                                out[.., y, ..] = sum over t of weight[y, t] * x[.., index[y, t], ..]

Coordinates are computed in float32 in the order of the operator's definition, as other runtimes do, so that
positions which fall between two elements round alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import ceil_div, clamp_index, f32, maximum
from tvm_dyn.frontend.value import Value


@dataclass(frozen=True)
class Sampling:
    """How a Resize node samples, by its attributes."""

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True)
class Axis:
    """One resized axis.

    scale: a number or a float32 expression, None for size / extent. position: of this axis among scales that
    only the run knows, and of its start in the region of interest (the ends follow all starts).
    """

    axis: int
    extent: Any
    size: Any
    scale: Any
    position: int


@dataclass(frozen=True)
class Operands:
    """Scales and regions that only the run knows, as tensors; a known region is a list of numbers."""

    scales: Value | None
    roi: Any
    count: int


def _original(sampling: Sampling, y: Any, extent: Any, size: Any, scale: Any, region: tuple[Any, Any]) -> Any:
    """The coordinate in the input of output position y (ONNX Resize, coordinate_transformation_mode)."""
    half, one = f32(0.5), f32(1)
    position, length, resized = f32(y), f32(extent), f32(size)
    if scale is None:
        scale, exact = resized / length, resized
    else:
        scale, exact = f32(scale), f32(scale) * length
    centred = (position + half) / scale - half
    steps = tirx.Select(exact == one, one, exact - one)
    match sampling.coordinates:
        case "asymmetric":
            return position / scale
        case "align_corners":
            return tirx.Select(exact == one, f32(0), position * (length - one) / steps)
        case "pytorch_half_pixel":
            return tirx.Select(resized > one, centred, f32(0))
        case "half_pixel_symmetric":
            return length * half * (one - resized / exact) + centred
        case "tf_crop_and_resize":
            start, end = region
            spread = start * (length - one) + position * (end - start) * (length - one) / steps
            return tirx.Select(resized > one, spread, half * (start + end) * (length - one))
        case "half_pixel":
            return centred
    raise ValueError(f"coordinate_transformation_mode '{sampling.coordinates}' is not known")


def cubic_kernel(distance: Any, a: float) -> Any:
    """Keys' cubic convolution kernel (IEEE ASSP 1981) at a distance >= 0."""
    x, a_ = distance, f32(a)
    near = ((a_ + f32(2)) * x - (a_ + f32(3))) * x * x + f32(1)
    far = ((a_ * x - f32(5) * a_) * x + f32(8) * a_) * x - f32(4) * a_
    return tirx.Select(x <= f32(1), near, tirx.Select(x < f32(2), far, f32(0)))


def _round(how: str, x: Any) -> Any:
    rounded = {
        "floor": lambda: tirx.floor(x),
        "ceil": lambda: tirx.ceil(x),
        "round_prefer_floor": lambda: tirx.ceil(x - f32(0.5)),
        "round_prefer_ceil": lambda: tirx.floor(x + f32(0.5)),
    }[how]()
    return rounded.astype("int64")


Entry = Callable[[Any, Any, Any, Any], Any]
"""(coordinate, tap, extent, ratio) -> a table entry; tap 0 is the element at floor(coordinate)."""


def _table(
    ctx: Context, sampling: Sampling, axis: Axis, operands: Operands, name: str, reach: Any, entry: Entry
) -> Value:
    """A table with a row per position and a column per tap from 1 - reach to reach (none without a reach)."""

    def table(extent: Any, size: Any, scale: Any, side: Any, scales: list[te.Tensor], roi: Any) -> te.Tensor:
        if scales:
            scale = scales[0](axis.position)
        region = _region(roi, axis.position, operands.count)

        def at(*index: Any) -> Any:
            x = _original(sampling, index[0], extent, size, scale, region)
            ratio = f32(size) / f32(extent) if scale is None else f32(scale)
            return entry(x, index[1] + 1 - side if len(index) > 1 else 0, extent, ratio)

        return te.compute([size] if side is None else [size, 2 * side], at, name=name)

    scales = [] if operands.scales is None else [ctx.tensor(operands.scales)]
    roi = ctx.tensor(operands.roi) if isinstance(operands.roi, Value) else operands.roi
    return ctx.emit_te(table, axis.extent, axis.size, axis.scale, reach, scales, roi, name=name)


def _region(roi: Any, position: int, count: int) -> tuple[Any, Any]:
    if roi is None:
        return f32(0), f32(1)
    places = position, position + count
    start, end = (roi(p) if isinstance(roi, te.Tensor) else roi[p] for p in places)
    return f32(start), f32(end)


def nearest_index(ctx: Context, sampling: Sampling, axis: Axis, operands: Operands) -> Value:
    """(size,): the element that each position copies."""

    def entry(x: Any, _: Any, extent: Any, __: Any) -> Any:
        return clamp_index(_round(sampling.nearest, x), extent)

    return _table(ctx, sampling, axis, operands, "nearest_index", None, entry)


def outside(ctx: Context, sampling: Sampling, axis: Axis, operands: Operands) -> Value:
    """(size,): whether a position lies outside the input, where the result is the extrapolation value."""

    def entry(x: Any, _: Any, extent: Any, __: Any) -> Any:
        return tirx.any(x < f32(0), x > f32(extent) - f32(1))

    return _table(ctx, sampling, axis, operands, "outside", None, entry)


def taps(ctx: Context, sampling: Sampling, axis: Axis, operands: Operands) -> tuple[Value, Value]:
    """(size, taps): the elements that each position reads, and their weights."""
    reach = _reach(ctx, sampling, axis)

    def index(x: Any, tap: Any, extent: Any, _: Any) -> Any:
        return clamp_index(tirx.floor(x).astype("int64") + tap, extent)

    def weight(x: Any, tap: Any, extent: Any, ratio: Any) -> Any:
        first = tirx.floor(x)
        distance = tirx.abs(f32(tap) - (x - first))
        if sampling.antialias:
            distance = distance * tirx.min(ratio, f32(1))
        linear = tirx.max(f32(1) - distance, f32(0))
        value = linear if sampling.mode == "linear" else cubic_kernel(distance, sampling.cubic)
        if not sampling.exclude_outside:
            return value
        element = first.astype("int64") + tap
        return tirx.Select(tirx.all(element >= 0, element < extent), value, f32(0))

    indices = _table(ctx, sampling, axis, operands, "tap_index", reach, index)
    weights = _table(ctx, sampling, axis, operands, "tap_weight", reach, weight)
    return indices, _normalized(ctx, weights) if sampling.antialias or sampling.exclude_outside else weights


def _reach(ctx: Context, sampling: Sampling, axis: Axis) -> Any:
    """How many taps a position has on either side; antialiasing covers what one output element covers."""
    reach = 1 if sampling.mode == "linear" else 2
    if not sampling.antialias:
        return reach
    if isinstance(axis.scale, float):
        return math.ceil(reach / min(axis.scale, 1.0))
    stretched = ceil_div(ctx.facts, reach * axis.extent, maximum(ctx.facts, axis.size, 1))
    return maximum(ctx.facts, stretched, reach)


def _normalized(ctx: Context, weights: Value) -> Value:
    def normalize(w: te.Tensor) -> te.Tensor:
        tap = te.reduce_axis((0, w.shape[1]), "t")
        total = te.compute([w.shape[0]], lambda y: te.sum(w(y, tap), axis=tap), name="total")
        return te.compute(w.shape, lambda y, t: w(y, t) / total(y), name="normalized")

    return ctx.emit_te(normalize, ctx.tensor(weights), name="normalize_weights")
