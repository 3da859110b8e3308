"""Give every PrimFunc of the module a schedule for the target, so that nothing runs unscheduled.

@T.prim_func fused_matmul_add(...)        @T.prim_func fused_matmul_add(...)   tirx.is_scheduled
    for i, j, k in T.grid(n, 768, 768) ->     for i0 in T.parallel((n + 5) // 6): ...  T.vectorized(16)
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_dyn.schedules import schedule_prim_func


@tvm.transform.module_pass(opt_level=0, name="ScheduleGroups")
class ScheduleGroups:
    """Apply the first schedule rule that takes each PrimFunc.

    target: the device to schedule for; by default the target in scope.
    """

    def __init__(self, target: Target | None = None):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = self.target or Target.current(allow_none=False)
        scheduled = {
            gv: schedule_prim_func(func, target) if isinstance(func, tirx.PrimFunc) else func
            for gv, func in mod.functions.items()
        }
        result = mod.clone()
        for gv, func in scheduled.items():
            result.update_func(gv, func)
        return result
