"""What every schedule rule needs: classify loops and blocks, inline, walk expressions, finish a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, Schedule
from tvm.tirx import IterVar

SCHEDULED = "tirx.is_scheduled"

IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")

_COSTLY_CALLS = (
    "exp",
    "exp_negative",
    "log",
    "tanh",
    "erf",
    "pow",
    "sigmoid",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "atan",
    "sinh",
)


def collect(root, node_type) -> list:
    """Every node of ``node_type`` below ``root``, in post order."""
    found: list = []
    tvm_ffi.structural_walk(root, (node_type, lambda node: found.append(node)))
    return found


def uses_var(root, variables) -> bool:
    """Whether ``root`` mentions one of ``variables`` (compared by identity)."""
    return any(v.same_as(w) for v in collect(root, tirx.Var) for w in variables)


def loads(root) -> list:
    """Buffer loads below ``root``: nodes with ``.source`` (the buffer) and ``.indices``."""
    return collect(root, tvm.ir.TensorLoad)


def stores(root) -> list:
    """Buffer stores below ``root``."""
    return collect(root, tirx.BufferStore)


def substitute(root, mapping: dict):
    """``root`` with the variables that are keys of ``mapping`` replaced (by identity)."""

    def replace(v):
        return next((new for old, new in mapping.items() if v.same_as(old)), v)

    return tvm_ffi.structural_map(root, (tirx.Var, replace))


def same_exprs(left, right) -> bool:
    """Whether two index lists are the same expressions of the same variables, one by one."""
    return len(left) == len(right) and all(tvm_ffi.structural_equal(x, y) for x, y in zip(left, right, strict=True))


def as_int(expr) -> int | None:
    """The value of a constant extent, None when it is symbolic."""
    if isinstance(expr, int):
        return expr
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


def is_costly(root) -> bool:
    """Whether computing ``root`` twice costs more than storing it (transcendentals, divisions)."""
    calls = {getattr(c.op, "name", "").rpartition(".")[2] for c in collect(root, tvm.ir.Call)}
    return bool(calls & set(_COSTLY_CALLS)) or bool(collect(root, tirx.Div))


def changed(block: s_tir.SBlock, **fields: Any) -> s_tir.SBlock:
    """The block with other ``fields``, by the names that it has them under."""
    names = (
        "iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers", "match_buffers", "annotations",
    )  # fmt: skip
    return s_tir.SBlock(*[fields[name] if name in fields else getattr(block, name) for name in names])


def leaf_blocks(sch: Schedule) -> list[SBlockRV]:
    """The blocks right under the root, in program order; [] where the function has no root block."""
    try:
        root = sch.get_sblock("root")
    except s_tir.ScheduleError:
        return []
    return list(sch.get_child_blocks(root))


def is_reduction(block: s_tir.SBlock) -> bool:
    """Whether the block has a reduction axis."""
    return any(iv.iter_type == IterVar.CommReduce for iv in block.iter_vars)


def is_spatial(block: s_tir.SBlock) -> bool:
    """Whether every axis of the block is data parallel."""
    return all(iv.iter_type == IterVar.DataPar for iv in block.iter_vars)


def split_loops(sch: Schedule, block: SBlockRV) -> tuple[list[LoopRV], list[LoopRV]]:
    """The block's loops as (spatial, reduction), each in nest order.

    Raises ``s_tir.ScheduleError`` where a loop serves both kinds of axis, as nothing can be reordered then.
    """
    realize = block_realize(sch, block)
    spatial, reduction = [], []
    for loop in sch.get_loops(block):
        var = sch.get(loop).loop_var
        kinds = {
            iv.iter_type
            for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
            if uses_var(value, [var])
        }
        if kinds <= {IterVar.DataPar}:
            spatial.append(loop)
        elif kinds == {IterVar.CommReduce}:
            reduction.append(loop)
        else:
            raise s_tir.ScheduleError("loop serves axes of several kinds")
    return spatial, reduction


def block_realize(sch: Schedule, block: SBlockRV) -> s_tir.SBlockRealize:
    """The realize node (bindings and predicate) of a block."""
    target = sch.get(block)
    for realize in collect(sch.mod["main"].body, s_tir.SBlockRealize):
        if realize.block.same_as(target):
            return realize
    raise ValueError(f"block {target.name_hint} has no realize node")


def try_each(action: Callable[[SBlockRV], object], blocks: Iterator[SBlockRV] | list[SBlockRV]) -> bool:
    """Apply ``action`` to the first block that takes it; whether one did."""
    for block in blocks:
        try:
            action(block)
        except s_tir.ScheduleError:
            continue
        return True
    return False


def _may_inline(sch: Schedule, block: SBlockRV) -> bool:
    """Inlining never repeats costly work: a costly block needs a single elementwise-like consumer."""
    node = sch.get(block)
    if not is_spatial(node):
        return False
    if not is_costly(node.body):
        return True
    consumers = sch.get_consumers(block)
    if len(consumers) != 1:
        return False
    consumer = sch.get(consumers[0])
    written = node.writes[0].source
    reads = [load for load in loads(consumer.body) if load.source.same_as(written)]
    return is_spatial(consumer) and len(consumer.iter_vars) == len(node.iter_vars) and len(reads) == 1


def inline_spatial(sch: Schedule) -> None:
    """Inline every spatial block that can be inlined into its consumers without repeating costly work."""
    while try_each(sch.compute_inline, [b for b in leaf_blocks(sch) if _may_inline(sch, b)]):
        pass


def decompose_reductions(sch: Schedule) -> None:
    """Give each reduction its own initialisation loop, so that it also runs over an empty extent.

    The lowered form of ``T.init`` sits in the first iteration of the reduction loop: over extent 0 it never
    runs, and the output keeps whatever was in memory. Blocks whose loops cannot be told apart stay as they
    are.
    """
    for block in all_blocks(sch):
        if sch.get(block).init is None:
            continue
        try:
            _, reduction = split_loops(sch, block)
            if reduction:
                sch.decompose_reduction(block, reduction[0])
        except s_tir.ScheduleError:
            continue


def all_blocks(sch: Schedule) -> list[SBlockRV]:
    """Every block but the root, in program order."""
    names: list[str] = []
    tvm_ffi.structural_walk(
        sch.mod["main"].body, (s_tir.SBlock, lambda block: names.append(block.name_hint)), order="pre"
    )
    return [sch.get_sblock(name) for name in names if name != "root"]
