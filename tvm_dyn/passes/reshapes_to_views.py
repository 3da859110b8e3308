"""Operators that only give their operand another shape become views of it.

    lv: R.Tensor((n, 1)) = R.expand_dims(x, axis=[1])      ->    lv = R.reshape(x, R.shape([n, 1]))   # still an op
    R.output(gv = R.reshape(x, ...))                       ->    gv = R.call_tir(cls.reshape, (x,))   # a copy

Results of the function are copies, so that no result shares memory
with an argument or another result. Comes before LegalizeOps, which has to leave "relax.reshape" alone. TVM's own pass,
RewriteDataflowReshape, knows reshapes by the loops that they were legalized to, which its analysis cannot tell for many
symbolic extents.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_dyn.passes.rewriting import RESHAPE, rewrite_functions

_OTHERS = [tvm.ir.Op.get(f"relax.{name}") for name in ("expand_dims", "squeeze", "flatten")]


@tvm.transform.module_pass(opt_level=0, name="ReshapesToViews")
class ReshapesToViews:
    """Rewrite the operators that keep all elements in their order, inside and outside dataflow blocks."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, _Views(mod))


@mutator
class _Views(PyExprMutator):
    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if isinstance(value, relax.Call) and (value.op == RESHAPE or value.op in _OTHERS):
            source, shape = self.visit_expr(value.args[0]), binding.var.ty.shape
            if isinstance(shape, relax.ShapeExpr) and isinstance(source.ty.shape, relax.ShapeExpr):
                binding = relax.VarBinding(binding.var, self._reshape(binding.var, source, shape))
        super().visit_var_binding_(binding)

    def _reshape(self, result: relax.Var, source: relax.Expr, shape: relax.ShapeExpr) -> relax.Expr:
        if isinstance(source, tvm.ir.GenericConst) and all(isinstance(dim, tirx.IntImm) for dim in shape.values):
            value = source.value.numpy().reshape([int(dim) for dim in shape.values])
            return relax.const(value, str(source.ty.dtype))
        if isinstance(result, relax.DataflowVar):
            return relax.op.reshape(source, shape)
        return self.builder_.call_te(topi.reshape, source, list(shape.values), primfunc_name_hint="reshape")
