"""Kernels that only give their operand another shape become views of it.

    lv: R.Tensor((n * 4,)) = R.call_tir(cls.reshape, (x,), ...)    ->    lv = R.reshape(x, R.shape([n * 4]))

Results of the function stay copies, so that no result shares memory with an argument or another result. TVM's own pass,
RewriteDataflowReshape, gives the whole module up where its analysis fails on one kernel.
"""

from __future__ import annotations

import math

import tvm
from tvm import relax, sym, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="ReshapesToViews")
class ReshapesToViews:
    """Rewrite call_tir of reshapes inside dataflow blocks. Knows them by their loops: comes before schedules."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        views = _Views(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function):
                views.builder_.update_func(gv, views.visit_expr(func))
        return views.builder_.get()


@mutator
class _Views(PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.source = mod
        self.known: dict[tvm.ir.GlobalVar, bool] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if isinstance(binding.var, relax.DataflowVar) and isinstance(value, relax.Call) and value.op == _CALL_TIR:
            view = self._view(value)
            if view is not None:
                binding = relax.VarBinding(binding.var, view)
        super().visit_var_binding_(binding)

    def _view(self, call: relax.Call) -> relax.Expr | None:
        callee, operands = call.args[0], call.args[1].fields
        tensors = [operand for operand in operands if isinstance(operand.ty, relax.TensorType)]
        result = call.ty_args[0]
        if len(tensors) != 1 or not isinstance(result, relax.TensorType) or tensors[0].ty.dtype != result.dtype:
            return None
        before, after = tensors[0].ty.shape, result.shape
        if not isinstance(before, relax.ShapeExpr) or not isinstance(after, relax.ShapeExpr):
            return None
        sizes = [math.prod(shape.values, start=tirx.const(1, "int64")) for shape in (before, after)]
        if not sym.Analyzer().can_prove_equal(*sizes) or not self._is_reshape(callee):
            return None
        return relax.op.reshape(tensors[0], after)

    def _is_reshape(self, callee: tvm.ir.GlobalVar) -> bool:
        if callee not in self.known:
            func = self.source[callee]
            try:
                self.known[callee] = isinstance(func, tirx.PrimFunc) and relax.analysis.has_reshape_pattern(func)
            except Exception:  # the analysis fails on some sums of symbols; a copy is right, too
                self.known[callee] = False
        return self.known[callee]
