"""Kernels of a dataflow block as a function of their own, and as one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_dyn.symbolic import free_vars


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


def fuse(mod: tvm.IRModule, members: Sequence[relax.VarBinding]) -> tirx.PrimFunc:
    """One kernel of call_tir bindings, for a look at what it would be; ``mod`` holds the kernels that they call."""
    func, _ = outline(members)
    builder = relax.BlockBuilder()
    for binding in members:
        gv = binding.value.args[0]
        builder.update_func(gv, mod[gv])
    group = builder.add_func(func, "group")
    params = [relax.Var(p.name, p.ty) for p in relax.utils.copy_with_new_vars(func).params]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(group, params))
        builder.emit_func_output(result)
    fused = relax.transform.FuseTIR()(builder.get())
    (call,) = [b.value for b in fused["main"].body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    return fused[call.args[0]]
