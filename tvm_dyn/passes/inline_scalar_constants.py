"""Constants of one element become part of the kernels that read them.

    lv1 = R.call_tir(cls.multiply, (lv, R.const(0.125)), ...)
    --->
    lv1 = R.call_tir(cls.multiply1, (lv,), ...)        # T_multiply[i] = lv[i] * T.float32(0.125)

Kernels are then recognised by what they compute (a scaled product, a guard that puts zeros in place of NaN), and
arithmetic with a known number is simpler.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import PrimFunc

from tvm_dyn.passes.dependence import Work, dependence
from tvm_dyn.passes.rewriting import CALL_TIR, rewrite_functions
from tvm_dyn.schedules.common import changed


@tvm.transform.module_pass(opt_level=0, name="InlineScalarConstants")
class InlineScalarConstants:
    """Specialise each call_tir for its constant operands of one element; comes after LegalizeOps."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, _Inlined(mod))


@mutator
class _Inlined(PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.source = mod

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        func = self.source.functions.get(call.args[0]) if call.op == CALL_TIR else None
        if not isinstance(func, PrimFunc) or not isinstance(func.body, s_tir.SBlockRealize):
            return call
        operands = list(call.args[1].fields)
        known = {n: value for n, operand in enumerate(operands) if (value := _scalar(operand)) is not None}
        # A tensor that is filled with one number stays one: TVM's simplifier fails on what becomes of comparisons.
        if not known or dependence(func).work == Work.MOVE:
            return call
        callee = self.builder_.add_func(_specialised(func, known), call.args[0].name_hint)
        rest = relax.Tuple([operand for n, operand in enumerate(operands) if n not in known])
        return relax.Call(call.op, [callee, rest, *call.args[2:]], call.attrs, call.ty_args)


def _scalar(operand: Any) -> tirx.Expr | None:
    """The number that a constant holds, None for anything else."""
    if not isinstance(operand, GenericConst) or not isinstance(operand.ty, relax.TensorType):
        return None
    if str(operand.ty.dtype) == "bool":
        return None  # TVM fails on vectors of known truth values
    shape = operand.ty.shape
    dims = list(shape.values) if isinstance(shape, relax.ShapeExpr) else None
    if dims is None or any(not isinstance(d, tirx.IntImm) or d.value != 1 for d in dims):
        return None
    value = operand.value.numpy().reshape(()).item()
    if value != value:
        return None  # TVM's simplifier does not reckon with NaN
    return tirx.const(value, str(operand.ty.dtype))


def _specialised(func: PrimFunc, known: dict[int, tirx.Expr]) -> PrimFunc:
    values = {func.params[n]: value for n, value in known.items()}

    def load(node: tvm.ir.TensorLoad) -> tirx.Expr:
        return values.get(node.source, node)

    def block(node: s_tir.SBlock) -> s_tir.SBlock:
        return changed(node, reads=[region for region in node.reads if region.source not in values])

    rules = [(tvm.ir.TensorLoad, load), (s_tir.SBlock, block)]
    body = tvm_ffi.structural_map(func.body, rules, order="post")
    params = [param for n, param in enumerate(func.params) if n not in known]
    return PrimFunc(params, body, func.ret_type, func.attrs)
