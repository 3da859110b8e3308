"""Give every PrimFunc of the module a schedule for the target, so that nothing runs unscheduled.

@T.prim_func fused_matmul_add(...)        @T.prim_func fused_matmul_add(...)   tirx.is_scheduled
    for i, j, k in T.grid(n, 768, 768) ->     for i0 in T.parallel((n + 5) // 6): ...  T.vectorized(16)
"""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_dyn.schedules import plain_prim_func, schedule_prim_func


@tvm.transform.module_pass(opt_level=0, name="ScheduleGroups")
class ScheduleGroups:
    """Apply the first schedule rule that takes each PrimFunc.

    target: the device to schedule for; by default the target in scope. plain: names of functions that keep
    the loops they have.
    """

    def __init__(self, target: Target | None = None, plain: Collection[str] = ()):
        self.target, self.plain = target, plain

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = self.target or Target.current(allow_none=False)
        result = mod.clone()
        for gv, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                schedule = plain_prim_func if gv.name_hint in self.plain else schedule_prim_func
                result.update_func(gv, schedule(func, target))
        return result
