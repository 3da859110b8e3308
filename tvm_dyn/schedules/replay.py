"""Traces: the tile decisions of a backbone, recorded once and replayed on every kernel that is built around it.

    sch = Schedule(backbone)                                   # C[i, j] += A[i, k] * B[k, j], symbolic i
    block = sch.get_sblock("backbone")
    sch.annotate(block, "tvm_dyn.tile", "MatmulTile")
    sch.annotate(block, "tvm_dyn.tile.vectors", 4)             # one annotation for each decision
    --->
    fused_matmul_add_gelu: the same instructions on its block "backbone"; its rule emits what they decide

A trace is an ordinary `tvm.s_tir.schedule.Trace`. It holds no loops and no extents, so that it means the same for any
prologue, epilogue and symbolic extent; blocks beside the backbone are placed by the rule, from how they read it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import Schedule, Trace
from tvm.tirx import PrimFunc

from tvm_dyn.errors import ReplayError
from tvm_dyn.schedules.backbone import NAME
from tvm_dyn.schedules.common import collect

TILE = "tvm_dyn.tile"


def record(backbone: PrimFunc, tile: Any) -> Trace:
    """The trace that decides ``tile`` (a dataclass of numbers) on a function whose block is called "backbone"."""
    sch = Schedule(backbone)
    block = sch.get_sblock(NAME)
    sch.annotate(block, TILE, type(tile).__name__)
    for field in dataclasses.fields(tile):
        value = getattr(tile, field.name)
        sch.annotate(block, f"{TILE}.{field.name}", list(value) if isinstance(value, tuple) else value)
    return sch.trace


def replay(trace: Trace, func: PrimFunc) -> PrimFunc:
    """``func``, in normal form, with the decisions of ``trace``. Raises ReplayError where an instruction fails."""
    sch = Schedule(func)
    try:
        trace.apply_to_schedule(sch, remove_postproc=False)
    except (s_tir.ScheduleError, RuntimeError) as error:
        raise ReplayError(f"the trace does not apply: {error}") from error
    return sch.mod["main"]


def decided(func: PrimFunc, chosen: Any) -> Any:
    """The tile that a trace has decided on a kernel; without a trace the one that its rule has ``chosen``.

    Raises ReplayError where the trace is for another kind of tile or lacks a decision.
    """
    kind = type(chosen)
    annotations = next((b.annotations for b in collect(func.body, s_tir.SBlock) if b.name_hint == NAME), {})
    if TILE not in annotations:
        return chosen
    if annotations[TILE] != kind.__name__:
        raise ReplayError(f"the trace decides a {annotations[TILE]}, the kernel needs a {kind.__name__}")
    names = [field.name for field in dataclasses.fields(chosen)]
    missing = [name for name in names if f"{TILE}.{name}" not in annotations]
    if missing:
        raise ReplayError(f"the trace does not decide {', '.join(missing)} of a {kind.__name__}")
    return kind(**{name: _plain(annotations[f"{TILE}.{name}"]) for name in names})


def _plain(value: Any) -> Any:
    if isinstance(value, tirx.Var):
        return value  # decided when the kernel runs
    return int(value) if isinstance(value, int) else tuple(int(v) for v in value)

