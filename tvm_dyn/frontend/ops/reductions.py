"""Reductions, softmax and running sums: right over empty extents too, where a reduction gives its neutral element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.loop_kernel import emit_loops, loop_nest
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.shape import axes_of, product, reshape
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value
from tvm_dyn.schedules import emit

op = relax.op

_NARROW_FLOATS = ("float16", "bfloat16")


def reduced_axes(ctx: Context, node: Node) -> list[int] | None:
    """The axes in order, none at all as an empty list; None where the operator is to do nothing."""
    rank, axes = ctx.rank(node.data()), axes_of(ctx, node)
    if axes:
        return sorted({a % rank for a in axes})
    return None if node.attr("noop_with_empty_axes", 0) else list(range(rank))


@converter("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin")
def reduce_plain(ctx: Context, node: Node) -> Value:
    axes = reduced_axes(ctx, node)
    if axes is None or not ctx.rank(node.data()):
        return node.data()
    return emit_reduce(ctx, node.op_type, node.data(), axes, bool(node.attr("keepdims", 1)))


def emit_reduce(ctx: Context, op_type: str, value: Value, axes: list[int], keepdims: bool) -> Value:
    """ReduceSum, ReduceMean, ReduceProd, ReduceMax or ReduceMin; half precision is summed in float32."""
    dtype = value.dtype
    wide = "float32" if dtype in _NARROW_FLOATS else "int32" if dtype == "bool" else dtype
    x = _cast(ctx, value, wide)
    dims = ctx.shape(x)
    if any(isinstance(d, int) and d == 0 for k, d in enumerate(dims) if k not in axes):
        rest = [1 if k in axes else d for k, d in enumerate(dims) if keepdims or k not in axes]
        return ctx.emit_te(_nothing, ctx.tensor(value), rest)
    functions = {"ReduceSum": op.sum, "ReduceProd": op.prod, "ReduceMax": op.max, "ReduceMin": op.min}
    if op_type == "ReduceMean":
        total = ctx.emit(op.sum(ctx.tensor(x), axes, keepdims))
        return _cast(ctx, _divided(ctx, total, product([ctx.shape(x)[a] for a in axes])), dtype)
    result = ctx.emit(functions[op_type](ctx.tensor(x), axes, keepdims))
    if dtype == "bool":
        return ctx.emit(op.greater(ctx.tensor(result), relax.const(0, wide)))
    return _cast(ctx, result, dtype)


def _nothing(x: te.Tensor, extents: list[Any]) -> te.Tensor:
    """A tensor without elements; it takes `x` for show, as TVM cannot store a constant without elements."""
    return te.compute(extents, lambda *_: x(*[tirx.const(0, "int64")] * len(x.shape)), name="nothing")


def _divided(ctx: Context, total: Value, count: Any) -> Value:
    """total / count with a symbolic count; 0 / 0 is NaN, or 0 for integers."""
    dtype = total.dtype

    def mean(x: te.Tensor, extent: Any) -> te.Tensor:
        def at(*i: Any) -> Any:
            if "float" in dtype:
                return x(*i) / tirx.Cast(dtype, _prim(extent))
            return tirx.truncdiv(x(*i), tirx.max(_prim(extent), tirx.const(1, "int64")).astype(dtype))

        return te.compute(x.shape, at, name="mean")

    return ctx.emit_te(mean, ctx.tensor(total), count)


_BEFORE: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "ReduceL1": op.abs,
    "ReduceL2": lambda x: op.multiply(x, x),
    "ReduceSumSquare": lambda x: op.multiply(x, x),
    "ReduceLogSum": lambda x: x,
}
_AFTER: dict[str, Callable[[relax.Expr], relax.Expr]] = {"ReduceL2": op.sqrt, "ReduceLogSum": op.log}


@converter(*_BEFORE)
def reduce_norm(ctx: Context, node: Node) -> Value:
    """The sum of a function of the elements, then a function of that; without axes only the functions."""
    axes, dtype = reduced_axes(ctx, node), node.data().dtype
    after = _AFTER.get(node.op_type)
    work = "float32" if dtype in _NARROW_FLOATS or (after and "int" in dtype) else dtype
    x = ctx.emit(_BEFORE[node.op_type](ctx.tensor(_cast(ctx, node.data(), work))))
    if axes:
        x = ctx.emit(op.sum(ctx.tensor(x), axes, bool(node.attr("keepdims", 1))))
    return _cast(ctx, ctx.emit(after(ctx.tensor(x))) if after else x, dtype)


@converter("ReduceLogSumExp")
def reduce_log_sum_exp(ctx: Context, node: Node) -> Value:
    """log(sum(exp(x - max))) + max; where max is not finite (also over nothing) it is the result as it stands."""
    axes, dtype = reduced_axes(ctx, node), node.data().dtype
    if not axes:
        return node.data()
    x = _cast(ctx, node.data(), dtype if dtype in ("float32", "float64") else "float32")
    largest = emit_reduce(ctx, "ReduceMax", x, axes, True)
    finite = ctx.elementwise("finite_max", _finite_or_zero, largest)
    shifted = ctx.emit(op.exp(op.subtract(*ctx.align(x, finite)[0])))
    total = emit_reduce(ctx, "ReduceSum", shifted, axes, True)
    result = ctx.elementwise("log_sum_exp", lambda s, m: tirx.log(s) + m, total, finite)
    return _cast(ctx, result if node.attr("keepdims", 1) else _without(ctx, result, axes), dtype)


def _finite_or_zero(x: Any) -> Any:
    bound = tirx.max_value(x.ty.dtype)
    return tirx.Select(tirx.abs(x) <= bound, x, tirx.const(0, x.ty.dtype))


def _without(ctx: Context, value: Value, axes: Sequence[int]) -> Value:
    return reshape(ctx, value, [d for k, d in enumerate(ctx.shape(value)) if k not in axes])


# -- positions of extremes -----------------------------------------------------------------------------------


@converter("ArgMax", "ArgMin")
def arg_extreme(ctx: Context, node: Node) -> Value:
    dims = ctx.shape(node.data())
    axis = node.attr("axis", 0) % len(dims)
    last, largest = bool(node.attr("select_last_index", 0)), node.op_type == "ArgMax"
    result = emit_arg(ctx, node.data(), axis, largest, last)
    kept = [1 if k == axis else d for k, d in enumerate(dims)]
    return reshape(ctx, result, kept) if node.attr("keepdims", 1) else result


def emit_arg(ctx: Context, value: Value, axis: int, largest: bool, last: bool) -> Value:
    """The position of the largest (smallest) element, of several equal ones the first or the last, without the axis."""

    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        # ties between partial results are decided by position, so that any order of reduction gives the same
        tie = (a[1] == b[1]) & ((a[0] > b[0]) if last else (a[0] < b[0]))
        strictly = a[1] > b[1] if largest else a[1] < b[1]
        first = strictly | tie
        return tirx.Select(first, a[0], b[0]), tirx.Select(first, a[1], b[1])

    def start(index_dtype: str, value_dtype: str) -> tuple[Any, Any]:
        worst = tirx.min_value(value_dtype) if largest else tirx.max_value(value_dtype)
        return tirx.const(-1 if last else 2**62, index_dtype), worst

    reducer = te.comm_reducer(combine, start, name="arg_reduce")

    def positions(x: te.Tensor) -> list[te.Tensor]:
        k = te.reduce_axis((0, x.shape[axis]), name="k")
        extents = [d for a, d in enumerate(x.shape) if a != axis]

        def at(*i: Any) -> Any:
            return reducer((k.var, x(*i[:axis], k, *i[axis:])), axis=k)

        return te.compute(extents, at, name="arg_extreme")

    wide = _cast(ctx, value, "float32" if value.dtype in _NARROW_FLOATS else value.dtype)
    bound = ctx.bb.emit(ctx.bb.call_te(positions, ctx.tensor(wide), primfunc_name_hint="arg_extreme"))
    return ctx.emit(relax.TupleGetItem(bound, 0))


# -- softmax -------------------------------------------------------------------------------------------------


@converter("Softmax", "LogSoftmax", since=13)
def softmax(ctx: Context, node: Node) -> Value:
    return _softmax(ctx, node, node.data(), node.attr("axis", -1))


@converter("Softmax", "LogSoftmax", until=12)
def softmax_flat(ctx: Context, node: Node) -> Value:
    """Before opset 13: all axes from `axis` on count as one."""
    return _on_rows(ctx, node, lambda rows: _softmax(ctx, node, rows, 1))


def _softmax(ctx: Context, node: Node, x: Value, axis: int) -> Value:
    function = op.nn.softmax if node.op_type == "Softmax" else op.nn.log_softmax
    dtype = x.dtype
    if not ctx.rank(x):
        return reshape(ctx, _softmax(ctx, node, reshape(ctx, x, [1]), 0), [])
    wide = _cast(ctx, x, "float32" if dtype in _NARROW_FLOATS else dtype)
    return _cast(ctx, ctx.emit(function(ctx.tensor(wide), axis % ctx.rank(x))), dtype)


@converter("Hardmax", since=13)
def hardmax(ctx: Context, node: Node) -> Value:
    return _hardmax(ctx, node, node.data(), node.attr("axis", -1))


@converter("Hardmax", until=12)
def hardmax_flat(ctx: Context, node: Node) -> Value:
    return _on_rows(ctx, node, lambda rows: _hardmax(ctx, node, rows, 1))


def _hardmax(ctx: Context, node: Node, x: Value, axis: int) -> Value:
    """1 at the first largest element along the axis, 0 elsewhere."""
    axis %= ctx.rank(x)
    places = emit_arg(ctx, x, axis, True, False)

    def mark(data: te.Tensor, best: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            return tirx.Select(
                best(*i[:axis], *i[axis + 1 :]) == i[axis], tirx.const(1, x.dtype), tirx.const(0, x.dtype)
            )

        return te.compute(data.shape, at, name="hardmax")

    return ctx.emit_te(mark, ctx.tensor(x), ctx.tensor(places))


def _on_rows(ctx: Context, node: Node, function: Callable[[Value], Value]) -> Value:
    dims = ctx.shape(node.data())
    axis = node.attr("axis", 1) % max(len(dims), 1)
    rows = reshape(ctx, node.data(), [product(dims[:axis]), product(dims[axis:])])
    return reshape(ctx, function(rows), dims)


# -- running sums --------------------------------------------------------------------------------------------


@converter("CumSum", "CumProd")
def cumulate(ctx: Context, node: Node) -> Value:
    """Running sum or product along an axis given by a constant; `exclusive` leaves the own element out."""
    x, dims = node.data(), ctx.shape(node.data())
    axis = int(ctx.const(node.data(1), "its axis").reshape(-1)[0]) % len(dims)
    exclusive, backwards = node.attr("exclusive", 0), node.attr("reverse", 0)
    neutral = tirx.const(0 if node.op_type == "CumSum" else 1, x.dtype)

    def body(inputs: list[Any], outputs: list[Any]) -> tirx.Stmt:
        (source,), (result,) = inputs, outputs

        def joined(a: Any, b: Any) -> Any:
            return a + b if node.op_type == "CumSum" else a * b

        def visit(place: Sequence[Any]) -> tirx.Stmt:
            step, extent = place[axis], result.shape[axis]

            def at(position: Any) -> list[Any]:
                return [*place[:axis], extent - 1 - position if backwards else position, *place[axis + 1 :]]

            before = emit.load(result, *at(step - 1))
            entering = emit.load(source, *at(step - 1 if exclusive else step))
            first = neutral if exclusive else emit.load(source, *at(step))
            # the value is read only where there is an element before, hence a branch and no Select
            return tirx.IfThenElse(
                step > 0,
                emit.store(result, joined(before, entering), *at(step)),
                emit.store(result, first, *at(step)),
            )

        return loop_nest(result.shape, visit)

    return emit_loops(ctx, node.op_type.lower(), [x], [(dims, x.dtype)], body)[0]


# -- helpers -------------------------------------------------------------------------------------------------


def _cast(ctx: Context, value: Value, dtype: str) -> Value:
    return value if value.dtype == dtype else ctx.emit(op.astype(ctx.tensor(value), dtype))


def _prim(dim: Any) -> Any:
    return tirx.const(dim, "int64") if isinstance(dim, int) else dim
