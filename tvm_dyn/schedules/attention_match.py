"""Recognise attention in the nests of a function: softmax(f(Q K^T)) V, whatever surrounds the products.

    S[b, h, q, k] = sum(d, Q[b, h, q, d] * K[b, h, k, d])
    W = softmax over k of f(S, other inputs)            # scales, masks: f is any function of one score
    O[b, h, q, j] = sum(k, W[b, h, q, k] * V[b, h, k, j])
    --->
    Attention(batch=[b, h], query=q, column=j, key=k, depth=d, q=Q[..], k=K[..], v=V[..], score=f(raw), ..)

Nothing but the structure counts: the argument of the maximum, of the exponential and of the sum must be the
same expression of the first product. What follows the second product is read from its output: the axes of the
last nest become the axes of the kernel, split where the nest takes quotients of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Expr
from tvm.tirx import BufferStore, IterVar, PrimFunc

from tvm_dyn.schedules.common import as_int, collect, loads, same_exprs, substitute, uses_var
from tvm_dyn.schedules.composition import Composition
from tvm_dyn.schedules.indices import simplify_quotients
from tvm_dyn.schedules.stage import Stage, parse


@dataclass(frozen=True)
class Attention:
    """Attention in terms of the axes of its output: ``batch``, ``query`` and ``column``.

    q(batch, query, depth), k(batch, key, depth) and v(batch, key, column) are what the products multiply;
    ``score`` is the argument of the softmax as a function of the variable ``raw``, the first product.
    ``store`` writes one output element as a function of the variable ``result``, the second product.
    ``hidden_to_zero``: rows whose scores are all -inf give 0; ``nan_to_zero``: so do rows with NaN.
    ``before``: names of the nests that are not part of the kernel and run before it.
    """

    batch: list[IterVar]
    query: IterVar
    column: IterVar
    key: IterVar
    depth: IterVar
    q: Expr
    k: Expr
    v: Expr
    raw: tirx.Var
    score: Expr
    result: tirx.Var
    store: BufferStore
    hidden_to_zero: bool
    nan_to_zero: bool
    before: list[str]


class _Mismatch(Exception):
    """The function is something else."""


def _require(condition) -> None:
    if not condition:
        raise _Mismatch


def _one(items: list):
    _require(len(items) == 1)
    return items[0]


def match(func: PrimFunc) -> Attention | None:
    """The attention that ``func`` computes, None where it computes anything else or more."""
    stages = parse(func)
    if stages is None or len([s for s in stages if s.reduction]) != 4:
        return None
    try:
        return _match(stages, list(func.params))
    except _Mismatch:
        return None


def _match(stages: list[Stage], params: list) -> Attention:
    for stage in stages:
        _require(isinstance(stage.body, BufferStore) and len(stage.reduction) <= 1)
    written = [s for s in stages if any(s.body.buffer.same_as(p) for p in params)]
    out, graph = _one(written), Composition(stages)
    first, highest, total, second = (s for s in stages if s.reduction)
    depth, key = first.reduction[0], second.reduction[0]
    axes, at, store, result = _output(out, second, graph)

    def in_axes(expr: Expr, point: dict) -> Expr:
        return simplify_quotients(substitute(graph.expand(expr), point), [*axes, key, depth])

    left, right = (in_axes(factor, at) for factor in _factors(second))
    weights, v = (left, right) if _loads_of(left, total) else (right, left)
    weights, zero = _without_guard(weights)
    exponent = _softmax_argument(weights, total)
    score_load = _same_load(exponent, first)
    for stage, expected in ((highest, exponent.a), (total, weights.a)):
        load = _same_load(weights, stage)
        point = _point(stage, load) | {stage.reduction[0].var: key.var}
        _require(_equal_extents(stage.reduction[0], key))
        _require(tvm_ffi.structural_equal(in_axes(_term(stage), point), expected))
    q, k = (in_axes(factor, _point(first, score_load)) for factor in _factors(first))
    if uses_var(q, [key.var]):
        q, k = k, q
    _require(not uses_var(q, [key.var]) and uses_var(k, [key.var]))
    column = _one([iv for iv in axes if uses_var(v, [iv.var]) and not uses_var([weights, q, k], [iv.var])])
    rows = [iv for iv in axes if uses_var(q, [iv.var]) and not uses_var([k, v], [iv.var])]
    _require(rows and not uses_var([exponent, v], [depth.var]))
    _require(as_int(depth.dom.extent) and as_int(column.dom.extent))
    _require(all(str(x.ty) == "float32" for x in (q, k, v, exponent)))
    raw = tirx.Var("raw", str(first.body.buffer.dtype))
    (q, q_factor), (k, k_factor), (v, v_factor) = (
        _without_factor(q, depth),
        _without_factor(k, depth),
        _without_factor(v, key),
    )
    score = _exchange(exponent.a, first, raw * (q_factor * k_factor))
    return Attention(
        [iv for iv in axes if iv is not rows[-1] and iv is not column],
        rows[-1],
        column,
        key,
        depth,
        q,
        k,
        v,
        raw,
        _with_reciprocals(score, [raw, key.var]),
        result,
        BufferStore(store.buffer, substitute(store.value, {result: result * v_factor}), store.indices),
        zero != "",
        zero == "nan",
        [s.name for s in graph.kept if s is not out],
    )


# -- the products and the softmax -------------------------------------------------------------------------------


def _factors(stage: Stage) -> tuple[Expr, Expr]:
    value = _term(stage)
    _require(isinstance(value, tirx.Mul) and isinstance(stage.body.value, tirx.Add))
    return value.a, value.b


def _term(stage: Stage) -> Expr:
    """What a reduction accumulates, for accumulators that are indexed by the spatial axes."""
    store = stage.body
    _require(same_exprs(list(store.indices), [iv.var for iv in stage.spatial]))
    _require(isinstance(store.value, (tirx.Add, tirx.Max)))
    own = _loads_of(store.value.a, stage)
    _require(len(own) == 1 and own[0].same_as(store.value.a) and not _loads_of(store.value.b, stage))
    return store.value.b


def _loads_of(expr, stage: Stage) -> list:
    return [load for load in loads(expr) if load.source.same_as(stage.body.buffer)]


def _same_load(expr, stage: Stage):
    """The load of what ``stage`` computes, None but one in ``expr``."""
    found = _loads_of(expr, stage)
    _require(found and all(same_exprs(list(ld.indices), list(found[0].indices)) for ld in found))
    return found[0]


def _point(stage: Stage, load) -> dict:
    return {iv.var: index for iv, index in zip(stage.spatial, load.indices, strict=True)}


def _exchange(expr: Expr, stage: Stage, by: Expr) -> Expr:
    """``expr`` with ``by`` in place of what ``stage`` computes."""
    return tvm_ffi.structural_map(
        expr, (tvm.ir.TensorLoad, lambda load: by if load.source.same_as(stage.body.buffer) else load)
    )


def _equal_extents(axis: IterVar, other: IterVar) -> bool:
    return sym.Analyzer().can_prove_equal(axis.dom.extent, other.dom.extent)


def _softmax_argument(weights: Expr, total: Stage) -> tirx.Sub:
    """``x - max`` of ``exp(x - max) / sum``."""
    _require(isinstance(weights, tirx.Div) and isinstance(weights.b, tvm.ir.TensorLoad))
    _require(weights.b.source.same_as(total.body.buffer) and _is_call(weights.a, "exp"))
    exponent = weights.a.args[0]
    _require(isinstance(exponent, tirx.Sub) and isinstance(exponent.b, tvm.ir.TensorLoad))
    return exponent


def _without_factor(operand: Expr, axis: IterVar) -> tuple[Expr, Expr]:
    """``(rest, factor)`` of an operand ``rest * factor``, where the factor leaves the sum over ``axis``."""
    factor: Expr = tirx.const(1, str(operand.ty))
    while isinstance(operand, (tirx.Mul, tirx.Div)):
        left, right = operand.a, operand.b
        if isinstance(operand, tirx.Mul) and not uses_var(left, [axis.var]):
            left, right = right, left
        if uses_var(right, [axis.var]):
            break
        factor = factor * right if isinstance(operand, tirx.Mul) else factor / right
        operand = left
    return operand, factor


def _with_reciprocals(score: Expr, variables: list[tirx.Var]) -> Expr:
    """Products in place of divisions by what is the same for all of ``variables``."""

    def product(node: tirx.Div) -> Expr:
        integral = not str(node.ty).startswith("float")
        return node if integral or uses_var(node.b, variables) else node.a * (tirx.const(1, str(node.ty)) / node.b)

    return tvm_ffi.structural_map(score, (tirx.Div, product), order="post")


def _is_call(expr, name: str) -> bool:
    return isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "").removeprefix("tirx.") == name


def _without_guard(weights: Expr) -> tuple[Expr, str]:
    """The softmax inside ``w if not isnan(w) else 0``; "hidden" where that also asks for a score of -inf."""
    if not isinstance(weights, tirx.Select):
        return weights, ""
    condition, zero, rest = weights.condition, weights.true_value, weights.false_value
    _require(isinstance(zero, tirx.FloatImm) and zero.value == 0)
    if isinstance(condition, tirx.And):
        tests = [condition.a, condition.b] if _is_nan_test(condition.a, rest) else [condition.b, condition.a]
        _require(_is_nan_test(tests[0], rest) and isinstance(tests[1], tirx.EQ))
        hidden = [x.value for x in (tests[1].a, tests[1].b) if isinstance(x, tirx.FloatImm)]
        other = [x for x in (tests[1].a, tests[1].b) if not isinstance(x, tirx.FloatImm)]
        _require(hidden == [float("-inf")] and len(other) == 1 and _is_call(rest.a, "exp"))
        _require(tvm_ffi.structural_equal(other[0], rest.a.args[0].a))
        return rest, "hidden"
    _require(_is_nan_test(condition, rest))
    return rest, "nan"


def _is_nan_test(expr, value) -> bool:
    """Whether ``expr`` asks if ``value`` is NaN; a bool may have been stored and be compared with 0."""
    if isinstance(expr, tirx.LT) and as_int(expr.a) == 0:
        expr = expr.b.value if isinstance(expr.b, tirx.Cast) else expr.b
    return _is_call(expr, "isnan") and tvm_ffi.structural_equal(expr.args[0], value)


# -- the output -------------------------------------------------------------------------------------------------


def _output(out: Stage, second: Stage, graph: Composition) -> tuple[list[IterVar], dict, BufferStore, tirx.Var]:
    """The axes of ``out``, the place of the second product in them, and its store of the variable returned."""
    result = tirx.Var("result", str(second.body.buffer.dtype))
    axes, store = list(out.spatial), out.body
    if out is second:
        _require(same_exprs(list(store.indices), [iv.var for iv in axes]))
        return axes, {iv.var: iv.var for iv in axes}, BufferStore(store.buffer, result, store.indices), result
    value = simplify_quotients(graph.expand(store.value), axes)
    indices = list(store.indices)
    while (quotient := _quotient(_same_load(value, second), axes)) is not None:
        axis, divisor = quotient
        outer, inner = _axis("outer", as_int(axis.dom.extent) // divisor), _axis("inner", divisor)
        position = axes.index(axis)
        axes[position : position + 1] = [outer, inner]
        joined = {axis.var: outer.var * divisor + inner.var}
        value = simplify_quotients(substitute(value, joined), axes)
        indices = [substitute(index, joined) for index in indices]
    at = _point(second, _same_load(value, second))
    return axes, at, BufferStore(store.buffer, _exchange(value, second, result), indices), result


def _quotient(load, axes: list[IterVar]) -> tuple[IterVar, int] | None:
    """An axis of which the indices take a quotient by a constant that divides its extent."""
    for node in collect(list(load.indices), tirx.FloorDiv):
        divisor = as_int(node.b)
        for axis in axes:
            extent = as_int(axis.dom.extent)
            if node.a.same_as(axis.var) and divisor and extent and extent % divisor == 0:
                return axis, divisor
    return None


def _axis(name: str, extent: int) -> IterVar:
    dom = tvm.ir.Range(tirx.const(0, "int64"), tirx.const(extent, "int64"))
    return IterVar(dom, tirx.Var(name, "int64"), IterVar.DataPar)
