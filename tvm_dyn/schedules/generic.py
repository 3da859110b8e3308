"""The rule of last resort: outer loops fused and parallel, the inner loop left contiguous for vectorizing."""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV, Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.schedules.common import decompose_reductions, inline_spatial, leaf_blocks, split_loops


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    sch = Schedule(func)
    inline_spatial(sch)
    for block in leaf_blocks(sch):
        schedule_block(sch, block, target)
    decompose_reductions(sch)
    return sch


def schedule_block(sch: Schedule, block: SBlockRV, target: Target) -> None:
    try:
        spatial, reduction = split_loops(sch, block)
        if not spatial:
            return
        sch.reorder(*spatial, *reduction)
        sch.parallel(sch.fuse(*spatial))
    except s_tir.ScheduleError:
        return
