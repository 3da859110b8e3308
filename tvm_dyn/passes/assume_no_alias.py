"""Mark every PrimFunc as free of aliasing buffers, those that lowering adds included.

    @T.prim_func shape_func(...)   ->   @T.prim_func shape_func(...)   tirx.noalias
    @T.prim_func fused_conv2d(...)      @T.prim_func fused_conv2d(...) tirx.noalias

TVM's LLVM code generator decides for a whole module by its last function whether buffers may alias: one
function without the mark (`VMShapeLower` adds some) and no sum stays in a register anywhere, which costs a
factor of three. Outputs never alias inputs, as the memory planner keeps a call's arguments alive until it
returns.
"""

from __future__ import annotations

import tvm
from tvm import tirx


@tvm.transform.module_pass(opt_level=0, name="AssumeNoAlias")
class AssumeNoAlias:
    """Set ``tirx.noalias`` on all PrimFuncs; comes after every pass that creates some."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gv, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc):
                result.update_func(gv, func.with_attr("tirx.noalias", True))
        return result
