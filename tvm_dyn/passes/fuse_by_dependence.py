"""Make one kernel of each fusion group.

lv  = R.call_tir(cls.matmul, (x, w), ...)     # group 0
lv1 = R.call_tir(cls.add, (lv, b), ...)       # group 0
--->
lv1 = R.call_tir(cls.fused_matmul_add, (x, w, b), ...)
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_dyn.passes.outline import outline
from tvm_dyn.passes.partition_by_backbone import GROUP
from tvm_dyn.passes.rewriting import RESHAPE, rewrite_functions

_NAME_LENGTH = 80


@tvm.transform.module_pass(opt_level=0, name="FuseByDependence")
class FuseByDependence:
    """Follows `PartitionByBackbone`. Kernels that only groups used are gone afterwards."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        steps = [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
        return tvm.transform.Sequential(steps)(rewrite_functions(mod, _Outlined(mod)))


@mutator
class _Outlined(PyExprMutator):
    """Calls of a primitive function in place of the last call of each group."""

    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.groups: dict[int, list[relax.VarBinding]] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        for binding in block.bindings:
            number = _group(binding)
            if number is not None:
                self.groups.setdefault(number, []).append(binding)
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        number = _group(binding)
        if number is None:
            super().visit_var_binding_(binding)
            return
        if not binding.var.same_as(self.groups[number][-1].var):
            return
        members = [self._as_kernel(member) for member in self.groups[number]]
        func, arguments = outline(members)
        gv = self.builder_.add_func(func, _name(members))
        super().visit_var_binding_(relax.VarBinding(binding.var, relax.Call(gv, arguments)))

    def _as_kernel(self, binding: relax.VarBinding) -> relax.VarBinding:
        """A view inside a group is an index map."""
        call = binding.value
        if call.op != RESHAPE:
            return binding
        shape = list(binding.var.ty.shape.values)
        return relax.VarBinding(binding.var, self.builder_.call_te(topi.reshape, call.args[0], shape))


def _group(binding: relax.Binding) -> int | None:
    value = binding.value
    attrs = value.attrs if isinstance(value, relax.Call) else None
    return int(attrs[GROUP]) if isinstance(attrs, tvm.ir.DictAttrs) and GROUP in attrs.keys() else None  # noqa: SIM118


def _name(members: Sequence[relax.VarBinding]) -> str:
    return "_".join(["fused", *(binding.value.args[0].name_hint for binding in members)])[:_NAME_LENGTH]
