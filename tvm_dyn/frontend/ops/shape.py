"""Operators that only move or name data: shapes of results are symbol expressions, never run-time tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, te, tirx

from tvm_dyn.errors import InvalidModelError, UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import ceil_div, floor_div, maximum, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.slicing import clamp_index, strided_slice, wrap_index
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value, constant, symbols
from tvm_dyn.symbolic import divide_exact, simplify


def product(dims: Sequence[Any]) -> Any:
    result: Any = 1
    for dim in dims:
        result = result * dim
    return simplify(result)


def reshape(ctx: Context, value: Value, target: Sequence[Any]) -> Value:
    """View a tensor under another shape with the same number of elements (the caller knows that)."""
    return ctx.emit(relax.op.reshape(ctx.tensor(value), relax.ShapeExpr(list(target))))


@converter("Shape")
def shape(ctx: Context, node: Node) -> Value:
    dims = ctx.shape(node.data())
    start, end = node.attr("start", 0), node.attr("end", len(dims))
    return symbols(dims[start:end])


@converter("Size")
def size(ctx: Context, node: Node) -> Value:
    return symbols([product(ctx.shape(node.data()))], ())


@converter("Identity")
def identity(ctx: Context, node: Node) -> Value:
    return node.data()


@converter("Constant")
def constant_(ctx: Context, node: Node) -> Value:
    for name, value in node.attrs.items():
        if name == "value":
            return constant(onnx.numpy_helper.to_array(value))
        if name in ("value_float", "value_floats"):
            return constant(value, "float32")
        if name in ("value_int", "value_ints"):
            return constant(value, "int64")
    raise UnsupportedOperatorError(f"{node.label}: a constant of kind {', '.join(node.attrs)} is not supported")


@converter("Reshape")
def reshape_(ctx: Context, node: Node) -> Value:
    own = ctx.shape(node.data())
    raw = list(ctx.elements(node.data(1))) if len(node.inputs) > 1 else node.attr("shape")
    target = _resolve_copies(own, raw, node.attr("allowzero", 0))
    if any(isinstance(t, tvm.ir.Expr) and not ctx.facts.prove(t >= 0) for t in raw):
        target = ctx.opaque(_resolve_runtime_target(ctx, own, target))
    elif -1 in [t for t in target if isinstance(t, int)]:
        target = _resolve_rest(ctx, own, target)
    target = [simplify(t, ctx.facts) for t in target]
    ctx.require_equal(product(own), product(target), "the element counts before and after")
    return reshape(ctx, node.data(), target)


def _resolve_copies(own: list[Any], raw: Sequence[Any], allow_zero: int) -> list[Any]:
    return [own[i] if isinstance(t, int) and t == 0 and not allow_zero else t for i, t in enumerate(raw)]


def _resolve_rest(ctx: Context, own: list[Any], target: list[Any]) -> list[Any]:
    """Replace the one -1 by what the other extents leave."""
    position = [i for i, t in enumerate(target) if isinstance(t, int) and t == -1]
    if len(position) > 1:
        raise InvalidModelError(f"{ctx.label}: its target shape {target} has more than one -1")
    others = target[: position[0]] + target[position[0] + 1 :]
    # Extents that both sides share cancel first, so that a run-time extent of 0 leaves the rest defined.
    left = list(own)
    for dim in list(others):
        match = next((k for k, d in enumerate(left) if ctx.facts.prove_equal(d, dim)), None)
        if match is not None and not (isinstance(dim, int) and dim == 0):
            left.pop(match)
            others.remove(dim)
    total, rest = product(left), product(others)
    exact = divide_exact(total, rest)
    if exact is None:
        exact = floor_div(ctx.facts, total, maximum(ctx.facts, rest, 1))
    target[position[0]] = exact
    return target


def _resolve_runtime_target(ctx: Context, own: list[Any], target: list[Any]) -> list[Any]:
    """A target that only the run knows may hold 0 (copy) and -1 (rest) anywhere."""
    zero = tirx.const(0, "int64")
    target = [prim(t) for t in target]
    target = [tirx.Select(t == zero, prim(own[i]) if i < len(own) else zero, t) for i, t in enumerate(target)]
    known = product([tirx.Select(t < zero, tirx.const(1, "int64"), t) for t in target])
    rest = tirx.floordiv(prim(product(own)), tirx.max(prim(known), tirx.const(1, "int64")))
    return [tirx.Select(t < zero, rest, t) for t in target]


@converter("Flatten")
def flatten(ctx: Context, node: Node) -> Value:
    dims = ctx.shape(node.data())
    axis = node.attr("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return reshape(ctx, node.data(), [product(dims[:axis]), product(dims[axis:])])


def axes_of(ctx: Context, node: Node, position: int = 1) -> list[int] | None:
    """The axes of an operator: an attribute up to some version, a constant input from then on."""
    axes = node.attr("axes")
    if axes is None and node.input(position) is not None:
        axes = [int(a) for a in ctx.const(node.input(position), "its axes").reshape(-1)]
    return axes


@converter("Squeeze")
def squeeze(ctx: Context, node: Node) -> Value:
    dims = ctx.shape(node.data())
    axes = axes_of(ctx, node)
    if axes is None:
        axes = _axes_to_squeeze(ctx, node, dims)
    dropped = {a % len(dims) for a in axes}
    for axis in sorted(dropped):
        ctx.require_equal(dims[axis], 1, f"axis {axis}, which is squeezed, and 1")
    return reshape(ctx, node.data(), [d for i, d in enumerate(dims) if i not in dropped])


def _axes_to_squeeze(ctx: Context, node: Node, dims: list[Any]) -> list[int]:
    """All axes of extent 1; symbolic ones too where only then the result has the rank that the model declares."""
    ones = [i for i, d in enumerate(dims) if ctx.facts.prove_equal(d, 1)]
    open_axes = [i for i, d in enumerate(dims) if i not in ones and not isinstance(d, int)]
    rank = ctx.declared_ranks.get(node.outputs[0])
    return ones + open_axes if rank is not None and len(dims) - len(ones) - len(open_axes) == rank else ones


@converter("Unsqueeze")
def unsqueeze(ctx: Context, node: Node) -> Value:
    dims = ctx.shape(node.data())
    axes = axes_of(ctx, node) or []
    rank = len(dims) + len(axes)
    added, rest = {a % rank for a in axes}, iter(dims)
    return reshape(ctx, node.data(), [1 if i in added else next(rest) for i in range(rank)])


@converter("Transpose")
def transpose(ctx: Context, node: Node) -> Value:
    return ctx.emit(relax.op.permute_dims(ctx.tensor(node.data()), node.attr("perm")))


@converter("Expand")
def expand(ctx: Context, node: Node) -> Value:
    target = list(ctx.elements(node.data(1), signed=False))
    return ctx.expand(node.data(), ctx.broadcast_shape(ctx.shape(node.data()), target))


@converter("Tile", since=6)
def tile(ctx: Context, node: Node) -> Value:
    """(a, b) -> (1, a, 1, b) -> (r0, a, r1, b) -> (r0 a, r1 b): no index arithmetic inside the kernel."""
    dims, repeats = ctx.shape(node.data()), list(ctx.elements(node.data(1), signed=False))
    inner = [d for dim in dims for d in (1, dim)]
    outer = [d for repeat, dim in zip(repeats, dims, strict=True) for d in (repeat, dim)]
    repeated = ctx.expand(reshape(ctx, node.data(), inner), outer)
    return reshape(ctx, repeated, [product([r, d]) for r, d in zip(repeats, dims, strict=True)])


@converter("ConstantOfShape")
def constant_of_shape(ctx: Context, node: Node) -> Value:
    fill = onnx.numpy_helper.to_array(node.attr("value")) if "value" in node.attrs else np.zeros(1, "float32")
    dims = list(ctx.elements(node.data(), signed=False))
    if all(isinstance(d, int) for d in dims) and math.prod(dims) <= 64:
        return constant(np.full(dims, fill.reshape(-1)[0], fill.dtype))
    return ctx.emit(
        relax.op.full(relax.ShapeExpr(dims), relax.const(fill.reshape(()), str(fill.dtype)), str(fill.dtype))
    )


@converter("Concat", since=4)
def concat(ctx: Context, node: Node) -> Value:
    values = [v for v in node.inputs if v is not None]
    shapes = [ctx.shape(v) for v in values]
    axis = node.attr("axis", 0) % len(shapes[0])
    common = list(shapes[0])
    for other in shapes[1:]:
        for i, dim in enumerate(other):
            if i != axis:
                common[i] = ctx.require_equal(common[i], dim, f"dims at axis {i} of what is concatenated")
    aligned = [
        ctx.cast_shape(v, [s[i] if i == axis else d for i, d in enumerate(common)])
        for v, s in zip(values, shapes, strict=True)
    ]
    return ctx.emit(relax.op.concat([ctx.tensor(v) for v in aligned], axis))


@converter("Gather")
def gather(ctx: Context, node: Node) -> Value:
    """Indices count from the end when negative; beyond the axis they are clamped: no address leaves the tensor."""
    dims, index_dims = ctx.shape(node.data()), ctx.shape(node.data(1))
    axis = node.attr("axis", 0) % len(dims)
    known = node.data(1).known_elements()
    if known is not None and known.ndim == 0:
        begin = simplify(wrap_index(ctx, known.reshape(-1)[0], dims[axis]), ctx.facts)
        begins, lengths = [0] * len(dims), list(dims)
        begins[axis], lengths[axis] = clamp_index(ctx, begin, 0, dims[axis] - 1), 1
        kept = strided_slice(ctx, node.data(), begins, lengths, [1] * len(dims))
        return reshape(ctx, kept, dims[:axis] + dims[axis + 1 :])

    def take(x: te.Tensor, indices: te.Tensor, extents: list[Any]) -> te.Tensor:
        extent = x.shape[axis]

        def at(*position: Any) -> Any:
            index = indices(*position[axis : axis + len(indices.shape)]).astype("int64")
            index = tirx.Select(index < 0, index + extent, index)
            index = tirx.max(tirx.min(index, extent - 1), tirx.const(0, "int64"))
            return x(*position[:axis], index, *position[axis + len(indices.shape) :])

        return te.compute(extents, at, name="take")

    extents = dims[:axis] + index_dims + dims[axis + 1 :]
    return ctx.emit_te(take, ctx.tensor(node.data()), ctx.tensor(node.data(1)), extents)


@converter("Range")
def range_(ctx: Context, node: Node) -> Value:
    dtype = node.data().dtype
    if "float" in dtype:
        return _float_range(ctx, node, dtype)
    start, limit, delta = (ctx.scalar(node.data(k)) for k in range(3))
    if isinstance(delta, int):
        span = limit - start if delta > 0 else start - limit
        length = maximum(ctx.facts, ceil_div(ctx.facts, span, abs(delta)), 0)
    else:
        length = tirx.max(tirx.const(0, "int64"), tirx.ceildiv(prim(limit - start), delta))

    def arange(first: Any, step: Any, extent: Any) -> te.Tensor:
        return te.compute((extent,), lambda i: (prim(first) + i * step).astype(dtype), name="arange")

    return ctx.emit_te(arange, start, delta, length)


def _float_range(ctx: Context, node: Node, dtype: str) -> Value:
    bounds = [relax.op.reshape(ctx.tensor(node.data(k)), ()) for k in range(3)]
    start, limit, delta = (ctx.bb.emit(b) for b in bounds)
    count = relax.op.astype(relax.op.ceil(relax.op.divide(relax.op.subtract(limit, start), delta)), "int64")
    length = ctx.scalar(ctx.emit(relax.op.maximum(count, relax.const(0, "int64"))), signed=False)

    def arange(first: te.Tensor, step: te.Tensor, extent: Any) -> te.Tensor:
        return te.compute((extent,), lambda i: first() + i.astype(dtype) * step(), name="arange")

    return ctx.emit_te(arange, start, delta, length)
