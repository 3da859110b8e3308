"""Axes cut where quotients and remainders of them are taken, so that those vanish.

    for i, j: Y[i, j] = X[i, j // 64, j % 64]              # j < n * 64
    --->
    for i, q, r: Y[i, q * 64 + r] = X[i, q, r]             # r < 64

The inner loop then walks both sides straight on: it needs no division and is copied in vectors. (With the remainder
in place LLVM would gather, or get it wrong: see `remainders`.)
"""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import sym, tirx
from tvm.ir import Expr
from tvm.tirx import IterVar

from tvm_dyn.schedules.common import IF_THEN_ELSE, as_int, collect, substitute, uses_var
from tvm_dyn.schedules.indices import simplify_quotients
from tvm_dyn.schedules.stage import Stage


def split_axes(stage: Stage) -> Stage:
    """``stage`` with data parallel axes cut by the constants that divide their extents, as long as that helps.

    Those with conditions stay: concatenations have a form that their schedule looks for.
    """
    if any(call.op.same_as(IF_THEN_ELSE) for call in collect(stage.body, tvm.ir.Call)):
        return stage
    for axis in reversed(stage.spatial):
        for divisor in _divisors(stage, axis):
            cut = _cut(stage, axis, divisor)
            if len(_quotients(cut)) < len(_quotients(stage)):
                return split_axes(cut)
    return stage


def _quotients(stage: Stage) -> list:
    return [node for kind in (tirx.FloorDiv, tirx.FloorMod) for node in collect(stage.body, kind)]


def _divisors(stage: Stage, axis: IterVar) -> list[int]:
    """The constants that divide something with ``axis`` in it, and its extent; the largest first."""
    found = {as_int(node.b) for node in _quotients(stage) if uses_var(node.a, [axis.var])}
    extent = axis.dom.extent
    return sorted((d for d in found if d and 1 < d != as_int(extent) and _divides(d, extent)), reverse=True)


def _divides(divisor: int, extent: Expr) -> bool:
    return sym.Analyzer().can_prove_equal(tirx.floormod(extent, _const(divisor, extent)), _const(0, extent))


def _cut(stage: Stage, axis: IterVar, divisor: int) -> Stage:
    """``axis`` as two: its quotient and its remainder by ``divisor``."""
    extent = axis.dom.extent
    count = sym.Analyzer().simplify(tirx.floordiv(extent, _const(divisor, extent)))
    outer, inner = _axis(axis, "outer", count), _axis(axis, "inner", _const(divisor, extent))
    at = stage.spatial.index(axis)
    spatial = [*stage.spatial[:at], outer, inner, *stage.spatial[at + 1 :]]
    whole = {axis.var: outer.var * _const(divisor, extent) + inner.var}

    def cut(root):
        return None if root is None else simplify_quotients(substitute(root, whole), [*spatial, *stage.reduction])

    return replace(stage, spatial=spatial, body=cut(stage.body), init=cut(stage.init))


def _axis(axis: IterVar, part: str, extent: Expr) -> IterVar:
    var = tirx.Var(f"{axis.var.name}_{part}", axis.var.ty)
    return IterVar(tvm.ir.Range(_const(0, extent), extent), var, axis.iter_type)


def _const(value: int, like: Expr) -> Expr:
    return tirx.const(value, str(like.ty))
