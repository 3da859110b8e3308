"""Pass the symbols of a fusion group along in one shape, those that are in no shape of its tensors as well.

    fused(x, s, tir_vars: R.Shape([m]))      called with (a, n, R.shape([k]))
    --->
    fused(x, tir_vars: R.Shape([m, s]))      called with (a, R.shape([k, n]))

FuseOps makes a parameter of a symbol that a kernel only computes with, such as the count of a mean; FuseTIR then
defines it twice.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


@tvm.transform.module_pass(opt_level=0, name="GatherGroupSymbols")
class GatherGroupSymbols:
    """Turn the scalar parameters of fusion groups into members of their shape parameter; follows FuseOps."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        groups = {gv: func for gv, func in mod.functions_items() if _is_group(func) and _scalars(func)}
        if not groups:
            return mod
        calls = _Calls(mod, groups)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and gv not in groups:
                calls.builder_.update_func(gv, calls.visit_expr(func))
        result = calls.builder_.get()
        for gv in groups:
            del result[gv]
        return result


@mutator
class _Calls(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, groups: dict[tvm.ir.GlobalVar, relax.Function]):
        super().__init__(mod)
        self.groups = groups
        self.gathered = {gv: self.builder_.add_func(_gathered(f), gv.name_hint) for gv, f in groups.items()}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        group = self.groups.get(call.op) if isinstance(call.op, tvm.ir.GlobalVar) else None
        if group is None:
            return call
        shape, scalars = _shape(group), _scalars(group)
        dims = list(call.args[shape].values) if shape is not None else []
        dims += [call.args[k] for k in scalars]
        rest = [arg for k, arg in enumerate(call.args) if k != shape and k not in scalars]
        return relax.Call(self.gathered[call.op], [*rest, relax.ShapeExpr(dims)], call.attrs, call.ty_args)


def _is_group(func: tvm.ir.BaseFunc) -> bool:
    return isinstance(func, relax.Function) and bool(func.attrs) and bool(func.attrs.get("Primitive", False))


def _scalars(group: relax.Function) -> list[int]:
    """Positions of the parameters that are integers, as extents are."""
    return [k for k, param in enumerate(group.params) if param.ty == tvm.ir.PrimType("int64")]


def _shape(group: relax.Function) -> int | None:
    """Position of the parameter that FuseOps adds for symbols, the last one."""
    last = len(group.params) - 1
    return last if last >= 0 and isinstance(group.params[last].ty, relax.ShapeType) else None


def _gathered(group: relax.Function) -> relax.Function:
    shape, scalars = _shape(group), _scalars(group)
    symbols = list(group.params[shape].ty.values) if shape is not None else []
    symbols += [group.params[k] for k in scalars]
    rest = [param for k, param in enumerate(group.params) if k != shape and k not in scalars]
    params = [*rest, relax.Var("tir_vars", relax.ShapeType(symbols))]
    return relax.Function(params, group.body, group.ret_ty, group.is_pure, group.attrs)
