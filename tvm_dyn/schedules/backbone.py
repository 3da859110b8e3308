"""The backbone of a kernel: the block that its schedule is built around, also as a function of its own.

    fused_matmul_add_gelu(A, W, b, O)    ->    backbone(A, W, C):  C[i, j] += A[i, k] * W[k, j]   for symbolic i

Kernels with the same backbone share a trace: see `replay`.
"""

from __future__ import annotations

import enum

import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import PrimFunc, Stmt

from tvm_dyn.schedules.common import changed, collect, loads, stores, uses_var
from tvm_dyn.schedules.stage import Stage, parse_nest, top_level

NAME = "backbone"
"""Name of the block in the normal form of a kernel."""

CONSTANT = "tvm_dyn.constant"
"""Annotation of a product's block whose right-hand side is a constant matrix, so that it may have any layout."""


_OPERATOR = "tvm_dyn.operator"
"""Attribute of a kernel in normal form: what its backbone block was called."""


class Backbone(str, enum.Enum):
    """What a kernel's schedule is built around.

    PRODUCT: a sum of products over axes of their own (matmul). WINDOW: a reduction whose window slides (convolution,
    pooling). ROWS: other reductions (softmax, normalisation). MAP: none, every element on its own. OPAQUE: not known.
    """

    PRODUCT = "product"
    WINDOW = "window"
    ROWS = "rows"
    MAP = "map"
    OPAQUE = "opaque"


def kind(stages: list[Stage]) -> Backbone:
    """The backbone of a kernel of these stages."""
    reductions = [stage for stage in stages if stage.reduction]
    if not reductions:
        return Backbone.MAP
    if len(reductions) > 1:
        return Backbone.ROWS
    if _slides(reductions[0]):
        return Backbone.WINDOW
    return Backbone.PRODUCT if _is_product(reductions[0]) else Backbone.ROWS


def kind_of(func: PrimFunc) -> Backbone:
    """The backbone of a kernel."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return Backbone.OPAQUE
    stages = [parse_nest(nest) for nest in top_level(func)]
    known = [stage for stage in stages if stage is not None]
    return kind(known) if len(known) == len(stages) else Backbone.OPAQUE


def _slides(stage: Stage) -> bool:
    """Whether a spatial and a reduction axis meet in one index."""
    spatial, reduction = ([iv.var for iv in axes] for axes in (stage.spatial, stage.reduction))
    return any(
        uses_var(index, spatial) and uses_var(index, reduction) for _, indices in stage.accesses() for index in indices
    )


def _is_product(stage: Stage) -> bool:
    """Whether the stage adds up products of two operands, each of which lacks some axis of the result."""
    written = stores(stage.body)
    if len(written) != 1 or not isinstance(written[0].value, tirx.Add) or not isinstance(written[0].value.b, tirx.Mul):
        return False
    factors = [loads(factor) for factor in (written[0].value.b.a, written[0].value.b.b)]
    if [len(f) for f in factors] != [1, 1]:
        return False
    reduction = [iv.var for iv in stage.reduction]
    used = [[uses_var(list(f[0].indices), [iv.var]) for iv in stage.spatial] for f in factors]
    return all(uses_var(list(f[0].indices), reduction) for f in factors) and not any(all(u) for u in used)


def normal_form(func: PrimFunc) -> tuple[PrimFunc, PrimFunc] | None:
    """(``func`` with its backbone block called `NAME`, the backbone on its own), None where a kernel has no single
    product or window. The parameters of the backbone are the buffers that its block reads and writes, in that order,
    then the scalars it computes with.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    nests = top_level(func)
    stages = [parse_nest(nest) for nest in nests]
    known = [stage for stage in stages if stage is not None]
    if len(known) < len(stages) or kind(known) not in (Backbone.PRODUCT, Backbone.WINDOW):
        return None
    position = next(n for n, stage in enumerate(known) if stage.reduction)
    named = _named(nests[position])
    body = tirx.SeqStmt([*nests[:position], named, *nests[position + 1 :]]) if len(nests) > 1 else named
    scalars = [param for param in func.params if not isinstance(param.ty, tirx.BufferType)]
    (block,) = collect(nests[position], s_tir.SBlock)
    return _with_nests(func, body).with_attr(_OPERATOR, block.name_hint), _alone(named, scalars)


def operators(func: PrimFunc) -> tuple[str, ...]:
    """What the blocks of a kernel compute, by their names."""
    names = [block.name_hint for block in collect(func.body, s_tir.SBlock) if block.name_hint != "root"]
    return tuple(str(func.attrs[_OPERATOR]) if name == NAME else name for name in names)


def has_constant_operand(func: PrimFunc) -> bool:
    """Whether the function has a block that is marked `CONSTANT`."""
    return any(CONSTANT in block.annotations for block in collect(func.body, s_tir.SBlock))


def _named(nest: Stmt) -> Stmt:
    def rename(block: s_tir.SBlock) -> s_tir.SBlock:
        return changed(block, name_hint=NAME)

    return tvm_ffi.structural_map(nest, (s_tir.SBlock, rename), order="post")


def _with_nests(func: PrimFunc, body: Stmt) -> PrimFunc:
    root = func.body.block
    block = s_tir.SBlock([], [], [], root.name_hint, body, alloc_buffers=root.alloc_buffers)
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block))


def _alone(nest: Stmt, scalars: list[tirx.Var]) -> PrimFunc:
    """A function of the nest; ``scalars`` are the variables that may be parameters beside its buffers."""
    (block,) = collect(nest, s_tir.SBlock)
    buffers = list(dict.fromkeys(region.source for region in [*block.reads, *block.writes]))
    extents = [dim for buffer in buffers for dim in buffer.shape]
    used = [v for v in scalars if uses_var(nest, [v]) or uses_var(extents, [v])]
    root = s_tir.SBlock([], [], [], "root", nest)
    return PrimFunc([*buffers, *used], s_tir.SBlockRealize([], tirx.const(True, "bool"), root))
