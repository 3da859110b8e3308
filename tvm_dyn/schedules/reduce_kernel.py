"""Inner loops of reductions: vectors of partial results, vectors of columns, and plain loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import sym, tirx
from tvm.ir import Expr
from tvm.target import Target
from tvm.tirx import BufferStore, IterVar, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import is_costly, loads, same_exprs, substitute, uses_var
from tvm_dyn.schedules.elementwise import parallel_if_worth
from tvm_dyn.schedules.stage import Stage, contiguous, fresh, group_point
from tvm_dyn.schedules.sweep import VECTORS, sweep

_COMBINERS = {
    tirx.Add: lambda a, b: a + b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Max: tirx.max,
    tirx.Min: tirx.min,
}
_IDENTITY = {tirx.Add: 0, tirx.Mul: 1}


@dataclass(frozen=True)
class Component:
    """One accumulator of a reduction: ``store.buffer[..] = combine(store.buffer[..], term)``."""

    store: BufferStore
    operator: type
    term: Expr
    initial: Expr

    @property
    def dtype(self) -> str:
        """Type to accumulate in: half precision sums in single precision."""
        dtype = str(self.store.buffer.dtype)
        return "float32" if dtype in ("float16", "bfloat16") else dtype

    def combine(self, a: Expr, b: Expr) -> Expr:
        return _COMBINERS[self.operator](a, b)

    def identity(self) -> Expr:
        """The value lanes start from; for extremes the initial value, as it may repeat."""
        if self.operator in _IDENTITY:
            return tirx.const(_IDENTITY[self.operator], self.dtype)
        return self.initial.astype(self.dtype)


def components(stage: Stage) -> list[Component] | None:
    """The independent accumulators of a reduction, None where one needs another (argmax)."""
    statements = list(stage.body) if isinstance(stage.body, tirx.SeqStmt) else [stage.body]
    bound = {s.var: s.value for s in statements if isinstance(s, tirx.stmt.Bind)}
    updates = [s for s in statements if isinstance(s, BufferStore)]
    if len(bound) + len(updates) != len(statements) or stage.init is None:
        return None
    initial = list(stage.init) if isinstance(stage.init, tirx.SeqStmt) else [stage.init]
    if len(initial) != len(updates):
        return None
    found = [_component(s, i, bound, [u.buffer for u in updates]) for s, i in zip(updates, initial, strict=True)]
    return None if any(c is None for c in found) else [c for c in found if c is not None]


def _component(store: BufferStore, init: Stmt, bound: dict, accumulators: list) -> Component | None:
    value = substitute(store.value, bound) if bound else store.value
    if type(value) not in _COMBINERS or not isinstance(init, BufferStore):
        return None
    own, term = value.a, value.b
    if not _is_own(own, store):
        own, term = term, own
    if not _is_own(own, store) or any(ld.source.same_as(a) for ld in loads(term) for a in accumulators):
        return None
    return Component(store, type(value), term, init.value)


def _is_own(expr: Expr, store: BufferStore) -> bool:
    found = loads(expr)
    return (
        len(found) == 1
        and found[0].same_as(expr)
        and found[0].source.same_as(store.buffer)
        and same_exprs(found[0].indices, store.indices)
    )


def is_row_reduction(stage: Stage) -> bool:
    """Whether the last reduction axis runs over neighbouring elements of what the stage reads."""
    found = components(stage)
    if found is None:
        return False
    last = stage.reduction[-1].var
    reads = [ld for c in found for ld in loads(c.term) if uses_var(list(ld.indices), [last])]
    return bool(reads) and all(ld.indices[-1].same_as(last) for ld in reads)


def row_reduction(
    stage: Stage, env: dict, reduced: list[list[IterVar]], lanes: int, producer: Stage | None = None
) -> Stmt:
    """Reduce contiguous elements into vectors of partial results, then those into one.

    producer: a stage that computes the elements, see `feeds`; it runs vector by vector ahead of the reduction.
    """
    parts = components(stage)
    assert parts is not None
    width = lanes * VECTORS
    extent = emit.product([iv.dom.extent for iv in reduced[-1]])

    def body(*accs) -> Stmt:
        both = list(zip(accs, parts, strict=True))

        def update(point: dict, lane, k) -> Stmt:
            at = {**point, **group_point(reduced[-1], k)}
            statements = [] if producer is None else [producer.at({**point, producer.spatial[-1].var: k})]
            for acc, part in both:
                term = substitute(part.term, at).astype(part.dtype)
                statements.append(emit.store(acc, part.combine(emit.load(acc, lane), term), lane))
            return emit.seq(*statements)

        def elements(point: dict) -> Stmt:
            costly = producer is not None and is_costly(producer.body)
            return sweep(extent, lanes, lambda lane, k: update(point, lane, k), costly)

        init = [_fill(acc, part.identity(), lanes) for acc, part in both]
        return emit.seq(*init, _nest(reduced[:-1], env, elements), *[_result(a, p, lanes, env) for a, p in both])

    return emit.scratch([([width], part.dtype) for part in parts], body)


def feeds(producer: Stage, stage: Stage, row_axes: int) -> bool:
    """Whether ``producer`` computes, along its one axis inside the row, just what ``stage`` reduces, in order."""
    if producer.reduction or len(producer.spatial) != row_axes + 1 or len(stage.spatial) != row_axes:
        return False
    if len(stage.reduction) != 1 or not isinstance(producer.body, BufferStore) or not is_row_reduction(stage):
        return False
    axis, reduced, made = producer.spatial[-1], stage.reduction[0], producer.body
    if not sym.Analyzer().can_prove_equal(axis.dom.extent, reduced.dom.extent) or not contiguous(producer, [axis]):
        return False
    reads = [ld for ld in loads(stage.body) if ld.source.same_as(made.buffer)]
    return bool(reads) and all(ld.indices[-1].same_as(reduced.var) for ld in reads)


def _fill(acc, value: Expr, lanes: int) -> Stmt:
    return emit.unrolled(VECTORS, lambda u: emit.vectorized(lanes, lambda v: emit.store(acc, value, u * lanes + v)))


def _result(acc, part: Component, lanes: int, env: dict) -> Stmt:
    """Combine the lanes in a tree and store the total."""
    vectors = [emit.load(acc, tirx.Ramp(u * lanes, 1, lanes)) for u in range(VECTORS)]
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [part.combine(a, b) for a, b in zip(vectors[:half], vectors[half:], strict=True)]
    total = part.combine(part.initial.astype(part.dtype), _across(vectors[0], part, lanes))
    value = total.astype(str(part.store.buffer.dtype))
    return emit.store(part.store.buffer, value, *substitute(list(part.store.indices), env))


def _across(vector: Expr, part: Component, lanes: int) -> Expr:
    """The combination of all lanes of one vector."""
    if lanes == 1:
        return vector
    whole, half = tirx.Var("lanes", vector.ty), lanes // 2
    low = tirx.Shuffle([whole], [tirx.const(i, "int32") for i in range(half)])
    high = tirx.Shuffle([whole], [tirx.const(i, "int32") for i in range(half, lanes)])
    return tirx.Let(whole, vector, _across(part.combine(low, high), part, half))


def column_reduction(
    stage: Stage, env: dict, axis: IterVar, reduced: list[list[IterVar]], target: Target, parallel: bool
) -> Stmt:
    """Reduce across rows, a block of neighbouring columns at a time, right in the output.

    The block's results stay in the first cache, and rows are read in pieces as long as that allows: over many
    short ones memory is slower. In parallel there is a block for each core.
    """
    extent = axis.dom.extent
    element = hardware.dtype_bytes(stage.accumulator_dtype())
    most = hardware.cache_bytes(target, 1) // 4 // element
    unit = hardware.lanes(target, stage.accumulator_dtype()) * VECTORS
    share = emit.ceildiv(extent, hardware.cores(target) * unit) * unit if parallel else emit.const(most)
    width = tirx.max(tirx.min(emit.const(most), share), emit.const(1))
    work = emit.product([extent, *[iv.dom.extent for group in reduced for iv in group]])

    def blocks(width) -> Stmt:
        def block(b) -> Stmt:
            def columns(point: dict, at: Callable) -> Stmt:
                size = tirx.min(width, extent - b * width)
                return emit.serial(size, lambda j: at({**point, axis.var: b * width + j}))

            return emit.seq(
                columns(env, stage.init_at),
                _nest(reduced, env, lambda point: columns(point, lambda at: fresh(stage.at(at)))),
            )

        count = emit.ceildiv(extent, width)
        return parallel_if_worth(work, count, block, stage, target) if parallel else emit.serial(count, block)

    return emit.bind([width], blocks)


def scalar_reduction(stage: Stage, env: dict, reduced: list[list[IterVar]]) -> Stmt:
    """One element at a time, in order."""
    update = _nest(reduced, env, lambda point: fresh(stage.at(point)))
    return update if stage.init is None else emit.seq(stage.init_at(env), update)


def _nest(groups: list[list[IterVar]], env: dict, body: Callable[[dict], Stmt]) -> Stmt:
    if not groups:
        return body(env)
    extent = emit.product([iv.dom.extent for iv in groups[0]])
    return emit.serial(extent, lambda i: _nest(groups[1:], {**env, **group_point(groups[0], i)}, body))
