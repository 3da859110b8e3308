"""Loops whose steps are compiled once: private functions that call themselves on both halves of the range.

    body(at: R.Shape([i, *symbols]), state..., captured...) -> (condition, state..., rows...)
    run(at: R.Shape([i, n, *symbols]), state..., captured...):                 # n >= 1 steps, the first one is step i
        if n == 1:  body(R.shape([i, *symbols]), state..., captured...)
        else:       first = run(R.shape([i, n // 2, ...]), state...)
                    if first.condition:  run(R.shape([i + n // 2, n - n // 2, ...]), first.state...), rows joined
                    else:                first

The stack grows with the logarithm of the number of steps, so does the number of states alive, and each row is copied
that often. A loop whose condition is always true carries none. `run` types tensors by rank alone: states may change
their extents from step to step; `body` matches those that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import prim
from tvm_dyn.frontend.loop_runner import emit_runner
from tvm_dyn.frontend.value import Value, constant, symbols
from tvm_dyn.symbolic import free_vars

# The steps of a loop that only its condition ends; numbers of steps add up to it, and shape values are int64.
_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Step:
    """What one step computes: whether another one follows, the states, and one row for each scan output."""

    condition: Value
    states: list[Value]
    rows: list[Value]


StepConverter = Callable[[Value, list[Value]], Step]


def emit_loop(
    ctx: Context, count: Any, condition: Value, states: Sequence[Value], step: StepConverter
) -> tuple[list[Value], list[Value]]:
    """The final states, and the rows of all steps stacked along a new first axis.

    count: the most steps, an extent (as an expression it may be negative), or None for no limit. condition: whether
    there is a first step. step: emits the body for a step's number and states; called until the states' shapes settle.
    """
    body = _Body(ctx, states, step)
    result = _run(ctx, body, _UNLIMITED if count is None else count, condition)
    fields = [ctx.bb.emit(relax.TupleGetItem(result, k)) for k in range(len(result.ty.fields))]
    finals = list(states)
    changed = fields[1:] if body.has_condition else fields
    for number, field in zip(body.carried, changed, strict=False):
        # extents that steps change only the run knows, as those of the rows
        dims = [ctx.fresh_symbol("d") if d is None else prim(d) for d in body.dims[number]]
        finals[number] = Value(expr=ctx.bb.match_cast(field, relax.TensorType(dims, field.ty.dtype)))
    return finals, [ctx.emit(rows) for rows in changed[len(body.carried) :]]


def _run(ctx: Context, body: _Body, count: Any, condition: Value) -> relax.Var:
    """A tuple: the last step's condition if the loop has one, the states that change, the rows."""
    initial = [ctx.tensor(body.states[k]) for k in body.carried]
    call = emit_runner(ctx.bb, body.function, len(initial), len(body.symbols), body.has_condition)
    steps = call([0, count, *body.symbols], [*initial, *(ctx.tensor(v) for v in body.captured)])
    enters = _enters(ctx, count, condition)
    if body.placeholders and enters is not True:
        _require_steps(ctx, enters)
        enters = True

    def none() -> relax.Expr:
        return relax.Tuple([ctx.tensor(v) for v in _no_steps(ctx, body, condition)])

    if isinstance(enters, bool):
        return ctx.bb.emit(steps if enters else none())
    return ctx.bb.emit(relax.If(enters, _block(ctx, lambda: steps), _block(ctx, none)))


def _enters(ctx: Context, count: Any, condition: Value) -> Any:
    """Whether there is a first step: True, False, a condition on extents, or a tensor."""
    some = prim(count) >= 1
    counted: Any = relax.prim_value(some)
    if ctx.facts.prove(some):
        counted = True
    elif ctx.facts.prove(prim(count) < 1):
        counted = False
    if condition.is_const or counted is False:
        return counted if counted is False or bool(condition.array.all()) else False
    flag = ctx.bb.emit(relax.op.reshape(ctx.tensor(condition), ()))
    if counted is True:
        return flag

    def enters(given: te.Tensor, steps: Any) -> te.Tensor:
        return te.compute((), lambda: tirx.all(given(), steps >= 1), name="enters")

    return ctx.emit_te(enters, flag, count).expr


def _require_steps(ctx: Context, enters: Any) -> None:
    """State that the loop starts: without a step, a state that starts as a placeholder would have another rank."""
    flag = relax.op.astype(enters, "int64") if isinstance(enters, relax.Var) else None
    condition = enters if flag is None else ctx.scalar(ctx.emit(flag), signed=False) >= 1
    ctx.require(condition, [], f"{ctx.label}: runs no step, but a value that it carries is given its rank by the first")


def _no_steps(ctx: Context, body: _Body, condition: Value) -> list[Value]:
    """The results of a loop that does not start; rows have the extents that are known ahead of it, others are 0."""
    known = set(body.symbols)
    rows = []
    for dims, dtype in body.row_types:
        extents = [prim(d) if set(free_vars(prim(d))) <= known else prim(0) for d in dims]
        rows.append(ctx.emit(relax.op.zeros(relax.ShapeExpr([prim(0), *extents]), dtype)))
    flag = [Value(expr=relax.op.reshape(ctx.tensor(condition), ()))] if body.has_condition else []
    return [*flag, *(body.states[k] for k in body.carried), *rows]


def _tensor(ctx: Context, value: Value) -> Value:
    expr = ctx.tensor(value)
    if not isinstance(expr.ty, relax.TensorType):
        raise UnsupportedOperatorError(f"{ctx.label}: a loop-carried value is no tensor")
    return Value(expr=expr)


