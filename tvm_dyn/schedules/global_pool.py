"""Sums and maxima over whole maps (global pooling, reductions over the trailing axes): one long row per map.

The axes of a map follow one another in memory, so no care is taken of its rows: several vectors of partial
results run along the map and are folded at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import Buffer, PrimFunc, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import as_int, is_reduction, leaf_blocks, stores, substitute
from tvm_dyn.schedules.tasks import enough_elements, tasks
from tvm_dyn.schedules.window import Epilogue, NotAWindow, parse_epilogue

Load = Callable[[Expr], Expr]
Finish = Callable[[Buffer], Stmt]

_VECTORS = 4
"""Vectors of partial results, which hide the latency of an addition."""


@dataclass(frozen=True)
class GlobalPool:
    """``result[*kept, 1, ..] = epilogue(combine over the map of data[*kept, *map])``."""

    data: Buffer
    extents: list[Expr]
    kept: int
    combine: type[tirx.Add] | type[tirx.Max] | type[tirx.Min]
    initial: Expr
    result: Buffer
    epilogue: Epilogue


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    try:
        pool = match(func)
    except NotAWindow:
        return None
    return emit.kernel(func, _maps(pool, hardware.lanes(target, str(pool.data.dtype)), target))


def match(func: PrimFunc) -> GlobalPool:
    """Read a function as one reduction over two or more trailing axes. Raises `NotAWindow` otherwise."""
    sch = Schedule(func)
    blocks = [sch.get(block) for block in leaf_blocks(sch)]
    if not blocks or not is_reduction(blocks[0]) or any(is_reduction(block) for block in blocks[1:]):
        raise NotAWindow
    main = blocks[0]
    result, epilogue = parse_epilogue(main, blocks[1:], list(func.params))
    (store,) = stores(main.body)
    value = store.value
    if not isinstance(value, (tirx.Add, tirx.Max, tirx.Min)) or main.init is None:
        raise NotAWindow
    load = value.b
    if not isinstance(load, TensorLoad) or not isinstance(value.a, TensorLoad):
        raise NotAWindow
    if not value.a.source.same_as(store.buffer) or not any(load.source.same_as(param) for param in func.params):
        raise NotAWindow
    if str(load.source.dtype) != str(store.buffer.dtype) or not str(load.source.dtype).startswith("float"):
        raise NotAWindow
    kept = _kept_axes(main, load)
    extents = [iv.dom.extent for iv in main.iter_vars if iv.iter_type == tirx.IterVar.DataPar]
    initial = stores(main.init)[0].value
    return GlobalPool(load.source, extents, kept, type(value), initial, result, epilogue)


def _kept_axes(main: s_tir.SBlock, load: TensorLoad) -> int:
    """How many axes stay: the load has to read them as they are, and all of each axis behind them."""
    spatial = [iv for iv in main.iter_vars if iv.iter_type == tirx.IterVar.DataPar]
    reduced = [iv for iv in main.iter_vars if iv.iter_type != tirx.IterVar.DataPar]
    kept = len(load.indices) - len(reduced)
    if len(reduced) < 2 or kept < 0 or kept > len(spatial):
        raise NotAWindow
    if any(as_int(iv.dom.extent) != 1 for iv in spatial[kept:]):
        raise NotAWindow
    ones = {iv.var: emit.const(0) for iv in spatial[kept:]}
    indices = [emit.simplify(substitute(index, ones)) for index in load.indices]
    expected = [iv.var for iv in [*spatial[:kept], *reduced]]
    if not all(index.same_as(var) for index, var in zip(indices, expected, strict=True)):
        raise NotAWindow
    for iv, extent in zip(reduced, load.source.shape[kept:], strict=True):
        if as_int(emit.simplify(iv.dom.extent - extent)) != 0:
            raise NotAWindow
    return kept


def _maps(pool: GlobalPool, lanes: int, target: Target) -> Stmt:
    kept = pool.extents[: pool.kept]
    ones = [emit.const(0)] * (len(pool.extents) - pool.kept)
    lead = [emit.const(0)] * (len(pool.data.shape) - pool.kept - 1)

    def maps(elements: Expr) -> Stmt:
        def task(*at: Expr) -> Stmt:
            def load(position: Expr) -> Expr:
                return pool.data[(*at, *lead, position)]

            def finish(acc: Buffer) -> Stmt:
                where = [*at, *ones]
                return emit.store(pool.result, pool.epilogue(acc[0], where), *where)

            return emit.when(
                elements >= lanes,
                _wide(pool, lanes, elements, load, finish),
                _narrow(pool, elements, load, finish),
            )

        count = emit.product(kept)
        return tasks(
            enough_elements(count * elements, str(pool.data.dtype)),
            count,
            lambda index: emit.bind(emit.unflatten(index, kept) if kept else [], task),
            target,
        )

    return emit.bind([emit.product(list(pool.data.shape[pool.kept :]))], maps)


def _narrow(pool: GlobalPool, elements: Expr, load: Load, finish: Finish) -> Stmt:
    """A map below one vector."""

    def body(acc: Buffer) -> Stmt:
        return emit.seq(
            emit.store(acc, pool.initial, 0),
            emit.serial(elements, lambda i: emit.store(acc, pool.combine(acc[0], load(i)), 0)),
            finish(acc),
        )

    return emit.scratch([([1], str(pool.data.dtype))], body)


def _wide(pool: GlobalPool, lanes: int, elements: Expr, load: Load, finish: Finish) -> Stmt:
    """Blocks of several vectors, then single vectors, then the last vector with what was already taken
    masked.
    """
    width = _VECTORS * lanes

    def body(acc: Buffer) -> Stmt:
        def take(lane: Expr, value: Expr) -> Stmt:
            return emit.store(acc, pool.combine(acc[lane], value), lane)

        def block(chunk: Expr) -> Stmt:
            return emit.unrolled(
                _VECTORS,
                lambda v: emit.vectorized(lanes, lambda j: take(v * lanes + j, load(chunk * width + (v * lanes + j)))),
            )

        def walk(blocks: Expr, vectors: Expr) -> Stmt:
            def vector(v: Expr) -> Stmt:
                return emit.vectorized(lanes, lambda j: take(j, load((blocks * _VECTORS + v) * lanes + j)))

            def rest(taken: Expr, start: Expr) -> Stmt:
                return emit.vectorized(lanes, lambda j: take(j, tirx.Select(j >= taken, load(start + j), pool.initial)))

            return emit.seq(
                emit.serial(blocks, block, "block"),
                emit.serial(vectors - blocks * _VECTORS, vector, "vector"),
                emit.bind([(vectors + 1) * lanes - elements, elements - lanes], rest),
            )

        return emit.seq(
            emit.unrolled(
                _VECTORS,
                lambda v: emit.vectorized(lanes, lambda j: emit.store(acc, pool.initial, v * lanes + j)),
            ),
            emit.bind([emit.quotient(elements, width), emit.quotient(elements, lanes)], walk),
            *_fold(pool, acc, lanes),
            finish(acc),
        )

    return emit.scratch([([width], str(pool.data.dtype))], body)


def _fold(pool: GlobalPool, acc: Buffer, lanes: int) -> list[Stmt]:
    """Combine all vectors into the first, then halves of it until its first element holds the result."""

    def onto(width: int, start: int) -> Stmt:
        return emit.vectorized(width, lambda j: emit.store(acc, pool.combine(acc[j], acc[start + j]), j))

    steps = [onto(lanes, v * lanes) for v in range(1, _VECTORS)]
    while lanes > 1:
        lanes //= 2
        steps.append(onto(lanes, lanes))
    return steps
