"""Write down, on each kernel, what its schedule is built around and the iteration map of each operand.

@T.prim_func def matmul(A, B, C): ...
--->
@T.prim_func def matmul(A, B, C):
    T.func_attr({"tvm_dyn.dependence": {"backbone": "product", "work": "cheap",
                                        "operands": [["reduce", 1, False], ["reduce", 0, True]]}})
"""

from __future__ import annotations

import tvm
from tvm import tirx

from tvm_dyn.passes.dependence import ATTRIBUTE, dependence


@tvm.transform.module_pass(opt_level=0, name="AnnotateDependence")
class AnnotateDependence:
    """Attach `Dependence.to_attribute` to every PrimFunc; see `dependence` for the terms."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gv, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                result.update_func(gv, func.with_attr(ATTRIBUTE, dependence(func).to_attribute()))
        return result
