"""Compile assertions on shapes, which Relax would otherwise evaluate in Python, into functions of the library.

    R.assert_op(n == m, n, m, format="{} and {} differ")  ->  R.call_packed("check_shapes_0", n, m)
                                                              @T.prim_func check_shapes_0(n, m):
                                                                  assert n == m, "n and m differ"

Neighbouring assertions share one function. Works before and after LegalizeOps, once the dataflow blocks are gone.
Compiled code cannot print numbers: placeholders of a message take the text of the extents.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

_ASSERT = tvm.ir.Op.get("relax.assert_op")
_LEGALIZED = "relax.run.assert_op"  # the Python function that LegalizeOps makes of it


@tvm.transform.module_pass(opt_level=0, name="LowerShapeAsserts")
class LowerShapeAsserts:
    """Replace every R.assert_op over symbolic shapes; assertions on tensors stay as they are."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        checks: dict[str, tirx.PrimFunc] = {}
        result = mod.clone()
        for gv, func in mod.functions.items():
            if isinstance(func, relax.Function):
                result.update_func(gv, _Lower(checks).visit_expr(func))
        for name, check in checks.items():
            result[name] = check
        return result


@mutator
class _Lower(PyExprMutator):
    def __init__(self, checks: dict[str, tirx.PrimFunc]):
        super().__init__()
        self.checks = checks

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        self.builder_._begin_binding_block()
        pending: list[relax.Call] = []
        for binding in block.bindings:
            if _is_shape_assert(binding):
                pending.append(binding.value)
                continue
            self._emit_check(pending)
            pending = []
            self.visit_binding(binding)
        self._emit_check(pending)
        return self.builder_._end_block()

    def _emit_check(self, asserts: list[relax.Call]) -> None:
        if not asserts:
            return
        name = f"check_shapes_{len(self.checks)}"
        used = list({v: None for a in asserts for v in tirx.analysis.undefined_vars(a.args[0])})
        self.checks[name] = _check_function(name, used, asserts)
        call = relax.Call(relax.ExternFunc(name), [relax.prim_value(v) for v in used], ty_args=[relax.TupleType([])])
        self.builder_.emit(call)


def _is_shape_assert(binding: Any) -> bool:
    value = getattr(binding, "value", None)
    return (
        isinstance(binding, relax.VarBinding)
        and isinstance(value, relax.Call)
        and (value.op == _ASSERT or getattr(value.op, "global_symbol", "") == _LEGALIZED)
        and tvm.ir.is_prim_expr(value.args[0])
        and not isinstance(value.args[0], relax.Var)
    )


def _check_function(name: str, used: list[tirx.Var], asserts: list[relax.Call]) -> tirx.PrimFunc:
    params = {v: tirx.Var(v.name, v.ty.dtype) for v in used}
    statements = []
    for call in asserts:
        condition = _substitute(call.args[0], params)
        message = call.args[1].value.format(*(str(value) for value in call.args[2:]))
        # the constructor's Python signature names its first two parameters the other way round
        statements.append(tirx.AssertStmt(condition, tvm.ir.StringImm("ValueError"), [tvm.ir.StringImm(message)]))
    body = statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
    return tirx.PrimFunc(list(params.values()), body).with_attr({"global_symbol": name, "tirx.is_scheduled": True})


def _substitute(expr: Any, mapping: dict[Any, Any]) -> Any:
    return tvm_ffi.structural_map(expr, (tvm.ir.Var, lambda v: mapping.get(v, v)))
