"""Make one kernel of each fusion group.

lv  = R.call_tir(cls.matmul, (x, w), ...)     # group 0
lv1 = R.call_tir(cls.add, (lv, b), ...)       # group 0
--->
lv1 = R.call_tir(cls.fused_matmul_add, (x, w, b), ...)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_dyn.passes.partition_by_backbone import GROUP
from tvm_dyn.symbolic import free_vars

_NAME_LENGTH = 80


@tvm.transform.module_pass(opt_level=0, name="FuseByDependence")
class FuseByDependence:
    """Follows `PartitionByBackbone`. Kernels that only groups used are gone afterwards."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        outlined = _Outlined(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function):
                outlined.builder_.update_func(gv, outlined.visit_expr(func))
        steps = [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
        return tvm.transform.Sequential(steps)(outlined.builder_.get())


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
        members = self.groups[number]
        if not binding.var.same_as(members[-1].var):
            return
        func, arguments = outline(members)
        gv = self.builder_.add_func(func, _name(members))
        super().visit_var_binding_(relax.VarBinding(binding.var, relax.Call(gv, arguments)))


def _group(binding: relax.Binding) -> int | None:
    value = binding.value
    attrs = value.attrs if isinstance(value, relax.Call) else None
    return int(attrs[GROUP]) if isinstance(attrs, tvm.ir.DictAttrs) and GROUP in attrs.keys() else None  # noqa: SIM118


def _name(members: Sequence[relax.VarBinding]) -> str:
    return "_".join(["fused", *(binding.value.args[0].name_hint for binding in members)])[:_NAME_LENGTH]


def outline(members: Sequence[relax.VarBinding]) -> tuple[relax.Function, list[Any]]:
    """A primitive function of call_tir bindings, the result of the last one its result, and the arguments to call it
    with. Symbols that no tensor argument tells come in a shape argument.
    """
    inputs = _inputs(members)
    params = [relax.Var(f"p{n}", argument.ty) for n, argument in enumerate(inputs)]
    symbols = _untold_symbols(members, inputs)
    arguments = list(inputs)
    if symbols:
        params.append(relax.Var("symbols", relax.ShapeType(symbols)))
        arguments.append(relax.ShapeExpr(symbols))
    bindings, result = _body(members, inputs, params)
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    func = relax.Function(params, body, result.ty, is_pure=True)
    return relax.utils.copy_with_new_vars(func).with_attr("Primitive", True), arguments


def _body(
    members: Sequence[relax.VarBinding], inputs: list[Any], params: list[relax.Var]
) -> tuple[list[relax.VarBinding], relax.Var]:
    inside: dict[Any, relax.Var] = {}

    def operand(argument: Any) -> Any:
        if argument in inside:
            return inside[argument]
        known = [param for known, param in zip(inputs, params, strict=False) if known.same_as(argument)]
        return known[0] if known else argument

    bindings = []
    for binding in members:
        call, last = binding.value, binding is members[-1]
        arguments = relax.Tuple([operand(argument) for argument in call.args[1].fields])
        call = relax.Call(call.op, [call.args[0], arguments, *call.args[2:]], None, call.ty_args)
        kind = relax.Var if last else relax.DataflowVar
        inside[binding.var] = kind(binding.var.name, binding.var.ty)
        bindings.append(relax.VarBinding(inside[binding.var], call))
    return bindings, inside[members[-1].var]


def _inputs(members: Sequence[relax.VarBinding]) -> list[Any]:
    """The tensors that the members take from outside, each once."""
    made = [binding.var for binding in members]
    found: list[Any] = []
    for binding in members:
        for argument in binding.value.args[1].fields:
            if isinstance(argument.ty, relax.TensorType) and not any(argument.same_as(v) for v in [*made, *found]):
                found.append(argument)
    return found


def _untold_symbols(members: Sequence[relax.VarBinding], inputs: list[Any]) -> list[tvm.ir.Var]:
    told = {dim for argument in inputs for dim in _dims(argument.ty) if isinstance(dim, tvm.ir.Var)}
    used: dict[tvm.ir.Var, None] = {}
    for expr in _symbolic(members, inputs):
        used |= dict.fromkeys(free_vars(expr))
    return [v for v in used if v not in told]


def _symbolic(members: Sequence[relax.VarBinding], inputs: list[Any]) -> Iterable[Any]:
    """Every extent and scalar that the group mentions."""
    for ty in (*(argument.ty for argument in inputs), *(binding.value.ty_args[0] for binding in members)):
        yield from _dims(ty)
    for binding in members:
        for argument in (*binding.value.args[1].fields, *binding.value.args[2:]):
            if isinstance(argument, relax.ShapeExpr):
                yield from argument.values
            elif not isinstance(argument.ty, relax.TensorType):
                yield argument


def _dims(ty: Any) -> list[Any]:
    return list(ty.shape.values) if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr) else []
