"""Kernels that are the same become one, so that each is scheduled and compiled once.

R.call_tir(cls.fused_conv2d_add, ...)            R.call_tir(cls.fused_conv2d_add, ...)
R.call_tir(cls.fused_conv2d1_add1, ...)    ->    R.call_tir(cls.fused_conv2d_add, ...)
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_dyn.passes.rewriting import rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="ShareKernels")
class ShareKernels:
    """Keep one PrimFunc of those that differ in the names of their variables only; public ones all stay."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        shared = _Shared(mod, _same_kernels(mod))
        result = rewrite_functions(mod, shared)
        for gv in shared.kept:
            del result[gv]
        return result


def _same_kernels(mod: tvm.IRModule) -> dict[GlobalVar, GlobalVar]:
    """Each kernel that is to go -> the one to call instead."""
    known: dict[int, list[GlobalVar]] = {}
    kept: dict[GlobalVar, GlobalVar] = {}
    for gv, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or (func.attrs and "global_symbol" in func.attrs):
            continue
        alike = known.setdefault(tvm_ffi.structural_hash(func, map_free_vars=True), [])
        first = next((k for k in alike if tvm_ffi.structural_equal(mod[k], func, map_free_vars=True)), None)
        if first is None:
            alike.append(gv)
        else:
            kept[gv] = first
    return kept


@mutator
class _Shared(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, kept: dict[GlobalVar, GlobalVar]):
        super().__init__(mod)
        self.kept = kept

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        args = [self.kept.get(a, a) if isinstance(a, GlobalVar) else a for a in call.args]
        return relax.Call(call.op, args, call.attrs, call.ty_args)
