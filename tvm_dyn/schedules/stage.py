"""A loop nest of a function as data: axes, the statement at one point, initial values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, ForKind, IterVar, PrimFunc, Stmt

from tvm_dyn.schedules.common import IF_THEN_ELSE, as_int, collect, loads, same_exprs, stores, substitute, uses_var


@dataclass(frozen=True)
class Stage:
    """One block over a plain loop nest: ``for spatial: init; for reduction: body``."""

    name: str
    spatial: list[IterVar]
    reduction: list[IterVar]
    body: Stmt
    init: Stmt | None

    def at(self, point: dict) -> Stmt:
        """The body with axis variables replaced."""
        return substitute(self.body, point)

    def init_at(self, point: dict) -> Stmt | None:
        """The initial stores with axis variables replaced."""
        return substitute(self.init, point) if self.init is not None else None

    def accumulator_dtype(self) -> str:
        """Type of what the stage stores."""
        return str(stores(self.body)[0].buffer.dtype)

    def accesses(self) -> list[tuple[Buffer, list]]:
        """Every (buffer, indices) the stage reads or writes."""
        roots = [self.body] if self.init is None else [self.body, self.init]
        found = [(load.source, list(load.indices)) for root in roots for load in loads(root)]
        return found + [(store.buffer, list(store.indices)) for root in roots for store in stores(root)]


def parse(func: PrimFunc) -> list[Stage] | None:
    """The nests of a function in order, None where one is not a single block over a plain serial nest."""
    stages = [parse_nest(nest) for nest in top_level(func)]
    return None if any(s is None for s in stages) else [s for s in stages if s is not None]


def top_level(func: PrimFunc) -> list[Stmt]:
    """The statements of a function's root block."""
    body = func.body.block.body
    return list(body) if isinstance(body, tirx.SeqStmt) else [body]


def parse_nest(nest: Stmt) -> Stage | None:
    """The stage a loop nest stands for."""
    loop_vars = []
    while isinstance(nest, tirx.For):
        if nest.kind != ForKind.SERIAL or as_int(nest.min) != 0:
            return None
        loop_vars.append(nest.loop_var)
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize) or as_int(nest.predicate) != 1:
        return None
    block = nest.block
    if len(block.alloc_buffers) or len(block.match_buffers) or _has_nested_blocks(block):
        return None
    for axis, value in zip(block.iter_vars, nest.iter_values, strict=True):
        plain = any(value.same_as(v) for v in loop_vars) or (as_int(value) == 0 and as_int(axis.dom.extent) == 1)
        if not plain or axis.iter_type not in (IterVar.DataPar, IterVar.CommReduce):
            return None
    return Stage(
        block.name_hint,
        [iv for iv in block.iter_vars if iv.iter_type == IterVar.DataPar],
        [iv for iv in block.iter_vars if iv.iter_type == IterVar.CommReduce],
        block.body,
        block.init,
    )


def _has_nested_blocks(block: s_tir.SBlock) -> bool:
    nested: list = []
    tvm_ffi.structural_walk(block.body, (s_tir.SBlock, lambda b: nested.append(b)))
    return bool(nested)


def merge_axes(axes: list[IterVar], stages: list[Stage], params: list) -> list[list[IterVar]]:
    """Group neighbouring axes that every access walks as one row-major range of a parameter.

    The group's index then takes the place of its last axis, with 0 for the others: the address is the same.
    Only for parameters, as TVM shrinks other buffers to the index ranges it sees.
    """
    groups: list[list[IterVar]] = []
    for axis in axes:
        if groups and all(_mergeable(groups[-1][-1], axis, stage, params) for stage in stages):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _mergeable(outer: IterVar, inner: IterVar, stage: Stage, params: list) -> bool:
    variables = [outer.var, inner.var]
    inside = 0
    for buffer, indices in stage.accesses():
        used = [d for d, index in enumerate(indices) if uses_var(index, variables)]
        if not used:
            continue
        adjacent = len(used) == 2 and used[1] == used[0] + 1 and same_exprs([indices[d] for d in used], variables)
        if not adjacent or not any(buffer.same_as(p) for p in params) or len(buffer.strides):
            return False
        if not tvm.sym.Analyzer().can_prove_equal(buffer.shape[used[1]], inner.dom.extent):
            return False
        inside += 2
    roots = [stage.body] if stage.init is None else [stage.body, stage.init]
    return inside == sum(v.same_as(w) for root in roots for v in _variables(root) for w in variables)


def _variables(root) -> list:
    found: list = []
    tvm_ffi.structural_walk(root, (tirx.Var, lambda v: found.append(v)))
    return found


def contiguous(stage: Stage, group: list[IterVar]) -> bool:
    """Whether vectors along a merged group are whole vectors of every buffer.

    What the stage stores it may read at the same place only.
    """
    made = stage.body
    if not isinstance(made, tirx.BufferStore) or not uses_var(list(made.indices), [group[-1].var]):
        return False
    own = [load for load in loads(made) if load.source.same_as(made.buffer)]
    if not all(same_exprs(load.indices, made.indices) for load in own):
        return False
    if any(call.op.same_as(IF_THEN_ELSE) for call in collect(made, tvm.ir.Call)):
        return False
    return all(_contiguous(buffer, indices, group[-1].var) for buffer, indices in stage.accesses())


def _contiguous(buffer: Buffer, indices: list, var) -> bool:
    if not uses_var(indices, [var]):
        return True
    return indices[-1].same_as(var) and not uses_var(indices[:-1], [var]) and not len(buffer.strides)


def group_point(group: list[IterVar], index) -> dict:
    """Axis values of a merged group at a position of its range."""
    zero = tirx.const(0, "int64")
    return {iv.var: index if iv is group[-1] else zero for iv in group}


def rebase(stage: Stage, names: list, dropped: int, slot: Expr | None = None) -> Stage:
    """``stage`` on other buffers: for each (old, new) of ``names``, new[rest] for old[dropped indices,
    rest]; with a slot, new[slot, rest]."""

    def rest(indices) -> list:
        kept = list(indices)[dropped:]
        return [slot, *kept] if slot is not None else kept or [tirx.const(0, "int64")]

    def load(node):
        return next((tirx.BufferLoad(b, rest(node.indices)) for a, b in names if a.same_as(node.source)), node)

    def store(node):
        found = [b for a, b in names if a.same_as(node.buffer)]
        return tirx.BufferStore(found[0], node.value, rest(node.indices)) if found else node

    callbacks = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)]

    def mapped(statement):
        return None if statement is None else tvm_ffi.structural_map(statement, callbacks, order="post")

    return replace(stage, body=mapped(stage.body), init=mapped(stage.init))


def fresh(statement: Stmt) -> Stmt:
    """A copy of ``statement`` whose bound variables are its own."""
    bound: list = []
    tvm_ffi.structural_walk(statement, (tirx.stmt.Bind, lambda b: bound.append(b.var)))
    if not bound:
        return statement
    return substitute(statement, {v: tirx.Var(v.name, v.ty) for v in bound})
