"""Resize and Upsample: sizes are symbol expressions, each resized axis is one pass over tables.

The tables hold what an output position reads and with which weights, see `frontend/resampling.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_dyn.errors import InvalidModelError, UnsupportedOperatorError
from tvm_dyn.frontend import resampling
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import floor_div, is_symbolic, maximum, minimum, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.resampling import Axis, Operands, Sampling
from tvm_dyn.frontend.sliding_window import simplify_sum
from tvm_dyn.frontend.value import Value
from tvm_dyn.symbolic import divide_exact, simplify


@converter("Upsample", since=7)
def upsample(ctx: Context, node: Node) -> Value:
    scales = Value(const=np.asarray(node.attr("scales"), "float32")) if node.opset < 9 else node.data(1)
    return _resize(ctx, node, Sampling(_mode(node)), scales=scales)


@converter("Resize", since=10, until=10)
def resize_10(ctx: Context, node: Node) -> Value:
    return _resize(ctx, node, Sampling(_mode(node)), scales=node.data(1))


@converter("Resize", since=11)
def resize(ctx: Context, node: Node) -> Value:
    sampling = Sampling(
        mode=_mode(node),
        coordinates=node.attr("coordinate_transformation_mode", "half_pixel"),
        nearest=node.attr("nearest_mode", "round_prefer_floor"),
        cubic=node.attr("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.attr("exclude_outside", 0)),
        antialias=bool(node.attr("antialias", 0)),
        extrapolation=node.attr("extrapolation_value", 0.0),
    )
    roi, scales, sizes = (_given(ctx, node.input(k)) for k in (1, 2, 3))
    return _resize(ctx, node, sampling, scales, sizes, roi if sampling.coordinates == "tf_crop_and_resize" else None)


def _mode(node: Node) -> str:
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(node.attr("mode", "nearest"), node.attr("mode", "nearest"))
    if mode not in ("nearest", "linear", "cubic"):
        raise UnsupportedOperatorError(f"{node.label}: mode '{mode}' is not supported")
    return mode


def _given(ctx: Context, value: Value | None) -> Value | None:
    """An optional operand; exporters leave one out as an empty tensor, too."""
    return None if value is None or ctx.shape(value) == [0] else value


def _resize(
    ctx: Context,
    node: Node,
    sampling: Sampling,
    scales: Value | None = None,
    sizes: Value | None = None,
    roi: Value | None = None,
) -> Value:
    data = node.data()
    dims = ctx.shape(data)
    chosen = [a % len(dims) for a in node.attr("axes") or range(len(dims))]
    if sizes is not None:
        axes = _axes_of_sizes(ctx, node, dims, chosen, list(ctx.elements(sizes, signed=False)))
    elif scales is not None:
        axes = _axes_of_scales(ctx, dims, chosen, scales)
    else:
        raise InvalidModelError(f"{node.label} has neither sizes nor scales")
    runtime = scales if sizes is None and scales is not None and scales.known_elements() is None else None
    operands = Operands(runtime, _known_or_value(roi), len(chosen))
    axes = [a for a in axes if roi is not None or not _is_identity(ctx, a, runtime)]
    return _interpolate(ctx, data, sampling, axes, operands)


def _known_or_value(roi: Value | None) -> Any:
    return [float(x) for x in roi.const.reshape(-1)] if roi is not None and roi.is_const else roi


# -- sizes ---------------------------------------------------------------------------------------------------


def _axes_of_sizes(ctx: Context, node: Node, dims: list[Any], chosen: list[int], sizes: list[Any]) -> list[Axis]:
    policy, scale = node.attr("keep_aspect_ratio_policy", "stretch"), None
    extents = [dims[a] for a in chosen]
    if len(sizes) != len(chosen):
        raise InvalidModelError(f"{node.label}: {len(sizes)} sizes for {len(chosen)} axes")
    for axis, extent, size in zip(chosen, extents, sizes, strict=True):
        if is_symbolic(extent) and not ctx.facts.prove_equal(extent, size):
            ctx.require(extent >= 1, [extent], f"{node.label}: axis {axis} has no element to resize")
    if policy != "stretch":
        pick = tirx.min if policy == "not_larger" else tirx.max
        ratios = [_quotient(size, extent) for size, extent in zip(sizes, extents, strict=True)]
        scale = ratios[0]
        for ratio in ratios[1:]:
            scale = pick(scale, ratio) if policy != "stretch" else scale
        sizes = [_kept_ratio(ctx, policy, extents, sizes, extent) for extent in extents]
    return [Axis(a, e, n, scale, k) for k, (a, e, n) in enumerate(zip(chosen, extents, sizes, strict=True))]


def _quotient(size: Any, extent: Any) -> Any:
    return prim(size).astype("float32") / prim(extent).astype("float32")


def _kept_ratio(ctx: Context, policy: str, extents: list[Any], sizes: list[Any], extent: Any) -> Any:
    """round(extent * scale), halves up, where scale is the least (or largest) of all size / extent."""
    pick = minimum if policy == "not_larger" else maximum
    results = [
        floor_div(ctx.facts, 2 * extent * size + other, 2 * other) for size, other in zip(sizes, extents, strict=True)
    ]
    best = results[0]
    for result in results[1:]:
        best = pick(ctx.facts, best, result)
    return best


def _axes_of_scales(ctx: Context, dims: list[Any], chosen: list[int], scales: Value) -> list[Axis]:
    known = scales.known_elements()
    extents = [dims[a] for a in chosen]
    if known is None:
        sizes = _runtime_sizes(ctx, extents, scales)
        return [Axis(a, dims[a], size, 1.0, k) for k, (a, size) in enumerate(zip(chosen, sizes, strict=True))]
    items = list(known.reshape(-1))
    if len(items) != len(chosen):
        raise InvalidModelError(f"{ctx.label}: {len(items)} scales for {len(chosen)} axes")
    sizes = [_scaled(ctx, extent, scale) for extent, scale in zip(extents, items, strict=True)]
    return [Axis(a, dims[a], n, s, k) for k, (a, n, s) in enumerate(zip(chosen, sizes, items, strict=True))]


def _scaled(ctx: Context, extent: Any, scale: Any) -> Any:
    """floor(extent * scale); a float32 scale stands for the simplest fraction that rounds to it."""
    if is_symbolic(scale):
        return simplify(tirx.floor(prim(extent).astype("float32") * scale).astype("int64"), ctx.facts)
    if scale <= 0:
        raise InvalidModelError(f"{ctx.label}: a scale must be positive, got {scale}")
    exact = Fraction(scale)
    simple = exact.limit_denominator(1024)
    ratio = simple if np.float32(float(simple)) == np.float32(scale) else exact
    return floor_div(ctx.facts, extent * ratio.numerator, ratio.denominator)


def _runtime_sizes(ctx: Context, extents: list[Any], scales: Value) -> list[Any]:
    def scaled_sizes(s: te.Tensor, dims: list[Any]) -> te.Tensor:
        def at(k: Any) -> Any:
            extent = prim(dims[-1])
            for position in range(len(dims) - 2, -1, -1):
                extent = tirx.Select(k == position, prim(dims[position]), extent)
            return tirx.floor(extent.astype("float32") * s(k)).astype("int64")

        return te.compute([len(dims)], at, name="scaled_sizes")

    return list(ctx.elements(ctx.emit_te(scaled_sizes, ctx.tensor(scales), extents), signed=False))


def _is_identity(ctx: Context, axis: Axis, runtime_scales: Value | None) -> bool:
    if runtime_scales is not None or not ctx.facts.prove_equal(axis.extent, axis.size):
        return False
    return axis.scale is None or (isinstance(axis.scale, float) and axis.scale == 1.0)


# -- passes --------------------------------------------------------------------------------------------------


def _interpolate(ctx: Context, data: Value, sampling: Sampling, axes: list[Axis], operands: Operands) -> Value:
    cropping = sampling.coordinates == "tf_crop_and_resize"
    if sampling.mode == "nearest" and not cropping:
        factors = {a.axis: _repeats(ctx, sampling, a, operands) for a in axes}
        repeated = {axis: n for axis, n in factors.items() if n is not None}
        result = _repeat(ctx, data, repeated) if repeated else data
        return _gather(ctx, result, sampling, [a for a in axes if a.axis not in repeated], operands)
    dtype = data.dtype
    work = dtype if dtype in ("float32", "float64") else "float32"
    result = data if work == dtype else ctx.emit(relax.op.astype(ctx.tensor(data), work))
    for axis in axes:
        if sampling.mode == "nearest":
            result = _gather(ctx, result, sampling, [axis], operands)
        else:
            result = _pass(ctx, result, sampling, axis, operands)
        if cropping:
            result = _extrapolate(ctx, result, sampling, axis, operands)
    return result if work == dtype else _saturate(ctx, result, dtype)


def _repeats(ctx: Context, sampling: Sampling, axis: Axis, operands: Operands) -> int | None:
    """n where every element is just copied n times, whatever the extent."""
    centred = sampling.coordinates == "half_pixel" and sampling.nearest.startswith("round")
    if operands.scales is not None or not (
        centred or (sampling.coordinates, sampling.nearest) == ("asymmetric", "floor")
    ):
        return None
    if axis.scale is None:
        factor = divide_exact(axis.size, axis.extent)
        return factor if isinstance(factor, int) and factor > 0 else None
    whole = isinstance(axis.scale, float) and axis.scale == int(axis.scale)
    return int(axis.scale) if whole else None


def _repeat(ctx: Context, data: Value, factors: dict[int, int]) -> Value:
    """(h, w) -> (h, 1, w, 1) -> (h, 2, w, 2) -> (2h, 2w): no index arithmetic inside the kernel."""
    dims = ctx.shape(data)
    inner = [d for axis, dim in enumerate(dims) for d in ((dim, 1) if axis in factors else (dim,))]
    outer = [d for axis, dim in enumerate(dims) for d in ((dim, factors[axis]) if axis in factors else (dim,))]
    spread = ctx.expand(reshape(ctx, data, inner), outer)
    return reshape(ctx, spread, [product([dim, factors.get(axis, 1)]) for axis, dim in enumerate(dims)])


def _gather(ctx: Context, data: Value, sampling: Sampling, axes: Sequence[Axis], operands: Operands) -> Value:
    """Copy the nearest element along all axes at once."""
    if not axes:
        return data
    tables = [ctx.tensor(resampling.nearest_index(ctx, sampling, a, operands)) for a in axes]
    place = {a.axis: k for k, a in enumerate(axes)}

    def nearest(x: te.Tensor, indices: list[te.Tensor], shape: list[Any]) -> te.Tensor:
        def at(*index: Any) -> Any:
            return x(*[indices[place[k]](i) if k in place else i for k, i in enumerate(index)])

        return te.compute(shape, at, name="nearest")

    return ctx.emit_te(nearest, ctx.tensor(data), tables, _resized(ctx, data, axes))


def _resized(ctx: Context, data: Value, axes: Sequence[Axis]) -> list[Any]:
    sizes = {a.axis: a.size for a in axes}
    return [simplify_sum(ctx, sizes.get(k, d)) for k, d in enumerate(ctx.shape(data))]


def _pass(ctx: Context, data: Value, sampling: Sampling, axis: Axis, operands: Operands) -> Value:
    """Weigh the taps of one axis."""
    indices, weights = resampling.taps(ctx, sampling, axis, operands)

    def interpolate(x: te.Tensor, elements: te.Tensor, weight: te.Tensor, shape: list[Any]) -> te.Tensor:
        count = elements.shape[1]
        fixed = isinstance(count, tirx.IntImm) and count.value <= 8
        tap = te.reduce_axis((0, count), "t")

        def at(*index: Any) -> Any:
            y = index[axis.axis]

            def term(t: Any) -> Any:
                source = [elements(y, t) if k == axis.axis else i for k, i in enumerate(index)]
                return weight(y, t).astype(x.dtype) * x(*source)

            if not fixed:
                return te.sum(term(tap), axis=tap)
            return sum((term(t) for t in range(1, count.value)), start=term(0))

        return te.compute(shape, at, name="interpolate")

    operands_ = ctx.tensor(data), ctx.tensor(indices), ctx.tensor(weights)
    return ctx.emit_te(interpolate, *operands_, _resized(ctx, data, [axis]))


def _extrapolate(ctx: Context, data: Value, sampling: Sampling, axis: Axis, operands: Operands) -> Value:
    flags = resampling.outside(ctx, sampling, axis, operands)

    def extrapolate(x: te.Tensor, outside: te.Tensor) -> te.Tensor:
        value = tirx.const(sampling.extrapolation, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.Select(outside(i[axis.axis]), value, x(*i)), name="extrapolate")

    return ctx.emit_te(extrapolate, ctx.tensor(data), ctx.tensor(flags))


def _saturate(ctx: Context, data: Value, dtype: str) -> Value:
    """Integers take what fits, and lose the fraction."""
    tensor = ctx.tensor(data)
    if not dtype.startswith("float"):
        limits = np.iinfo(dtype)
        tensor = relax.op.clip(tensor, float(limits.min), float(limits.max))
    return ctx.emit(relax.op.astype(tensor, dtype))
