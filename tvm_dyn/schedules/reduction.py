"""Rule for functions with reductions: row and column reductions, softmax, normalisations, arg-reductions.

    for task in parallel(tasks):                 # each task owns scratch for the intermediates of a few rows
        for rows of task:
            for stage of the function, for row of rows:           # e.g. maximum, exp and sum, divide
                a reduction of contiguous elements in vectors of partial results, or
                a reduction across rows in vectors of columns, or
                an elementwise loop

The stages share the leading axes over which every intermediate is a row of its own, so intermediates shrink
to rows that stay in the cache. Without such axes the stages run one after the other, each over all cores.
Initial values are always stored ahead of the loops, hence right for empty extents.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import sym, tirx
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import Buffer, IterVar, PrimFunc, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import inline_spatial, loads, same_exprs, uses_var
from tvm_dyn.schedules.elementwise import parallel_if_worth, spatial_nest
from tvm_dyn.schedules.in_place import compute_in_results
from tvm_dyn.schedules.reciprocals import exponentials_below_maximum, multiply_by_reciprocals
from tvm_dyn.schedules.reduce_kernel import (
    column_reduction,
    feeds,
    is_row_reduction,
    row_reduction,
    scalar_reduction,
)
from tvm_dyn.schedules.stage import (
    Stage,
    contiguous,
    group_point,
    merge_axes,
    parse,
    rebase,
)
from tvm_dyn.schedules.sweep import sweep

_TASKS_PER_CORE = 4
_SLOTS = 8
"""Rows that take each stage together: the last steps of a reduction wait for each other, but not for other rows."""


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    """Schedule a function of plain nests, at least one of which reduces."""
    sch = Schedule(func)
    inline_spatial(sch)
    inlined = sch.mod["main"]
    stages = parse(inlined)
    if not stages or all(not s.reduction for s in stages):
        return None
    shared = shared_rows(stages, list(func.params))
    kernel = ReductionKernel(stages, list(func.params), target)
    body = kernel.by_rows(shared) if shared else kernel.one_by_one()
    return Schedule(emit.rebuild(inlined, body))


def shared_rows(stages: list[Stage], params: list[Buffer]) -> int:
    """How many leading axes all stages have in common, such that rows do not meet."""
    limit = min(_row_axes(stage) for stage in stages)
    first = stages[0].spatial
    analyzer = sym.Analyzer()
    for n in range(limit, 0, -1):
        same = all(
            analyzer.can_prove_equal(a.dom.extent, b.dom.extent)
            for stage in stages
            for a, b in zip(first[:n], stage.spatial[:n], strict=True)
        )
        if same and all(_stays_in_row(stage, n, params) for stage in stages):
            return n
    return 0


def _row_axes(stage: Stage) -> int:
    """Leading axes that may become the row loop: all but those that the inner loops need for vectors."""
    if not stage.reduction or is_row_reduction(stage):
        return len(stage.spatial)
    return max(len(stage.spatial) - 1, 0)


def _stays_in_row(stage: Stage, n: int, params: list[Buffer]) -> bool:
    row = [iv.var for iv in stage.spatial[:n]]
    return all(
        any(buffer.same_as(p) for p in params) or same_exprs(indices[:n], row) for buffer, indices in stage.accesses()
    )


class ReductionKernel:
    """Emits the stages of one function."""

    def __init__(self, stages: list[Stage], params: list[Buffer], target: Target):
        self.stages, self.params, self.target = stages, params, target

    def one_by_one(self) -> Stmt:
        """Each stage on its own, over all cores."""
        return emit.seq(*[self._alone(stage) for stage in self.stages])

    def _alone(self, stage: Stage) -> Stmt:
        if not stage.reduction:
            return spatial_nest(stage, self.params, self.target)
        return self._reduce(stage, {}, stage.spatial, parallel=True)

    def by_rows(self, shared: int) -> Stmt:
        """All stages inside one loop over the first ``shared`` axes."""
        extents = [iv.dom.extent for iv in self.stages[0].spatial[:shared]]
        rows = emit.product(extents)
        cores = hardware.cores(self.target)
        tasks = tirx.min(rows, emit.const(cores * _TASKS_PER_CORE)) if cores > 1 else emit.const(1)
        cheaper = exponentials_below_maximum(multiply_by_reciprocals(self.stages, shared))
        whole = compute_in_results(cheaper, self.params)
        intermediates = self._intermediates(whole)

        slots = _SLOTS if all(len(b.shape) == shared for b in intermediates) else 1
        element = max(hardware.dtype_bytes(str(b.dtype)) for b in self.params if isinstance(b.ty, tirx.BufferType))
        row_bytes = element * emit.product([iv.dom.extent for iv in self._widest_row(shared)])
        kinds = [([slots, *b.shape[shared:]], str(b.dtype)) for b in intermediates]

        def task(t) -> Stmt:
            first, last = tirx.truncdiv(t * rows, tasks), tirx.truncdiv((t + 1) * rows, tasks)

            def body(*scratch) -> Stmt:
                names = list(zip(intermediates, scratch, strict=True))

                def step(stage: Stage, producer: Stage | None, start, count) -> Stmt:
                    def row(slot) -> Stmt:
                        own = rebase(stage, names, shared, slot)
                        made = rebase(producer, names, shared, slot) if producer else None
                        return emit.bind(
                            emit.unflatten(start + slot, extents), lambda *point: self._row(own, made, list(point))
                        )

                    return emit.serial(count, row)

                def block(start, count) -> Stmt:
                    return emit.seq(*[step(*pair, start, count) for pair in _steps(whole, shared)])

                return self._blocks(first, last, slots, row_bytes, block)

            return emit.scratch(kinds, body)

        work = rows * emit.product([iv.dom.extent for iv in self._widest_row(shared)])
        return parallel_if_worth(work, tasks, task, self.stages[0], self.target)

    def _widest_row(self, shared: int) -> list[IterVar]:
        return max(([*s.spatial[shared:], *s.reduction] for s in self.stages), key=len)

    def _intermediates(self, stages: list[Stage]) -> list[Buffer]:
        found: list[Buffer] = []
        for stage in stages:
            for buffer, _ in stage.accesses():
                if not any(buffer.same_as(b) for b in [*self.params, *found]):
                    found.append(buffer)
        return found

    def _blocks(self, first, last, slots: int, row_bytes, block: Callable) -> Stmt:
        """``block(start, count)`` of as many rows at a time as there are slots and as stay in the first cache."""
        if slots == 1:
            return emit.serial(last - first, lambda i: block(first + i, emit.const(1)))
        fitting = emit.quotient(
            emit.const(hardware.cache_bytes(self.target, 1) // 4), tirx.max(row_bytes, emit.const(1))
        )
        count = tirx.max(emit.const(1), tirx.min(emit.const(slots), fitting))

        def sized(count) -> Stmt:
            def at(b) -> Stmt:
                start = first + b * count
                return emit.bind([start, tirx.min(count, last - start)], block)

            return emit.serial(emit.ceildiv(last - first, count), at)

        return emit.bind([count], sized)

    def _row(self, stage: Stage, producer: Stage | None, point: list) -> Stmt:
        env = {iv.var: p for s in (stage, producer) if s for iv, p in zip(s.spatial, point, strict=False)}
        rest = stage.spatial[len(point) :]
        return self._reduce(stage, env, rest, producer) if stage.reduction else self._loops(stage, env, rest)

    def _loops(self, stage: Stage, env: dict, axes: list[IterVar]) -> Stmt:
        """An elementwise stage: nested serial loops, the last one in vectors where that is possible."""
        groups = merge_axes(axes, [stage], self.params)
        if not groups or not contiguous(stage, groups[-1]):
            return _nested(groups, env, stage.at)
        extent = emit.product([iv.dom.extent for iv in groups[-1]])
        lanes = hardware.lanes(self.target, stage.accumulator_dtype())

        def vectors(point: dict) -> Stmt:
            return sweep(extent, lanes, lambda _lane, k: stage.at({**point, **group_point(groups[-1], k)}))

        return _nested(groups[:-1], env, vectors)

    def _reduce(
        self, stage: Stage, env: dict, axes: list[IterVar], producer: Stage | None = None, parallel: bool = False
    ) -> Stmt:
        groups = [[iv] for iv in axes]
        reduced = merge_axes(stage.reduction, [stage], self.params)
        if is_row_reduction(stage):
            lanes = hardware.lanes(self.target, str(stage.accumulator_dtype()))
            return _nested(groups, env, lambda point: row_reduction(stage, point, reduced, lanes, producer))
        if axes and _is_column(stage, axes[-1]):
            return _nested(
                groups[:-1], env, lambda p: column_reduction(stage, p, axes[-1], reduced, self.target, parallel)
            )
        return _nested(groups, env, lambda point: scalar_reduction(stage, point, reduced))


def _steps(stages: list[Stage], row_axes: int) -> list[tuple[Stage, Stage | None]]:
    """The stages in order, each with the one before where that computes what it reduces."""
    steps: list[tuple[Stage, Stage | None]] = []
    for stage in stages:
        if steps and steps[-1][1] is None and feeds(steps[-1][0], stage, row_axes):
            steps[-1] = (stage, steps[-1][0])
        else:
            steps.append((stage, None))
    return steps


def _is_column(stage: Stage, axis: IterVar) -> bool:
    return any(len(ld.indices) and uses_var(ld.indices[-1], [axis.var]) for ld in loads(stage.body))


def _nested(groups: list[list[IterVar]], env: dict, body) -> Stmt:
    """Serial loops over groups of axes around ``body`` of the point."""
    if not groups:
        return body(env)
    extent = emit.product([iv.dom.extent for iv in groups[0]])
    return emit.serial(extent, lambda i: _nested(groups[1:], {**env, **group_point(groups[0], i)}, body))
