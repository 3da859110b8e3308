"""Schedules: an ordered table of rules, each for one kind of PrimFunc with symbolic extents."""

from __future__ import annotations

import warnings

from tvm import s_tir
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.errors import KernelFallbackWarning
from tvm_dyn.schedules import (
    attention,
    channels_last,
    channels_last_sliding,
    conv,
    conv_transpose,
    dispatch,
    generic,
    global_pool,
    math,
    matmul,
    reduction,
    reshape,
    sliding,
    transposition,
)
from tvm_dyn.schedules.common import SCHEDULED, decompose_reductions, leaf_blocks
from tvm_dyn.schedules.extremes import start_at_infinity
from tvm_dyn.schedules.indices import simplify_indices
from tvm_dyn.schedules.remainders import hide_remainders
from tvm_dyn.schedules.space import Space

# Tried in order; None means "not mine", and so does a ScheduleError. `generic` takes what is left.
RULES = (
    attention.apply,
    channels_last.apply,
    channels_last_sliding.apply,
    transposition.apply,
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
    if dispatch.TABLE in (func.attrs or {}) and dispatch.variants_of(func):
        space = space_of(func, target)
        assert space is not None  # else it had no variants
        return dispatch.dispatched(func, [*space.symbolic.values()], lambda copy: schedule_prim_func(copy, target))
    func = start_at_infinity(simplify_indices(func))
    sch = _first_match(func, target)
    return _finished(func if sch is None else sch.mod["main"], target)


def space_of(func: PrimFunc, target: Target) -> Space | None:
    """What there is to decide about a kernel, or a backbone on its own (see `backbone`); None where nothing is."""
    func = simplify_indices(func)
    spaces = (rule.space(func, target) for rule in (channels_last, channels_last_sliding, conv, matmul))
    return next((space for space in spaces if space is not None), None)


def takes_attention(func: PrimFunc) -> bool:
    """Whether the rule for attention takes a function of two products with a softmax in between."""
    return attention.match(start_at_infinity(simplify_indices(func))) is not None


def plain_prim_func(func: PrimFunc, target: Target) -> PrimFunc:
    """The function with the loops it has, right also over empty extents: for when a schedule fails."""
    func = start_at_infinity(func)
    try:
        sch = Schedule(func)
        decompose_reductions(sch)
        func = sch.mod["main"]
    except s_tir.ScheduleError:
        pass
    return _finished(func, target)


def _finished(func: PrimFunc, target: Target) -> PrimFunc:
    if target.kind.name == "llvm":
        # Written in LLVM's language; other devices have libraries that are as fast.
        func = hide_remainders(math.legalize_math(func, target))
    return func.with_attr(SCHEDULED, True)


def _first_match(func: PrimFunc, target: Target) -> Schedule | None:
    try:
        sch = Schedule(func)
        blocks = [sch.get(block).name_hint for block in leaf_blocks(sch)]
    except (s_tir.ScheduleError, RuntimeError):
        return None
    for rule in RULES if blocks else ():
        try:
            sch = rule(func, target)
        except s_tir.ScheduleError:
            continue
        except Exception as error:  # a fault of the rule, or of TVM; the next one is slower but right
            message = f"{rule.__module__} fails on the kernel of {', '.join(blocks)}: {error!r}"
            warnings.warn(message, KernelFallbackWarning, stacklevel=2)
            continue
        if sch is not None:
            return sch
    return None
