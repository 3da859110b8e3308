"""Mark the products whose right-hand side is a constant matrix: their kernels may have it in any layout.

R.call_tir(cls.fused_matmul_add, (x, w, b), ...)           # w constant
    with T.sblock("matmul"): C[i, j] += A[i, k] * W[k, j]
--->
    with T.sblock("matmul"): T.sblock_attr({"tvm_dyn.constant": 1}) ...      # what was inlined is inlined
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GenericConst, GlobalVar
from tvm.relax.expr_functor import PyExprVisitor, visitor
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.hardware import host_target
from tvm_dyn.passes.rewriting import CALL_TIR
from tvm_dyn.schedules.weight_panels import marked, packable_operand


@tvm.transform.module_pass(opt_level=0, name="MarkConstantWeights")
class MarkConstantWeights:
    """Comes after fusion. A kernel is marked if all of its calls give it constants there, on CPU targets.

    target: by default the target in scope, else the host CPU.
    """

    def __init__(self, target: Target | None = None):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = self.target or Target.current(allow_none=True) or host_target()
        result = mod.clone()
        if target.kind.name != "llvm":
            return result
        calls = _Calls()
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                calls.visit_expr(func)
        for gv, arguments in calls.found.items():
            operand = packable_operand(mod[gv]) if isinstance(mod[gv], PrimFunc) else None
            if operand and all(_is_constant(args, operand.position) for args in arguments):
                result.update_func(gv, marked(operand.func))
        return result


def _is_constant(args: list[relax.Expr] | None, position: int) -> bool:
    return args is not None and position < len(args) and isinstance(args[position], GenericConst)


@visitor
class _Calls(PyExprVisitor):
    """The arguments of every call of every kernel; None for a kernel that is used in another way."""

    def __init__(self) -> None:
        self.found: dict[GlobalVar, list[list[relax.Expr] | None]] = {}

    def visit_call_(self, call: relax.Call) -> None:
        kernel = call.args[0] if call.op.same_as(CALL_TIR) else None
        for arg in call.args:
            if isinstance(arg, GlobalVar):
                args = list(call.args[1].fields) if arg.same_as(kernel) else None
                self.found.setdefault(arg, []).append(args)
