"""Rule for attention: two matrix products with a softmax in between become one kernel."""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn import hardware
from tvm_dyn.schedules import emit, generic
from tvm_dyn.schedules.attention_kernel import AttentionKernel, AttentionTile
from tvm_dyn.schedules.attention_match import match
from tvm_dyn.schedules.common import collect
from tvm_dyn.schedules.stage import top_level


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    """Emit the kernel in place of both products and all between; costly prologues get the generic schedule."""
    found = match(func)
    if found is None:
        return None
    tile = AttentionTile.for_target(target, int(found.column.dom.extent))
    statements = [
        generic.emit_nest(nest, list(func.params), target)
        for nest in top_level(func)
        if any(block.name_hint in found.before for block in collect(nest, s_tir.SBlock))
    ]
    kernel = AttentionKernel(found, tile).emit(hardware.cores(target))
    return generic.finish(Schedule(emit.rebuild(func, emit.seq(*statements, kernel))))
