"""The rule of last resort: every nest on its own, as well as its form allows.

Nests of one block over plain loops become elementwise or reduction kernels. Others (bindings that are not
plain, several blocks in one nest) stay as they are, with the outermost loop in parallel where that is
legal; statements that are not blocks (extern calls, sorts, scans) are left alone.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc, Stmt

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import decompose_reductions, inline_spatial, leaf_blocks, split_loops
from tvm_dyn.schedules.elementwise import spatial_nest
from tvm_dyn.schedules.reduction import ReductionKernel
from tvm_dyn.schedules.stage import parse_nest, top_level


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    """Schedule any function made of blocks."""
    sch = Schedule(func)
    inline_spatial(sch)
    inlined = sch.mod["main"]
    nests = [emit_nest(nest, list(func.params), target) for nest in top_level(inlined)]
    return finish(Schedule(emit.rebuild(inlined, emit.seq(*nests))))


def emit_nest(nest: Stmt, params: list[tirx.Buffer], target: Target) -> Stmt:
    """A kernel for one top-level nest; the nest itself where it is not a block over plain loops."""
    stage = parse_nest(nest)
    if stage is None:
        return nest
    if stage.reduction:
        return ReductionKernel([stage], params, target).one_by_one()
    return spatial_nest(stage, params, target)


def finish(sch: Schedule) -> Schedule:
    """What primitives can do for blocks that are still there: an outer parallel loop, initial values."""
    for block in leaf_blocks(sch):
        try:
            spatial, _ = split_loops(sch, block)
            if spatial:
                sch.parallel(spatial[0])
        except s_tir.ScheduleError:
            continue
    decompose_reductions(sch)
    return sch
