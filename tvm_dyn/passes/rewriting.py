"""What passes that rewrite Relax functions share."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Op
from tvm.relax.expr_functor import PyExprMutator

CALL_TIR = Op.get("relax.call_tir")
RESHAPE = Op.get("relax.reshape")


def rewrite_functions(mod: tvm.IRModule, rewriter: PyExprMutator) -> tvm.IRModule:
    """``mod`` with every Relax function as ``rewriter``, made for ``mod``, leaves it, and the kernels it added."""
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(gv, rewriter.visit_expr(func))
    return rewriter.builder_.get()
