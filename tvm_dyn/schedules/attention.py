"""Rule for attention: two matrix products with a softmax in between become one kernel."""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc, Stmt

from tvm_dyn.schedules import emit, generic
from tvm_dyn.schedules.attention_kernel import AttentionKernel
from tvm_dyn.schedules.attention_match import Attention, match
from tvm_dyn.schedules.attention_row import AttentionRow
from tvm_dyn.schedules.attention_tile import AttentionTile
from tvm_dyn.schedules.common import collect
from tvm_dyn.schedules.llvm_transpose import importing
from tvm_dyn.schedules.stage import top_level
from tvm_dyn.schedules.tasks import enough_sums, tasks


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
    return generic.finish(Schedule(emit.rebuild(func, emit.seq(*statements, _kernel(found, tile, target)))))


def _kernel(found: Attention, tile: AttentionTile, target: Target) -> Stmt:
    """Few queries one by one, others in blocks; over all cores unless one is done before a second wakes up."""
    blocks, row = AttentionKernel(found, tile), AttentionRow(found, tile)

    worth = enough_sums(blocks.work())

    def in_blocks(size) -> Stmt:
        count = blocks.batch * emit.ceildiv(blocks.queries, size)
        return tasks(worth, count, lambda t: blocks.task(t, size), target)

    few = tasks(worth, blocks.batch * blocks.queries, row.task, target)
    many = emit.bind([blocks.size()], in_blocks)
    return importing(tile.lanes, emit.when(blocks.queries <= tile.rows, few, many))
