"""Operators that pick or place elements by run-time indices: every computed address is clamped to its tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.loop_kernel import emit_loops, loop_nest
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.ops.slicing import strided_slice
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value
from tvm_dyn.schedules import emit

op = relax.op


def inside(index: Any, extent: Any) -> Any:
    """An index that counts from the end when negative, clamped to [0, extent)."""
    index = index.astype("int64")
    index = tirx.Select(index < 0, index + extent, index)
    return tirx.max(tirx.min(index, extent - 1), tirx.const(0, "int64"))


# -- pick ----------------------------------------------------------------------------------------------------


@converter("GatherElements")
def gather_elements(ctx: Context, node: Node) -> Value:
    """result[i][j] = data[index[i][j]][j] along `axis`."""
    dims, axis = ctx.shape(node.data(1)), node.attr("axis", 0) % ctx.rank(node.data())

    def gather_elements(data: te.Tensor, indices: te.Tensor, extents: list[Any]) -> te.Tensor:
        def at(*i: Any) -> Any:
            return data(*i[:axis], inside(indices(*i), data.shape[axis]), *i[axis + 1 :])

        return te.compute(extents, at, name="gather_elements")

    return ctx.emit_te(gather_elements, ctx.tensor(node.data()), ctx.tensor(node.data(1)), dims)


@converter("GatherND")
def gather_nd(ctx: Context, node: Node) -> Value:
    """The last axis of the indices holds positions in the leading axes of the data, behind `batch_dims` shared ones."""
    batch, dims, index_dims = node.attr("batch_dims", 0), ctx.shape(node.data()), ctx.shape(node.data(1))
    depth = index_dims[-1]
    if not isinstance(depth, int):
        raise InvalidModelError(f"{node.label}: the last dim of its indices must be a fixed number")
    extents = [*index_dims[:-1], *dims[batch + depth :]]

    def gather_nd(data: te.Tensor, indices: te.Tensor, extents: list[Any]) -> te.Tensor:
        def at(*i: Any) -> Any:
            place = i[: len(index_dims) - 1]
            picked = [inside(indices(*place, tirx.const(k, "int64")), data.shape[batch + k]) for k in range(depth)]
            return data(*i[:batch], *picked, *i[len(place) :])

        return te.compute(extents, at, name="gather_nd")

    return ctx.emit_te(gather_nd, ctx.tensor(node.data()), ctx.tensor(node.data(1)), extents)


@converter("OneHot", since=9)
def one_hot(ctx: Context, node: Node) -> Value:
    """Depth may be symbolic or known only at run time; indices outside [-depth, depth) give a row of off values."""
    dims, values = ctx.shape(node.data()), node.data(2)
    depth = _whole(ctx.scalar(node.data(1), signed=False))
    axis = node.attr("axis", -1) % (len(dims) + 1)
    extents = [*dims[:axis], depth, *dims[axis:]]

    def one_hot(indices: te.Tensor, pair: te.Tensor, size: Any, extents: list[Any]) -> te.Tensor:
        def at(*i: Any) -> Any:
            index = indices(*i[:axis], *i[axis + 1 :]).astype("int64")
            index = tirx.Select(index < 0, index + size, index)
            return tirx.Select(index == i[axis], pair(1), pair(0))

        return te.compute(extents, at, name="one_hot")

    return ctx.emit_te(one_hot, ctx.tensor(node.data()), ctx.tensor(values), depth, extents)


def _whole(number: Any) -> Any:
    """The depth, which may come as a float."""
    return number.astype("int64") if isinstance(number, tvm.ir.Expr) else int(number)


@converter("Trilu")
def trilu(ctx: Context, node: Node) -> Value:
    """The triangle above (or below) diagonal k of the last two axes; zeros elsewhere."""
    shift = 0 if node.input(1) is None else ctx.scalar(node.data(1))
    upper, dtype = node.attr("upper", 1), node.data().dtype

    def trilu(x: te.Tensor, k: Any) -> te.Tensor:
        def at(*i: Any) -> Any:
            kept = i[-1] - i[-2] >= k if upper else i[-1] - i[-2] <= k
            return tirx.Select(kept, x(*i), tirx.const(0, dtype))

        return te.compute(x.shape, at, name="trilu")

    return ctx.emit_te(trilu, ctx.tensor(node.data()), shift)


@converter("EyeLike")
def eye_like(ctx: Context, node: Node) -> Value:
    from tvm_dyn.frontend.importer import dtype_name

    rows, columns = ctx.shape(node.data())
    shift = node.attr("k", 0)
    dtype = dtype_name(node.attr("dtype"), "result") if node.attr("dtype") else node.data().dtype

    def eye(extents: list[Any]) -> te.Tensor:
        return te.compute(extents, lambda i, j: (j - i == shift).astype(dtype), name="eye")

    return ctx.emit_te(eye, [rows, columns])


@converter("ReverseSequence")
def reverse_sequence(ctx: Context, node: Node) -> Value:
    """The first `length` entries along time are reversed, for each entry of the batch axis."""
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)

    def reverse_sequence(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            length = tirx.min(lengths(i[batch]).astype("int64"), x.shape[time])
            step = tirx.Select(i[time] < length, length - 1 - i[time], i[time])
            return x(*[tirx.max(step, tirx.const(0, "int64")) if k == time else d for k, d in enumerate(i)])

        return te.compute(x.shape, at, name="reverse_sequence")

    return ctx.emit_te(reverse_sequence, ctx.tensor(node.data()), ctx.tensor(node.data(1)))


# -- sort ----------------------------------------------------------------------------------------------------


@converter("TopK")
def top_k(ctx: Context, node: Node) -> list[Value]:
    """The k largest or smallest along an axis; k may be a symbol or known only at run time."""
    dims = ctx.shape(node.data())
    axis = node.attr("axis", -1) % len(dims)
    k = node.attr("k") if node.opset < 10 else ctx.scalar(node.data(1), signed=False)
    if isinstance(k, int) and isinstance(dims[axis], int) and k > dims[axis]:
        raise InvalidModelError(f"{node.label}: k = {k} exceeds the axis of {dims[axis]}")
    ctx.require(_prim(k) <= _prim(dims[axis]), [k, dims[axis]], f"{node.label}: k must not exceed the axis")
    x, narrow = node.data(), node.data().dtype
    if narrow not in _SORTABLE:
        wide = "float32" if "float" in narrow else "int64" if narrow.startswith("uint") else "int32"
        x = ctx.emit(op.astype(ctx.tensor(x), wide))
    order = ctx.emit(op.argsort(ctx.tensor(x), axis, bool(node.attr("largest", 1)), "int64"))
    lengths = [k if a == axis else d for a, d in enumerate(dims)]
    zeros = [0] * len(dims)
    picked = strided_slice(ctx, order, zeros, lengths, [1] * len(dims))

    def take(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            return data(*i[:axis], inside(indices(*i), data.shape[axis]), *i[axis + 1 :])

        return te.compute(indices.shape, at, name="take_along")

    return [ctx.emit_te(take, ctx.tensor(node.data()), ctx.tensor(picked)), picked]


_SORTABLE = ("float32", "float64", "int32", "int64")


def _prim(dim: Any) -> Any:
    return tirx.const(dim, "int64") if isinstance(dim, int) else dim


# -- place ---------------------------------------------------------------------------------------------------

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": lambda old, new: tirx.max(old, new),
    "min": lambda old, new: tirx.min(old, new),
}


@converter("ScatterElements", "Scatter")
def scatter_elements(ctx: Context, node: Node) -> Value:
    """data with data[index[i][j]][j] = updates[i][j] along `axis`; one update after the other."""
    axis = node.attr("axis", 0) % ctx.rank(node.data())

    def target(indices: Any, place: Sequence[Any], extents: Sequence[Any]) -> list[Any]:
        index = inside(emit.load(indices, *place), extents[axis])
        return [index if k == axis else i for k, i in enumerate(place)]

    return _scatter(ctx, node, target, ctx.shape(node.data(1)))


@converter("ScatterND")
def scatter_nd(ctx: Context, node: Node) -> Value:
    """data with data[indices[i]] = updates[i], where an index names a position in the leading axes."""
    index_dims, dims = ctx.shape(node.data(1)), ctx.shape(node.data())
    outer = len(index_dims) - 1
    depth = outer + len(dims) - ctx.rank(node.data(2))
    ctx.require_equal(index_dims[-1], depth, "the last dim of the indices and the axes that they name")

    def target(indices: Any, place: Sequence[Any], extents: Sequence[Any]) -> list[Any]:
        picked = [inside(emit.load(indices, *place[:outer], k), extents[k]) for k in range(depth)]
        return [*picked, *place[outer:]]

    return _scatter(ctx, node, target, [*index_dims[:-1], *dims[depth:]])


def _scatter(ctx: Context, node: Node, target: Callable[..., list[Any]], extents: list[Any]) -> Value:
    combine = _COMBINE[node.attr("reduction", "none")]
    data, indices, updates = (node.data(k) for k in range(3))
    for own, wanted in zip(ctx.shape(updates), extents, strict=True):
        ctx.require_equal(own, wanted, "the dims of the updates and those that the indices give")
    updates = ctx.cast_shape(updates, extents)

    def body(inputs: list[Any], outputs: list[Any]) -> tirx.Stmt:
        source, index_buffer, new = inputs
        (result,) = outputs

        def update(place: Sequence[Any]) -> tirx.Stmt:
            where = target(index_buffer, place, result.shape)
            value = emit.load(new, *place)
            return emit.store(result, combine(emit.load(result, *where), value), *where)

        copy = loop_nest(result.shape, lambda place: emit.store(result, emit.load(source, *place), *place))
        return emit.seq(copy, loop_nest(new.shape, update))

    return emit_loops(ctx, "scatter", [data, indices, updates], [(ctx.shape(data), data.dtype)], body)[0]


# -- data-dependent extents ----------------------------------------------------------------------------------


@converter("NonZero")
def non_zero(ctx: Context, node: Node) -> Value:
    """Positions of the elements that are not zero, as columns of a (rank, count) matrix in row-major order."""
    x, dims = node.data(), ctx.shape(node.data())
    if not dims:
        x, dims = reshape(ctx, x, [1]), [1]
    count = _count(ctx, x)

    def body(inputs: list[Any], outputs: list[Any]) -> tirx.Stmt:
        (source,), (result, cursor) = inputs, outputs

        def visit(place: Sequence[Any]) -> tirx.Stmt:
            at = emit.load(cursor, 0)
            stores = [emit.store(result, i, axis, at) for axis, i in enumerate(place)]
            found = _is_set(emit.load(source, *place)) & (at < result.shape[1])
            return tirx.IfThenElse(found, emit.seq(*stores, emit.store(cursor, at + 1, 0)), None)

        return emit.seq(emit.store(cursor, tirx.const(0, "int64"), 0), loop_nest(source.shape, visit))

    outputs = [([len(dims), count], "int64"), ([1], "int64")]
    return emit_loops(ctx, "nonzero", [x], outputs, body)[0]


@converter("Compress")
def compress(ctx: Context, node: Node) -> Value:
    """The slices along `axis` (of the flat tensor without one) where the condition holds."""
    x, condition, axis = node.data(), node.data(1), node.attr("axis")
    if axis is None:
        x, axis = reshape(ctx, x, [product(ctx.shape(x))]), 0
    dims = ctx.shape(x)
    axis %= len(dims)
    positions = non_zero(ctx, _with_inputs(node, [condition]))
    count = ctx.shape(positions)[1]
    extents = [count if k == axis else d for k, d in enumerate(dims)]

    def compress(data: te.Tensor, places: te.Tensor, extents: list[Any]) -> te.Tensor:
        def at(*i: Any) -> Any:
            place = inside(places(tirx.const(0, "int64"), i[axis]), data.shape[axis])
            return data(*i[:axis], place, *i[axis + 1 :])

        return te.compute(extents, at, name="compress")

    return ctx.emit_te(compress, ctx.tensor(x), ctx.tensor(positions), extents)


def _with_inputs(node: Node, inputs: list[Value | None]) -> Node:
    return Node(node.proto, inputs, node.opset)


def _is_set(value: Any) -> Any:
    dtype = str(value.ty.dtype)
    return value if dtype == "bool" else value != tirx.const(0, dtype)


def _count(ctx: Context, x: Value) -> Any:
    """The number of elements that are not zero, as a symbol."""

    def count(inputs: list[Any], outputs: list[Any]) -> tirx.Stmt:
        (source,), (total,) = inputs, outputs

        def visit(place: Sequence[Any]) -> tirx.Stmt:
            found = _is_set(emit.load(source, *place)).astype("int64")
            return emit.store(total, emit.load(total, 0) + found, 0)

        return emit.seq(emit.store(total, tirx.const(0, "int64"), 0), loop_nest(source.shape, visit))

    return ctx.scalar(emit_loops(ctx, "count", [x], [([1], "int64")], count)[0], signed=False)
