"""The symbols of a backbone in an order that copies with other names share."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import PrimFunc

from tvm_dyn.schedules.common import collect


def symbols_of(backbone: PrimFunc) -> list[tirx.Var]:
    """Scalar variables in the order in which the parameters mention them."""
    found: list[tirx.Var] = []
    for param in backbone.params:
        is_buffer = isinstance(param.ty, tirx.BufferType)
        mentioned = [var for dim in param.ty.shape for var in collect(dim, tirx.Var)] if is_buffer else [param]
        found += [var for var in mentioned if not any(var.same_as(known) for known in found)]
    return found
