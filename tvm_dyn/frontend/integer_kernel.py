"""The product of 8-bit codes and constant 8-bit weights in instructions that add four products at once (AVX-512 VNNI).

    for task in parallel(panels of 64 columns * groups of rows):
        for tile of 6 rows:
            acc[6, 64] = -zero * sums of the panel's columns        # sum((x - zero) w) = sum(x w) - zero sum(w)
            for k in depth / 4:  acc += four codes of a row * four weights of each column
            y[rows, panel] = acc
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import s_tir, tirx
from tvm.target import Target

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.tasks import enough_sums, tasks

_LANES, _QUAD = 16, 4
_VECTORS = 4
_PANEL = _VECTORS * _LANES
_ROWS = (6, 2, 1)
"""Heights of tiles: 24 accumulators, 4 vectors of weights and one of codes fill the 32 registers."""
_TILES_PER_TASK = 8


def supports(target: Target | None, depth: Any) -> bool:
    """Whether the target has the instructions, and the depth is whole groups of four."""
    return (
        target is not None
        and target.kind.name == "llvm"
        and isinstance(depth, int)
        and depth % _QUAD == 0
        and depth > 0
        and hardware.has_feature(target, "avx512vnni")
    )


def pack(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(depth, columns) int8 -> (panels, depth / 4, 64 * 4) int8 and sums of columns, int32; zeros beyond the last."""
    depth, columns = weights.shape
    panels = -(-columns // _PANEL)
    padded = np.pad(weights, [(0, 0), (0, panels * _PANEL - columns)])
    quads = padded.reshape(depth // _QUAD, _QUAD, panels, _PANEL).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(quads.reshape(panels, depth // _QUAD, -1)), padded.sum(axis=0, dtype="int32")


def build(depth: int, columns: int, target: Target) -> tirx.PrimFunc:
    """The kernel: codes (rows, depth) uint8, their zero point (1) uint8, what `pack` gives; (rows, columns) int32."""
    return _Kernel(depth, columns, target).function()


class _Kernel:
    def __init__(self, depth: int, columns: int, target: Target):
        self.depth, self.columns, self.target = depth, columns, target
        self.rows = tirx.Var("rows", "int64")
        self.panels = -(-columns // _PANEL)
        self.codes = _buffer("codes", [self.rows, depth], "uint8")
        self.zero = _buffer("zero", [1], "uint8")
        self.weights = _buffer("weights", [self.panels, depth // _QUAD, _PANEL * _QUAD], "int8")
        self.sums = _buffer("sums", [self.panels * _PANEL], "int32")
        self.result = _buffer("result", [self.rows, columns], "int32")

    def function(self) -> tirx.PrimFunc:
        height = _ROWS[0] * _TILES_PER_TASK
        groups = emit.ceildiv(self.rows, height)

        def task(index: Any) -> tirx.Stmt:
            group, panel = tirx.truncmod(index, groups), emit.quotient(index, groups)
            return emit.bind([group * height, panel], lambda row, p: self._group(row, p, height))

        worth = enough_sums(self.rows * (self.depth * self.columns // _QUAD))
        body = tasks(worth, groups * self.panels, task, self.target)
        root = s_tir.SBlockRealize([], tirx.const(True, "bool"), s_tir.SBlock([], [], [], "root", body))
        func = tirx.PrimFunc([self.codes, self.zero, self.weights, self.sums, self.result], root)
        return func.with_attr({"op_pattern": 8, "tirx.noalias": True})

    def _group(self, row: Any, panel: Any, height: int) -> tirx.Stmt:
        """Up to `height` rows: in tiles of the greatest height as far as they go, then in lower ones."""

        def walk(first: Any, end: Any, heights: tuple[int, ...]) -> tirx.Stmt:
            own, *lower = heights
            count = emit.quotient(end - first, own)
            tiles = emit.serial(count, lambda t: self._tile(first + t * own, panel, own), "tile")
            if not lower:
                return tiles
            return emit.seq(tiles, emit.bind([first + count * own], lambda rest: walk(rest, end, tuple(lower))))

        return emit.bind([tirx.min(row + height, self.rows)], lambda end: walk(row, end, _ROWS))

    def _tile(self, row: Any, panel: Any, height: int) -> tirx.Stmt:
        shape = [emit.const(height), emit.const(_PANEL)]
        acc = tirx.decl_buffer(shape, "int32", "acc", scope="local")

        def each(body: Callable[[int, int], tirx.Stmt]) -> tirx.Stmt:
            return emit.seq(*[body(r, v) for r in range(height) for v in range(_VECTORS)])

        def start(r: int, v: int) -> tirx.Stmt:
            column = panel * _PANEL + v * _LANES
            zero = tirx.const(0, "int32") - emit.load(self.zero, 0).astype("int32")
            value = emit.load(self.sums, emit.span(column, _LANES)) * tirx.Broadcast(zero, _LANES)
            return emit.store(acc, value, r, emit.span(emit.const(v * _LANES), _LANES))

        def step(k: Any) -> tirx.Stmt:
            return each(lambda r, v: self._multiply(acc, row + r, panel, k, (r, v)))

        whole = each(lambda r, v: self._save(acc, row, panel, (r, v)))
        return emit.seq(
            tirx.AllocBuffer(acc),
            each(start),
            emit.serial(self.depth // _QUAD, step, "k"),
            whole if self.columns % _PANEL == 0 else self._save_some(acc, row, panel, height, whole),
        )

    def _multiply(self, acc: Any, row: Any, panel: Any, k: Any, place: tuple[int, int]) -> tirx.Stmt:
        r, v = place
        quad = tirx.reinterpret("int32", emit.load(self.codes, row, emit.span(k * _QUAD, _QUAD)))
        codes = tirx.reinterpret(f"uint8x{_LANES * _QUAD}", tirx.Broadcast(quad, _LANES))
        lanes = emit.span(emit.const(v * _LANES * _QUAD), _LANES * _QUAD)
        at = emit.span(emit.const(v * _LANES), _LANES)
        weights = emit.load(self.weights, panel, k, lanes)
        total = tirx.call_llvm_pure_intrin(
            f"int32x{_LANES}", "llvm.x86.avx512.vpdpbusd.512", emit.load(acc, r, at), codes, weights
        )
        return emit.store(acc, total, r, at)

    def _save(self, acc: Any, row: Any, panel: Any, place: tuple[int, int]) -> tirx.Stmt:
        r, v = place
        value = emit.load(acc, r, emit.span(emit.const(v * _LANES), _LANES))
        return emit.store(self.result, value, row + r, emit.span(panel * _PANEL + v * _LANES, _LANES))

    def _save_some(self, acc: Any, row: Any, panel: Any, height: int, whole: tirx.Stmt) -> tirx.Stmt:
        """All columns of the panel, or those of the last one that there are."""
        rest = emit.serial(
            self.columns % _PANEL,
            lambda j: emit.seq(
                *[emit.store(self.result, emit.load(acc, r, j), row + r, panel * _PANEL + j) for r in range(height)]
            ),
            "column",
        )
        return tirx.IfThenElse(panel < self.panels - 1, whole, rest) if self.panels > 1 else rest


def _buffer(name: str, shape: list[Any], dtype: str) -> tirx.Buffer:
    return tirx.decl_buffer([emit.const(s) if isinstance(s, int) else s for s in shape], dtype, name)
