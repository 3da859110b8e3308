"""Lay constant right-hand sides of products out in panels, in the order in which their kernels read them.

R.call_tir(cls.fused_matmul_add, (x, w, b), ...)           # w constant, (768, 3072)
    C[i, j] += A[i, k] * W[k, j]                           # its trace decides on panels of 64 columns
--->
R.call_tir(cls.fused_matmul_add, (x, w_packed, b), ...)    # (48, 768, 64)
    C[i, j] += A[i, k] * W[j // 64, k, j % 64]

Transposes and casts of W go into the layout and the kernel. Columns beyond the last one are zeros.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GenericConst, GlobalVar
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.hardware import host_target
from tvm_dyn.passes.rewriting import CALL_TIR, rewrite_functions
from tvm_dyn.schedules.backbone import has_constant_operand
from tvm_dyn.schedules.weight_panels import Layout, Packed, pack


@tvm.transform.module_pass(opt_level=0, name="PackConstantWeights")
class PackConstantWeights:
    """Comes after `MarkConstantWeights`, and after `ReplayBackboneSchedule`, whose traces decide how wide panels are.

    target: where there is no trace, its registers decide; by default the target in scope, else the host CPU.
    """

    def __init__(self, target: Target | None = None):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = self.target or Target.current(allow_none=True) or host_target()
        marked = {gv: f for gv, f in mod.functions_items() if isinstance(f, PrimFunc) and has_constant_operand(f)}
        packed = {gv: pack(func, target) for gv, func in marked.items()}
        result = rewrite_functions(mod, _Packing(mod, packed))
        for gv in packed:
            del result[gv]
        return result


@mutator
class _Packing(PyExprMutator):
    """Gives packed weights to the kernels that take them; the same constant is packed once."""

    def __init__(self, mod: tvm.IRModule, packed: dict[GlobalVar, Packed]):
        super().__init__(mod)
        self.packed = packed
        self.kernels = {gv: self.builder_.add_func(p.func, gv.name_hint) for gv, p in packed.items()}
        self.constants: list[tuple[GenericConst, Layout, GenericConst]] = []

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        packed = self.packed.get(call.args[0]) if call.op.same_as(CALL_TIR) else None
        if packed is None:
            return call
        operands = list(call.args[1].fields)
        operands[packed.position] = self._constant(operands[packed.position], packed.layout)
        args = [self.kernels[call.args[0]], relax.Tuple(operands), *call.args[2:]]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _constant(self, constant: GenericConst, layout: Layout) -> GenericConst:
        for source, known, result in self.constants:
            if known == layout and source.value.same_as(constant.value):
                return result
        result = relax.const(tvm.runtime.tensor(layout.pack(constant.value.numpy())), str(constant.ty.dtype))
        self.constants.append((constant, layout, result))
        return result
