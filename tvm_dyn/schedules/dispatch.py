"""Kernels of several variants: one function that looks the variant for its extents up in a decision table.

    block "backbone" of f(A, P, O):  {"tvm_dyn.tile": "PackedTile", "tvm_dyn.variants": [{...}, {...}], ...}
    --->
    f(A, P, decisions, O):
        copy, block_rows, tasks, panel_major = walk(decisions, rows)      # see `walk` and `runtime.table`
        if copy == 0: the kernel for the first tile, ...                  # one copy for each set of tile sizes in code
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.tirx import PrimFunc, Stmt

from tvm_dyn.runtime.variants import Tree, Variant, decide, from_plain, to_plain
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.backbone import NAME
from tvm_dyn.schedules.channels_last_sliding import SlidingTile
from tvm_dyn.schedules.common import changed, collect
from tvm_dyn.schedules.matmul_kernel import MatmulTile
from tvm_dyn.schedules.matmul_packed import PackedTile
from tvm_dyn.schedules.panel import PanelTile
from tvm_dyn.schedules.replay import TILE
from tvm_dyn.schedules.space import run_time_fields
from tvm_dyn.schedules.tiles import Tile
from tvm_dyn.schedules.walk import walk

VARIANTS = "tvm_dyn.variants"
"""Annotation of a backbone: the decisions of every variant."""
TREE = "tvm_dyn.tree"
"""Annotation of a backbone: which variant is for which extents, as JSON."""
SOURCE = "tvm_dyn.source"
"""Annotation of a backbone: where its decisions are from."""
TABLE = "tvm_dyn.table"
"""Attribute of a kernel: the position of the parameter that takes its decision table."""

TILES = {kind.__name__: kind for kind in (MatmulTile, PackedTile, PanelTile, SlidingTile, Tile)}


def with_variants(func: PrimFunc, variants: Sequence[Variant], tree: Tree, source: str) -> PrimFunc:
    """The kernel, whose backbone has the decisions of the first variant, with those of all, and where they are from."""
    known: dict[str, Any] = {SOURCE: source}
    if len(variants) > 1:
        known[VARIANTS] = [
            {k: list(v) if isinstance(v, tuple) else v for k, v in variant.decisions.items()} for variant in variants
        ]
        known[TREE] = json.dumps(to_plain(tree))
    return _annotated(func, known)


def variant_of(func: PrimFunc) -> Variant | None:
    """The decisions on the backbone of a kernel, None where there are none."""
    known = decisions_on(func)
    if TILE not in known:
        return None
    fields = {name.removeprefix(f"{TILE}."): value for name, value in known.items() if name.startswith(f"{TILE}.")}
    return Variant(str(known[TILE]), _plain(fields))


def variants_of(func: PrimFunc) -> list[Variant]:
    """The variants of a kernel; none where it has no choice."""
    known = decisions_on(func)
    return [Variant(str(known[TILE]), _plain(decisions)) for decisions in known.get(VARIANTS, [])]


def tree_of(func: PrimFunc) -> Tree:
    """Which variant of a kernel is for which extents."""
    return from_plain(json.loads(str(decisions_on(func)[TREE])))


def with_one_of(func: PrimFunc, known: Mapping[str, int]) -> PrimFunc:
    """The kernel with the one of its variants that is for these extents."""
    variant = variants_of(func)[decide(tree_of(func), known)]
    return _annotated(func, _by_field(variant.decisions), without=(VARIANTS, TREE))


def code_rows(variants: Sequence[Variant]) -> list[list[int]]:
    """For each variant the copy of the code that computes it, then the decisions that are numbers at run time."""
    copies = [_in_code(variant) for variant in variants]
    distinct = list(dict.fromkeys(copies))
    fields = run_time_fields(TILES[variants[0].kind])
    return [
        [distinct.index(copy), *(int(variant.decisions[name]) for name in fields)]  # type: ignore[arg-type]
        for copy, variant in zip(copies, variants, strict=True)
    ]


def _in_code(variant: Variant) -> Variant:
    """The variant without what its code takes as numbers."""
    numbers = run_time_fields(TILES[variant.kind])
    return Variant(variant.kind, {k: v for k, v in variant.decisions.items() if k not in numbers})


def dispatched(func: PrimFunc, extents: Sequence[Expr], schedule: Callable[[PrimFunc], PrimFunc]) -> PrimFunc:
    """The kernel that decides when it runs. extents: what its table looks at; schedule: makes the kernel of one tile.

    The kernel has a parameter for the table already, which its blocks do not read.
    """
    words = func.params[int(func.attrs[TABLE])]
    variants = variants_of(func)
    fields = run_time_fields(TILES[variants[0].kind])
    numbers = [tirx.Var(name, "int64") for name in fields]
    copies = [
        schedule(_for_one_tile(func, copy, dict(zip(fields, numbers, strict=True))))
        for copy in dict.fromkeys(_in_code(variant) for variant in variants)
    ]
    bodies = [copy.body.block.body for copy in copies]
    buffers = [buffer for copy in copies for buffer in copy.body.block.alloc_buffers]

    def choose(copy: Expr, *decided: Expr) -> Stmt:
        defined = [tirx.stmt.Bind(number, value) for number, value in zip(numbers, decided, strict=True)]
        statement = bodies[-1]
        for position, body in reversed([*enumerate(bodies[:-1])]):
            statement = emit.when(copy.equal(position), body, statement)
        return emit.seq(*defined, statement)

    body = walk(words, extents, 1 + len(fields), choose)
    block = s_tir.SBlock([], [], [], "root", body, alloc_buffers=buffers)
    realize = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
    return PrimFunc(func.params, realize, func.ret_type, copies[0].attrs)


def _for_one_tile(func: PrimFunc, copy: Variant, numbers: dict[str, tirx.Var]) -> PrimFunc:
    """The kernel with one decision on its backbone; its numbers are parameters for now."""
    alone = _annotated(func, _by_field({**copy.decisions, **numbers}), without=(VARIANTS, TREE))
    return PrimFunc([*func.params, *numbers.values()], alone.body, alone.ret_type, alone.attrs)


def decisions_on(func: PrimFunc) -> dict[str, Any]:
    """What is written on the backbone of a kernel."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return {}
    return next((dict(b.annotations.items()) for b in collect(func.body, s_tir.SBlock) if b.name_hint == NAME), {})


def _by_field(decisions: Mapping[str, Any]) -> dict[str, Any]:
    """As annotations."""
    return {f"{TILE}.{name}": list(v) if isinstance(v, tuple) else v for name, v in decisions.items()}


def _plain(decisions: Any) -> dict[str, int | tuple[int, ...]]:
    return {str(k): int(v) if isinstance(v, int) else tuple(int(x) for x in v) for k, v in decisions.items()}


def _annotated(func: PrimFunc, more: dict[str, Any], without: Sequence[str] = ()) -> PrimFunc:
    """The kernel with other annotations on its backbone."""

    def annotate(block: s_tir.SBlock) -> s_tir.SBlock:
        if block.name_hint != NAME:
            return block
        kept = {k: v for k, v in block.annotations.items() if k not in without}
        return changed(block, annotations={**kept, **more})

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, annotate), order="post"))
