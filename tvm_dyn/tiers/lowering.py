"""A module for the executor: its operators are those that run on lazy arrays, all others become kernels.

    gv = R.nn.softmax(x)                   gv = R.nn.softmax(x)
    gv1 = R.image.resize2d(gv, ...)  -->   gv1 = R.call_tir(cls.resize2d, (gv,), ...)
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call, Op
from tvm.relax.expr_functor import PyExprVisitor, visitor
from tvm.target import Target

from tvm_dyn import pipeline
from tvm_dyn.tiers import operators

_RUNTIME = ("relax.assert_op",)


def lower_for_bytecode(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The imported module after the phase "propagate", with kernels for the operators that need them."""
    steps = dict(pipeline.phases(target))["propagate"]
    with target:
        module = tvm.transform.Sequential(steps)(module)
        module = relax.backend.DispatchSortScan()(relax.backend.DispatchSampling()(module))
        return relax.transform.LegalizeOps(skip_ops=[*_kept(module), *_RUNTIME])(module)


def _kept(module: tvm.IRModule) -> list[str]:
    """The operators that the executor runs itself, in each of their calls."""
    calls = _Calls()
    for _, func in module.functions_items():
        if isinstance(func, relax.Function):
            calls.visit_expr(func)
    unsupported = {call.op.name for call in calls.found if not operators.supports(call)}
    return sorted({call.op.name for call in calls.found} - unsupported)


@visitor
class _Calls(PyExprVisitor):
    """Every call of an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Call] = []

    def visit_call_(self, call: Call) -> None:
        if isinstance(call.op, Op):
            self.found.append(call)
