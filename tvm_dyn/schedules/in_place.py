"""Intermediates that a result replaces element by element are computed where the result goes.

for j: e[i, j] = exp(x[i, j] - m[i])     # e is scratch
for j: y[i, j] = e[i, j] * r[i]
--->
for j: y[i, j] = exp(x[i, j] - m[i])     # the cache line of y comes in while exp computes
for j: y[i, j] = y[i, j] * r[i]
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import Buffer

from tvm_dyn.schedules.common import loads, same_exprs
from tvm_dyn.schedules.stage import Stage, rebase


def compute_in_results(stages: list[Stage], params: list[Buffer]) -> list[Stage]:
    """The stages with such intermediates renamed to the result that the last stage stores."""
    last = stages[-1]
    for intermediate in _replaced(last, params):
        if _only_here(intermediate, last.body.buffer, stages[:-1]):
            return [rebase(stage, [(intermediate, last.body.buffer)], 0) for stage in stages]
    return stages


def _replaced(last: Stage, params: list[Buffer]) -> list[Buffer]:
    """Intermediates of the result's type and shape that the last stage reads at the place it stores, and only there."""
    made = last.body
    if last.reduction or not isinstance(made, tirx.BufferStore) or not any(made.buffer.same_as(p) for p in params):
        return []
    if not same_exprs(made.indices, [iv.var for iv in last.spatial]):
        return []
    found = [load for load in loads(made) if not any(load.source.same_as(p) for p in params)]
    return [
        load.source
        for load in found
        if _alike(load.source, made)
        and all(same_exprs(other.indices, made.indices) for other in found if other.source.same_as(load.source))
    ]


def _alike(buffer: Buffer, made: tirx.BufferStore) -> bool:
    return str(buffer.dtype) == str(made.buffer.dtype) and same_exprs(buffer.shape, made.buffer.shape)


def _only_here(intermediate: Buffer, result: Buffer, before: list[Stage]) -> bool:
    """Whether one stage without reduction makes the intermediate and nobody has used the result yet."""
    if any(buffer.same_as(result) for stage in before for buffer, _ in stage.accesses()):
        return False
    makers = [s for s in before if isinstance(s.body, tirx.BufferStore) and s.body.buffer.same_as(intermediate)]
    return len(makers) == 1 and not makers[0].reduction
