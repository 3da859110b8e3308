"""Rule for functions with one matrix product: dense layers, batched products, vectors times matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, Schedule
from tvm.target import Target
from tvm.tirx import IterVar, PrimFunc

from tvm_dyn import hardware
from tvm_dyn.errors import ReplayError
from tvm_dyn.runtime.variants import Leaf, Split
from tvm_dyn.schedules import emit, generic
from tvm_dyn.schedules.backbone import has_constant_operand
from tvm_dyn.schedules.common import (
    block_realize,
    collect,
    inline_spatial,
    is_spatial,
    leaf_blocks,
    loads,
    same_exprs,
    uses_var,
)
from tvm_dyn.schedules.matmul_kernel import MatmulKernel, MatmulTile
from tvm_dyn.schedules.matmul_packed import PackedKernel, PackedTile, panels_of
from tvm_dyn.schedules.matmul_product import Matmul
from tvm_dyn.schedules.replay import decided
from tvm_dyn.schedules.space import Space
from tvm_dyn.schedules.stage import top_level

_ACC_DTYPE = {
    "float32": "float32",
    "float64": "float64",
    "int32": "int32",
    "float16": "float32",
    "bfloat16": "float32",
}


@dataclass(frozen=True)
class Found:
    """A function with one product: what is inlined is inlined in ``sch``; ``nest`` names the blocks of the kernel."""

    sch: Schedule
    product: Matmul
    nest: list[str]


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    """Emit the kernel in place of the product and its epilogue; other blocks get the generic schedule."""
    found = find(func)
    if found is None:
        return None
    kernel = _kernel(func, found.product, target)
    inlined = found.sch.mod["main"]
    statements: list[tirx.Stmt] = []
    for statement in top_level(inlined):
        names = {b.name_hint for b in collect(statement, s_tir.SBlock)}
        if not names & {*found.nest}:
            statements.append(generic.emit_nest(statement, list(func.params), target))
        elif found.nest[-1] in names:
            statements.append(kernel)
    return generic.finish(Schedule(emit.rebuild(inlined, emit.seq(*statements))))


def space(func: PrimFunc, target: Target) -> Space | None:
    """The decisions about a function with one product, None for anything else."""
    found = find(func)
    if found is None:
        return None
    product, kind = found.product, found.product.acc_dtype
    batch = emit.product([iv.dom.extent for iv in product.batch])
    extents = {"batch": batch, "rows": product.rows, "columns": product.n.dom.extent, "depth": product.k.dom.extent}
    if not has_constant_operand(func):
        tile = MatmulTile.for_target(target, kind)
        return Space(tuple(MatmulTile.candidates(target, kind)), extents, (tile,))
    columns, depth = int(extents["columns"]), int(extents["depth"])
    split, whole = PackedTile.for_target(target, kind, columns, depth), Leaf(0)
    candidates = tuple(PackedTile.candidates(target, kind, columns, depth))
    enough = -(-hardware.PARALLEL_MIN_SUMS // (columns * depth))
    if split.tasks == 1 or enough <= 1:
        return Space(candidates, extents, (split,))
    return Space(candidates, extents, (replace(split, tasks=1), split), Split("rows", enough, whole, Leaf(1)))


def _kernel(func: PrimFunc, product: Matmul, target: Target) -> tirx.Stmt:
    panels, kind = panels_of(product), product.acc_dtype
    if panels is None or not has_constant_operand(func):
        return MatmulKernel(product, decided(func, MatmulTile.for_target(target, kind)), target).emit()
    columns, depth = (int(axis.dom.extent) for axis in (product.n, product.k))
    tile = decided(func, PackedTile.for_target(target, kind, columns, depth))
    if tile.width != int(panels.shape[2]):
        raise ReplayError(f"the trace decides panels of {tile.width} columns, the weights lie in others")
    return PackedKernel(product, panels, tile, target).emit()


def find(func: PrimFunc) -> Found | None:
    """The only product of a function with its epilogue, None where there is none."""
    sch = Schedule(func)
    inline_spatial(sch)
    products = [b for b in leaf_blocks(sch) if sch.get(b).init is not None]
    found = match(block_realize(sch, products[0]), list(func.params)) if len(products) == 1 else None
    if found is None:
        return None
    epilogue = _find_epilogue(sch, products[0], found)
    if epilogue is None:
        return Found(sch, found, [sch.get(products[0]).name_hint])
    names = [sch.get(block).name_hint for block in (products[0], epilogue)]
    return Found(sch, replace(found, epilogue=sch.get(epilogue)), names)


def match(realize: s_tir.SBlockRealize, params: list[tirx.Buffer]) -> Matmul | None:
    """The product that a reduction block computes, None where it is not one.

    Axes in both operands are batch axes; so are the axes of A alone that do not directly precede the columns.
    """
    block = realize.block
    spatial = [iv for iv in block.iter_vars if iv.iter_type == IterVar.DataPar]
    reduction = [iv for iv in block.iter_vars if iv.iter_type == IterVar.CommReduce]
    store = block.body
    if len(reduction) != 1 or not spatial or not isinstance(store, tirx.BufferStore):
        return None
    value, dtype = store.value, str(store.buffer.dtype)
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul) or dtype not in _ACC_DTYPE:
        return None
    if not same_exprs(store.indices, [iv.var for iv in spatial]) or not _is_load_of(value.a, store.buffer):
        return None
    batch, n = spatial[:-1], spatial[-1]
    a, b = value.b.a, value.b.b
    if uses_var(a, [n.var]):
        a, b = b, a
    if uses_var(a, [n.var]) or not uses_var(b, [n.var]):
        return None
    m: list[IterVar] = []
    while batch and uses_var(a, [batch[-1].var]) and not uses_var(b, [batch[-1].var]):
        m.insert(0, batch.pop())
    return Matmul(batch, m, n, reduction[0], a, b, store, _ACC_DTYPE[dtype], params)


def _is_load_of(expr, buffer) -> bool:
    found = loads(expr)
    return len(found) == 1 and found[0].same_as(expr) and found[0].source.same_as(buffer)


def _find_epilogue(sch: Schedule, product: SBlockRV, found: Matmul) -> SBlockRV | None:
    """The only consumer, if it maps each element of the product to one element (axes in any order)."""
    consumers = sch.get_consumers(product)
    if len(consumers) != 1:
        return None
    block, result = sch.get(consumers[0]), found.store.buffer
    if not isinstance(block.body, tirx.BufferStore) or not is_spatial(block):
        return None
    reads = [load for load in loads(block.body) if load.source.same_as(result)]
    axes = [iv.var for iv in block.iter_vars]
    indices = reads[0].indices
    one_to_one = len(axes) == len(indices) and all(any(v.same_as(i) for i in indices) for v in axes)
    return consumers[0] if one_to_one and all(same_exprs(r.indices, indices) for r in reads) else None
