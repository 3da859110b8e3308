"""Backbones, traces and times for databases."""

from __future__ import annotations

import dataclasses

from tvm import te, tirx
from tvm.tirx import PrimFunc

from tvm_dyn.hardware import host_target
from tvm_dyn.schedules.backbone import normal_form
from tvm_dyn.schedules.matmul_kernel import MatmulTile
from tvm_dyn.schedules.replay import record
from tvm_dyn.tuning.records import Conditions, Measurement, point

TARGET = host_target()
HERE = Conditions.here(TARGET)


def product(depth: int = 64, columns: int = 48, name: str = "m") -> PrimFunc:
    """The backbone of a product of symbolic rows, which are called ``name``."""
    rows = tirx.Var(name, "int64")
    a, b = te.placeholder((rows, depth), "float32", "A"), te.placeholder((depth, columns), "float32", "B")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")
    found = normal_form(te.create_prim_func([a, b, c]))
    assert found is not None
    return found[1]


def trace_of(backbone: PrimFunc, **changes):
    """The trace of the rule's own tile, with other values of some fields."""
    return record(backbone, dataclasses.replace(MatmulTile.for_target(TARGET, "float32"), **changes))


def times(conditions: Conditions = HERE, **seconds_by_rows: float) -> Measurement:
    """``times(r1=1e-6, r37=4e-6)``: seconds by rows."""
    return Measurement(conditions, {point({"rows": int(k[1:])}): v for k, v in seconds_by_rows.items()})
