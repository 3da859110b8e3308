"""Write the buffer shapes of PrimFuncs in the form that their call sites have.

    x: R.Tensor((n, 4))                                     x: R.Tensor((n, 4))
    R.call_tir(f, (x,), ...)                            ->  R.call_tir(f1, (x,), ...)
    @T.prim_func f(x: T.Buffer((T.min(n, 512), 4)))         @T.prim_func f1(x: T.Buffer((n, 4)))

A PrimFunc that an importer made keeps the extents as they were known then. Once shape propagation knows better,
producer and consumer name one extent in two forms, which FuseTIR takes for two extents.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_dyn.passes.rewriting import CALL_TIR, rewrite_functions
from tvm_dyn.symbolic import free_vars, substitute


@tvm.transform.module_pass(opt_level=0, name="AlignPrimFuncShapes")
class AlignPrimFuncShapes:
    """Give each call_tir a PrimFunc whose buffers have literally the shapes of its arguments and results.

    Where the extents cannot be told in the PrimFunc's own symbols, it stays as it is.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, _Align(mod))


@mutator
class _Align(PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.source = mod
        self.made: dict[tuple[str, str], tuple[tvm.ir.GlobalVar, list[int]]] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        callee = call.args[0] if call.op == CALL_TIR else None
        func = self.source.functions.get(callee) if isinstance(callee, tvm.ir.GlobalVar) else None
        if not isinstance(func, tirx.PrimFunc):
            return call
        shapes = _aligned_shapes(func, call)
        if not shapes:
            return call
        key = callee.name_hint, str(shapes)
        if key not in self.made:
            aligned, kept = _with_shapes(func, shapes)
            self.made[key] = self.builder_.add_func(aligned, callee.name_hint), kept
        aligned_callee, kept = self.made[key]
        arguments = [field for k, field in enumerate(call.args[1].fields) if k in kept]
        return relax.Call(call.op, [aligned_callee, relax.Tuple(arguments)], call.attrs, call.ty_args)


def _aligned_shapes(func: tirx.PrimFunc, call: relax.Call) -> dict[int, list[Any]]:
    """Parameter position -> dims, for the buffers whose dims differ in form from the call's."""
    result = call.ty_args[0]
    outputs = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    operands = [*call.args[1].fields, *outputs]
    if len(operands) != len(func.params):
        return {}
    outer = _symbols(func, operands)
    inner = {value: var for var, value in reversed(outer.items()) if isinstance(value, tvm.ir.Var)}
    shapes = {}
    for position, (param, operand) in enumerate(zip(func.params, operands, strict=True)):
        wanted = _dims(operand)
        if wanted is None or not isinstance(param.ty, tirx.BufferType):
            continue
        have = [substitute(dim, outer) for dim in param.ty.shape]
        same = all(tvm_ffi.structural_equal(a, b) for a, b in zip(have, wanted, strict=True))
        if not same and all(v in inner for dim in wanted for v in free_vars(dim)):
            shapes[position] = [substitute(dim, inner) for dim in wanted]
    return shapes


def _symbols(func: tirx.PrimFunc, operands: list[Any]) -> dict[Any, Any]:
    """The PrimFunc's symbols -> what they are at the call."""
    outer: dict[Any, Any] = {}
    for param, operand in zip(func.params, operands, strict=True):
        if not isinstance(param.ty, tirx.BufferType):
            outer.setdefault(param, operand)
            continue
        for dim, value in zip(param.ty.shape, _dims(operand) or [], strict=False):
            if isinstance(dim, tvm.ir.Var):
                outer.setdefault(dim, value)
    return outer


def _dims(operand: Any) -> list[Any] | None:
    ty = operand if isinstance(operand, tvm.ir.Type) else operand.ty
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else None


def _with_shapes(func: tirx.PrimFunc, shapes: dict[int, list[Any]]) -> tuple[tirx.PrimFunc, list[int]]:
    """The same function, private, with other extents for some of its buffers, and the positions of the parameters kept.

    A symbol that nothing uses any more is dropped: FuseTIR fails on groups that pass one along.
    """
    aligned = _renamed(func, shapes)
    used = set(tirx.analysis.undefined_vars(aligned.body, []))
    buffers = [p for p in aligned.params if isinstance(p.ty, tirx.BufferType)]
    used |= {v for p in buffers for dim in p.ty.shape for v in free_vars(dim)}
    kept = [k for k, p in enumerate(aligned.params) if p in buffers or p in used]
    params = [aligned.params[k] for k in kept]
    return tirx.PrimFunc(params, aligned.body, aligned.ret_type, aligned.attrs), kept


def _renamed(func: tirx.PrimFunc, shapes: dict[int, list[Any]]) -> tirx.PrimFunc:
    """``func`` with ``shapes`` for some parameters, and the old extents rewritten in the body.

    The extents of parameters are variables while the body is rewritten: one form may be wanted in two ways.
    """
    buffers: dict[Any, Any] = {}
    forms: list[tuple[Any, Any]] = []
    final: dict[Any, Any] = {}
    for position, old in enumerate(func.params):
        if not isinstance(old.ty, tirx.BufferType):
            continue
        dims = shapes.get(position, list(old.ty.shape))
        pairs = zip(old.ty.shape, dims, strict=True)
        forms += [(a, b) for a, b in pairs if a is not b and not isinstance(a, tirx.IntImm | tvm.ir.Var)]
        names = [d if isinstance(d, tirx.IntImm | tvm.ir.Var) else tirx.Var("extent", d.ty) for d in dims]
        final |= {name: dim for name, dim in zip(names, dims, strict=True) if name is not dim}
        buffers[old] = tirx.decl_buffer(
            names,
            old.ty.dtype,
            old.name,
            elem_offset=old.ty.elem_offset,
            data_alignment=old.ty.data_alignment,
            offset_factor=old.ty.offset_factor,
            layout=None if old.ty.layout is None else "default",
        )

    def rewrite(expr: tvm.ir.Expr) -> tvm.ir.Expr:
        return next((new for old, new in forms if tvm_ffi.structural_equal(expr, old)), expr)

    kinds = dict.fromkeys(type(old) for old, _ in forms)
    rules = [(tvm.ir.Var, lambda var: buffers.get(var, var)), *((kind, rewrite) for kind in kinds)]
    func = tvm_ffi.structural_map(func.without_attr("global_symbol"), rules, order="pre")
    return tvm_ffi.structural_map(func, [(tvm.ir.Var, lambda var: final.get(var, var))], order="pre")
