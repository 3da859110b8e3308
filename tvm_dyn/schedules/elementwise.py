"""Nests without reductions: parallel over the outer axes, with a contiguous inner loop left to LLVM.

    for i, j, k: Y[i, j, k] = X[i, j, k] + B[k]
    --->
    for row in parallel(i * j): for k: Y[row, k] = X[row, k] + B[k]

Axes that all accesses walk as one range become one loop. A nest that transposes is cut into square tiles,
so that both sides touch whole cache lines.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.target import Target
from tvm.tirx import IterVar, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import (
    IF_THEN_ELSE,
    as_int,
    is_costly,
    loads,
    same_exprs,
    stores,
    substitute,
    uses_var,
)
from tvm_dyn.schedules.split_axes import split_axes
from tvm_dyn.schedules.stage import Stage, contiguous, group_point, merge_axes
from tvm_dyn.schedules.sweep import VECTORS, sweep
from tvm_dyn.schedules.tasks import enough_elements, tasks

_TRANSPOSE_TILE = 32
_COSTLY_FACTOR = 8
_TASKS_PER_CORE = 4
_SHORT_RUN, _LONG_RUN = 64, 4096
"""Elements: below the first, working out where a run starts takes as long as the run."""


def spatial_nest(stage: Stage, params: list, target: Target) -> Stmt:
    """A nest without reduction over all cores."""
    stage = split_axes(stage)
    groups = merge_axes(stage.spatial, [stage], params)
    if not groups:
        return stage.at({})
    extents = [emit.product([iv.dom.extent for iv in group]) for group in groups]
    across = _transposed_group(stage, groups)
    work = emit.product(extents) * (_COSTLY_FACTOR if is_costly(stage.body) else 1)
    if len(groups) == 1 and is_costly(stage.body) and contiguous(stage, groups[0]):
        return _costly_range(stage, groups[0], extents[0], work, target)
    if len(groups) == 1:
        return parallel_if_worth(work, extents[0], lambda i: stage.at(group_point(groups[0], i)), stage, target)
    run = len(groups) - _axes_of_a_run(extents) if across is None else len(groups) - 1
    outer = [g for g in range(run) if g != across]
    tiles = [] if across is None else [emit.ceildiv(extents[across], _TRANSPOSE_TILE)]

    def task(t) -> Stmt:
        positions = emit.unflatten(t, [extents[g] for g in outer] + tiles)

        def rows(*position) -> Stmt:
            point: dict = {}
            for g, p in zip(outer, position, strict=False):
                point.update(group_point(groups[g], p))
            if across is None:
                return _nested_runs(stage, point, groups[run:], extents[run:])
            return _tiled(stage, point, [(groups[g], extents[g]) for g in (across, -1)], position[-1])

        return emit.bind(positions, rows)

    return parallel_if_worth(work, emit.product([extents[g] for g in outer] + tiles), task, stage, target)


def _costly_range(stage: Stage, group: list[IterVar], extent, work, target: Target) -> Stmt:
    """A long computation per element, on several vectors at a time: LLVM takes it for one after the other."""
    lanes = hardware.lanes(target, stage.accumulator_dtype())
    step = lanes * VECTORS
    share = emit.ceildiv(extent, hardware.cores(target) * _TASKS_PER_CORE * step) * step

    def pieces(size) -> Stmt:
        def task(t) -> Stmt:
            def piece(start, count) -> Stmt:
                return sweep(count, lanes, lambda _lane, k: stage.at(group_point(group, start + k)), together=True)

            return emit.bind([t * size, tirx.min(size, extent - t * size)], piece)

        return parallel_if_worth(work, emit.ceildiv(extent, size), task, stage, target)

    return emit.bind([tirx.max(share, emit.const(step))], pieces)


def _axes_of_a_run(extents: list) -> int:
    """How many of the innermost axes a task walks: more than one where they are constant and short."""
    count, length = 1, as_int(extents[-1])
    while length is not None and length < _SHORT_RUN and count < len(extents) - 1:
        more = as_int(extents[-count - 1])
        if more is None or length * more > _LONG_RUN:
            break
        count, length = count + 1, length * more
    return count


def _nested_runs(stage: Stage, point: dict, groups: list[list[IterVar]], extents: list) -> Stmt:
    """Loops over the groups of axes, the last one contiguous."""
    if len(groups) == 1:
        return _runs(stage.at(point), groups[0], emit.const(0), extents[0])
    return emit.serial(
        extents[0], lambda i: _nested_runs(stage, {**point, **group_point(groups[0], i)}, groups[1:], extents[1:])
    )


def _runs(statement: Stmt, group: list[IterVar], begin, end) -> Stmt:
    """A loop over [begin, end); one each side of where a concatenation goes over to its next part.

    A condition inside the loop would keep it from being copied in vectors.
    """
    choice = _threshold(statement, group[-1].var)
    if choice is None:
        return emit.serial(end - begin, lambda i: substitute(statement, group_point(group, begin + i)))
    threshold, below, above = choice
    middle = tirx.max(begin, tirx.min(threshold, end))
    return emit.bind(
        [middle],
        lambda middle: emit.seq(_runs(below, group, begin, middle), _runs(above, group, middle, end)),
    )


def _threshold(statement: Stmt, var) -> tuple | None:
    """(t, below, above) of ``x = above if 0 <= var - t else below``, the form of a concatenation."""
    value = statement.value if isinstance(statement, tirx.BufferStore) else None
    if not isinstance(value, tvm.ir.Call) or not value.op.same_as(IF_THEN_ELSE):
        return None
    condition, above, below = value.args
    if not (isinstance(condition, tirx.LE) and as_int(condition.a) == 0 and isinstance(condition.b, tirx.Sub)):
        return None
    if not condition.b.a.same_as(var) or uses_var(condition.b.b, [var]):
        return None

    def branch(chosen) -> Stmt:
        return tirx.BufferStore(statement.buffer, chosen, list(statement.indices))

    return condition.b.b, branch(below), branch(above)


def _tiled(stage: Stage, point: dict, axes: list, tile) -> Stmt:
    """One tile of rows of a transposing nest, square by square."""
    (row_group, rows), (column_group, columns) = axes
    size = emit.const(_TRANSPOSE_TILE)

    def square(c) -> Stmt:
        def element(i, j) -> Stmt:
            at_row = group_point(row_group, tile * size + i)
            return stage.at({**point, **at_row, **group_point(column_group, c * size + j)})

        return emit.serial(
            tirx.min(size, rows - tile * size),
            lambda i: emit.serial(tirx.min(size, columns - c * size), lambda j: element(i, j)),
        )

    return emit.serial(emit.ceildiv(columns, _TRANSPOSE_TILE), square)


def _transposed_group(stage: Stage, groups: list[list[IterVar]]) -> int | None:
    """The group that a read walks contiguously while the innermost loop strides, if there is one."""
    inner = [iv.var for iv in groups[-1]]
    for load in loads(stage.body):
        if not len(load.indices) or not uses_var(list(load.indices), inner) or uses_var(load.indices[-1], inner):
            continue
        for g, group in enumerate(groups[:-1]):
            if same_exprs([load.indices[-1]], [group[-1].var]):
                return g
    return None


def parallel_if_worth(work, extent, body: Callable, stage: Stage, target: Target) -> Stmt:
    """A parallel loop; serial for a single task, and for so little work that waking a second core takes longer."""
    widest = max((str(s.buffer.dtype) for s in stores(stage.body)), key=hardware.dtype_bytes)
    return tasks(enough_elements(work, widest), extent, body, target)
