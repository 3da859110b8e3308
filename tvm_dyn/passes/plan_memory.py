"""Plan storage ahead of time, except in functions with branches.

    lv0 = R.builtin.alloc_tensor((n, 64))  ->  storage = R.memory.alloc_storage(n * 256)
    lv2 = R.builtin.alloc_tensor((n, 64))      lv0 = lv2 = R.memory.alloc_tensor(storage)

TVM's planner lets the second branch of an `if` take storage that only the first one allocates; such functions
allocate each tensor when it is needed, from the runtime's pool.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax


@tvm.transform.module_pass(opt_level=0, name="PlanMemory")
class PlanMemory:
    """StaticPlanBlockMemory for every function without an `if`."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        branching = {gv: f for gv, f in mod.functions.items() if isinstance(f, relax.Function) and _branches(f)}
        rest = mod.clone()
        for gv in branching:
            rest.update_func(gv, _placeholder(mod[gv]))
        planned = relax.transform.StaticPlanBlockMemory()(rest)
        for gv, func in branching.items():
            planned.update_func(planned.get_global_var(gv.name_hint), func)
        return planned


def _branches(func: relax.Function) -> bool:
    found: list[relax.If] = []
    tvm_ffi.structural_walk(func.body, (relax.If, lambda node: found.append(node)))
    return bool(found)


def _placeholder(func: relax.Function) -> relax.Function:
    """An empty body in place of one that the planner must not touch; it keeps the function's name and calls valid."""
    return relax.Function([], relax.SeqExpr([], relax.Tuple([])), relax.TupleType([]), attrs=func.attrs)
