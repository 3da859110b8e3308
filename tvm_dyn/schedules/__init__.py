"""Schedules: an ordered table of rules, each for one kind of PrimFunc with symbolic extents."""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.schedules import (
    conv,
    conv_transpose,
    generic,
    global_pool,
    math,
    matmul,
    reduction,
    reshape,
    sliding,
)
from tvm_dyn.schedules.common import SCHEDULED, leaf_blocks
from tvm_dyn.schedules.extremes import start_at_infinity
from tvm_dyn.schedules.indices import simplify_indices

# Tried in order; None means "not mine", and so does a ScheduleError. `generic` takes what is left.
RULES = (
    conv.apply,
    conv_transpose.apply,
    sliding.apply,
    global_pool.apply,
    matmul.apply,
    reduction.apply,
    reshape.apply,
    generic.apply,
)


def schedule_prim_func(func: PrimFunc, target: Target) -> PrimFunc:
    """Schedule one PrimFunc for ``target``; never fails on a legal function.

    A function that no rule can take (opaque bodies, extern calls) keeps its loops; only math calls change.
    """
    if func.attrs and func.attrs.get(SCHEDULED, False):
        return func
    func = start_at_infinity(simplify_indices(func))
    sch = _first_match(func, target)
    scheduled = func if sch is None else sch.mod["main"]
    return math.legalize_math(scheduled).with_attr(SCHEDULED, True)


def _first_match(func: PrimFunc, target: Target) -> Schedule | None:
    try:
        if not leaf_blocks(Schedule(func)):
            return None
    except (s_tir.ScheduleError, RuntimeError):
        return None
    for rule in RULES:
        try:
            sch = rule(func, target)
        except s_tir.ScheduleError:
            continue
        if sch is not None:
            return sch
    return None
