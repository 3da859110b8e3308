"""Integer arithmetic in a torch graph: sizes as Python ints and prim expressions, never as tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import tvm
from tvm import tirx

from tvm_dyn.frontend.ops.shape import product
from tvm_dyn.frontend.torch_registry import TorchContext
from tvm_dyn.frontend.value import Value
from tvm_dyn.symbolic import simplify

_SYMBOLIC: dict[Any, Callable[..., Any]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.neg: operator.neg,
    operator.floordiv: tirx.floordiv,
    operator.mod: tirx.floormod,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
    operator.lt: operator.lt,
    operator.le: operator.le,
    operator.gt: operator.gt,
    operator.ge: operator.ge,
    operator.and_: tirx.all,
    operator.or_: tirx.any,
    operator.truediv: lambda a, b: a.astype("float64") / b.astype("float64"),
    torch.sym_max: tirx.max,
    torch.sym_min: tirx.min,
    torch.sym_not: tirx.Not,
    torch.sym_float: lambda a: a.astype("float64"),
    torch.sym_int: lambda a: a.astype("int64"),
    math.floor: lambda a: tirx.floor(a).astype("int64"),
    math.ceil: lambda a: tirx.ceil(a).astype("int64"),
    math.trunc: lambda a: tirx.trunc(a).astype("int64"),
}

_COMPARE = {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge}


def evaluate(t: TorchContext, target: Any, args: tuple[Any, ...]) -> tuple[bool, Any]:
    """(True, result) for a node that computes with sizes or states facts about them, else (False, None)."""
    if target in _SYMBOLIC and not any(isinstance(a, Value) for a in args):
        return True, _arithmetic(t, target, args)
    name = str(target).removeprefix("aten.")
    if name in _READERS:
        return True, _READERS[name](t, *args)
    if name.startswith(("_assert_tensor_metadata", "sym_constrain_range")):
        return True, None
    return False, None


def _arithmetic(t: TorchContext, target: Any, args: tuple[Any, ...]) -> Any:
    if not any(isinstance(a, tvm.ir.Expr) for a in args):
        return target(*args)
    dtype = next(str(a.ty.dtype) for a in args if isinstance(a, tvm.ir.Expr))
    operands = [a if isinstance(a, tvm.ir.Expr) else tirx.const(a, dtype) for a in args]
    result = _SYMBOLIC[target](*operands)
    if target in _COMPARE and t.ctx.facts.prove(result):
        return True
    return simplify(result, t.ctx.facts) if str(result.ty.dtype) == "int64" else result


def _assert_scalar(t: TorchContext, condition: Any, message: str = "") -> None:
    """What torch could not prove about sizes while it traced is checked at run time."""
    if isinstance(condition, tvm.ir.Expr) and str(condition.ty.dtype) == "bool":
        t.ctx.require(condition, [], f"{t.ctx.label}: {message}")


_READERS: dict[str, Callable[..., Any]] = {
    "sym_size.int": lambda t, value, dim: t.shape(value)[dim],
    "sym_numel.default": lambda t, value: product(t.shape(value)),
    "item.default": lambda t, value: t.ctx.scalar(value),
    "_local_scalar_dense.default": lambda t, value: t.ctx.scalar(value),
    "_assert_scalar.default": _assert_scalar,
}