def _block(ctx: Context, emit: Callable[[], relax.Expr]) -> relax.SeqExpr:
    """What `emit` binds, and the expression that it gives, as a block of its own."""
    ctx.bb._begin_binding_block()
    with ctx.branch():
        try:
            result = ctx.bb.emit(emit())
        finally:
            block = ctx.bb._end_block()
    return relax.SeqExpr([block], result)


class _Body:
    """The function of one step.

    carried: the states that a step changes; others stay what they were ahead of the loop. dims: the extents of each
    state, None for one that changes. placeholders: the states that each step writes and none reads, in another rank
    than they start with. row_types: (extents, dtype) of each row. captured: tensors around the loop that the body
    reads. symbols: those around the loop that it mentions.
    """

    def __init__(self, ctx: Context, states: Sequence[Value], step: StepConverter):
        self.ctx, self.states, self.step = ctx, list(states), step
        self.placeholders: set[int] = set()
        self.carried = list(range(len(states)))
        self.dims: list[list[Any]] = [list(ctx.shape(_tensor(ctx, state))) for state in states]
        while not self._convert():
            pass

    def _convert(self) -> bool:
        """Whether the states behave as `carried` and `dims` say; else these are corrected."""
        ctx, number = self.ctx, tirx.Var("step", "int64")
        shapes = {k: [ctx.fresh_symbol("d") if d is None else prim(d) for d in self.dims[k]] for k in self.carried}
        params = {
            k: relax.Var(f"state{k}", relax.TensorType(shape, self.states[k].dtype)) for k, shape in shapes.items()
        }
        ctx.bb.begin_scope([relax.Var("at", relax.ShapeType([number])), *params.values()])
        ctx.bb._begin_binding_block()
        with ctx.branch():
            try:
                ctx.facts.assume(number >= 0)
                states = [Value(expr=params[k]) if k in params else state for k, state in enumerate(self.states)]
                done = self.step(symbols([number], ()), states)
                settled = self._settle(params, done.states)
                result = ctx.bb.emit(relax.Tuple(self._results(done)))
            finally:
                block = ctx.bb._end_block()
        body = relax.SeqExpr([block], result)
        self._check_placeholders(params, body)
        if settled:
            self.row_types = [(ctx.shape(v), v.dtype) for v in done.rows]
            own = [number, *(s for k in shapes for d, s in zip(self.dims[k], shapes[k], strict=True) if d is None)]
            self._lift(list(params.values()), own, ctx.bb.normalize(body))
        ctx.bb.end_scope()
        return settled

    def _results(self, done: Step) -> list[relax.Expr]:
        ctx = self.ctx
        self.has_condition = not (done.condition.is_const and bool(done.condition.array.all()))
        flag = [ctx.bb.emit(relax.op.reshape(ctx.tensor(done.condition), ()))] if self.has_condition else []
        rows = [ctx.bb.emit(relax.op.expand_dims(ctx.tensor(v), 0)) for v in done.rows]
        return [*flag, *(ctx.tensor(done.states[k]) for k in self.carried), *rows]

    def _settle(self, params: dict[int, relax.Var], results: list[Value]) -> bool:
        settled = True
        for number, param in params.items():
            result = _tensor(self.ctx, results[number])
            if result.expr.same_as(param):
                self.carried.remove(number)
                settled = False
            elif not self._widen(number, result):
                settled = False
        return settled

    def _widen(self, number: int, result: Value) -> bool:
        """Whether a state keeps its extents; those that change become None."""
        dims, after, keeps = self.dims[number], self.ctx.shape(result), True
        if len(after) != len(dims):
            self.placeholders.add(number)
            self.dims[number] = [None] * len(after)
            self.states[number] = constant(np.zeros([0] * len(after)), result.dtype)
            return False
        for axis, (old, new) in enumerate(zip(dims, after, strict=True)):
            if old is not None and not self.ctx.facts.prove_equal(old, new):
                dims[axis], keeps = None, False
        return keeps

    def _check_placeholders(self, params: dict[int, relax.Var], body: relax.SeqExpr) -> None:
        read = relax.analysis.free_vars(body)
        for number in self.placeholders:
            if any(params[number].same_as(v) for v in read):
                raise UnsupportedOperatorError(
                    f"{self.ctx.label}: loop-carried value {number} changes its rank to {len(self.dims[number])}"
                )

    def _lift(self, params: list[relax.Var], own: list[tirx.Var], body: relax.Expr) -> None:
        """Make the body a function: what it reads of the code around it comes in as arguments."""
        free = [v for v in relax.analysis.free_vars(body) if isinstance(v.ty, relax.TensorType)]
        self.captured = [Value(expr=v) for v in free if not any(v.same_as(p) for p in params)]
        params = [*params, *(v.expr for v in self.captured)]
        told = [v for p in params for dim in p.ty.shape.values for v in free_vars(dim)]
        mentioned = [*told, *relax.analysis.free_symbolic_vars(relax.Function(params, body, is_pure=False))]
        self.symbols = [v for v in dict.fromkeys(mentioned) if v not in own]
        at = relax.Var("at", relax.ShapeType([own[0], *self.symbols]))
        func = relax.Function([at, *params], body, is_pure=False)
        self.function = self.ctx.bb.add_func(relax.utils.copy_with_new_vars(func), "loop_body")

