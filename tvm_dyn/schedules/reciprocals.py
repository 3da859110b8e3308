"""Softmax in cheaper steps: divisions by one number per row become multiplications by its reciprocal.

    y[i, j] = e[i, j] / s[i]
    --->
    y[i, j] = e[i, j] * (1 / s[i])        # a vector division takes as long as ten multiplications

and exp of what is below its maximum becomes the function that need not expect anything above 0.

Only where the divisor cannot be denormal, whose reciprocal overflows: square roots, and sums of exponentials
less their maximum, one of which is 1. The result may then be off by one more unit in the last place.
"""

from __future__ import annotations

from dataclasses import replace

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad

from tvm_dyn.schedules.common import loads, stores, uses_var
from tvm_dyn.schedules.math import exp_negative
from tvm_dyn.schedules.stage import Stage


def multiply_by_reciprocals(stages: list[Stage], row_axes: int) -> list[Stage]:
    """The stages with such divisions replaced; their first ``row_axes`` axes are the row's."""
    return [_rewrite(stage, stages, row_axes) if len(stage.spatial) > row_axes else stage for stage in stages]


def exponentials_below_maximum(stages: list[Stage]) -> list[Stage]:
    """The stages with exp of an element less the maximum of its row as `math.exp_negative`."""

    def rewrite(call: tvm.ir.Call) -> Expr:
        below = str(call.ty) == "float32" and _is_exp_below_maximum(call, stages)
        return exp_negative(call.args[0]) if below else call

    callback = (tvm.ir.Call, rewrite)
    return [replace(s, body=tvm_ffi.structural_map(s.body, callback, order="post")) for s in stages]


def _rewrite(stage: Stage, stages: list[Stage], row_axes: int) -> Stage:
    inner = [iv.var for iv in stage.spatial[row_axes:]]

    def rewrite(node: tirx.Div) -> Expr:
        if str(node.ty) != "float32" or uses_var(node.b, inner) or not _never_denormal(node.b, stages):
            return node
        return node.a * (tirx.const(1.0, "float32") / node.b)

    return replace(stage, body=tvm_ffi.structural_map(stage.body, (tirx.Div, rewrite), order="post"))


def _never_denormal(divisor: Expr, stages: list[Stage]) -> bool:
    if _called(divisor) == "sqrt":
        return True
    total = _producer(divisor, stages)
    if total is None or not total.reduction or not isinstance(stores(total.body)[0].value, tirx.Add):
        return False
    terms = [load for load in loads(total.body) if not load.source.same_as(divisor.source)]
    made = _producer(terms[0], stages) if len(terms) == 1 else None
    return made is not None and _is_exp_below_maximum(stores(made.body)[0].value, stages)


def _is_exp_below_maximum(value: Expr, stages: list[Stage]) -> bool:
    if _called(value) != "exp" or not isinstance(value.args[0], tirx.Sub):
        return False
    largest = _producer(value.args[0].b, stages)
    return largest is not None and bool(largest.reduction) and isinstance(stores(largest.body)[0].value, tirx.Max)


def _called(value: Expr) -> str:
    return getattr(value.op, "name", "").removeprefix("tirx.") if isinstance(value, tvm.ir.Call) else ""


def _producer(value: Expr, stages: list[Stage]) -> Stage | None:
    """The one-store stage that computes a loaded value."""
    if not isinstance(value, TensorLoad):
        return None
    made = [stage for stage in stages if [s for s in stores(stage.body) if s.buffer.same_as(value.source)]]
    return made[0] if len(made) == 1 and isinstance(made[0].body, tirx.BufferStore) else None
