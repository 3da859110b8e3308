"""Which outputs of a Relax function are memory of their own, and which may be one of its constants.

main(x):  y = R.add(x, c)           y is computed from data that comes in: memory of its own
          z = R.reshape(c, (4,))    z may be c itself, which every later call shares
          return y, z, x            x is the caller's; the runtime sees that by its address
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

# These may return their first argument's memory, whatever the other arguments are.
_VIEWS = {"relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims", "relax.memory.view"}


def owned_outputs(main: relax.Function) -> list[bool]:
    """For each output, True where it is computed from an input, or is one, whatever is folded later."""
    fed = set(main.params)
    result = _last_value(main.body, fed)
    if isinstance(main.ret_ty, relax.TupleType):
        fields = result.fields if isinstance(result, relax.Tuple) else [result] * len(main.ret_ty.fields)
        return [_is_fed(field, fed) for field in fields]
    return [_is_fed(result, fed)]


def _last_value(body: Any, fed: set[tvm.ir.Var]) -> Any:
    """Add to `fed` what `body` computes from fed variables; returns its result, a tuple by its fields."""
    if not isinstance(body, relax.SeqExpr):
        return body
    tuples: dict[tvm.ir.Var, relax.Tuple] = {}
    for block in body.blocks:
        for binding in block.bindings:
            if _is_fed(binding.value, fed):
                fed.add(binding.var)
            if isinstance(binding.value, relax.Tuple):
                tuples[binding.var] = binding.value
    return tuples.get(body.body, body.body) if isinstance(body.body, tvm.ir.Var) else body.body


def _is_fed(expr: Any, fed: set[tvm.ir.Var]) -> bool:
    if isinstance(expr, tvm.ir.Var):
        return expr in fed
    if isinstance(expr, relax.If):
        return all(_branch_is_fed(branch, fed) for branch in (expr.true_branch, expr.false_branch))
    if isinstance(expr, relax.Tuple):
        return all(_is_fed(field, fed) for field in expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        return _is_fed(expr.tuple_value, fed)
    if isinstance(expr, relax.Call):
        if isinstance(expr.op, tvm.ir.GlobalVar):
            return False  # a loop may hand on what it started with, a branch of it a constant
        is_view = isinstance(expr.op, tvm.ir.Op) and expr.op.name in _VIEWS
        return any(_reads_fed(arg, fed) for arg in (expr.args[:1] if is_view else expr.args))
    return False


def _reads_fed(arg: Any, fed: set[tvm.ir.Var]) -> bool:
    if isinstance(arg, relax.Tuple):
        return any(_reads_fed(field, fed) for field in arg.fields)
    return _is_fed(arg, fed)


def _branch_is_fed(branch: Any, fed: set[tvm.ir.Var]) -> bool:
    inner = set(fed)
    return _is_fed(_last_value(branch, inner), inner)
