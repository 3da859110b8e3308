"""The register tile of channels-last convolutions: a few pixels times a few vectors of filters.

One step of the depth broadcasts an element of each pixel and multiplies it with vectors of a panel of weights, which
`passes.choose_layouts` has packed so that they follow one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.ir import Expr
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit

Load = Callable[[Expr, Expr], Expr]
"""(pixel of the tile, step of the depth) -> a data element."""
Weight = Callable[[Expr, Expr], Expr]
"""(step of the depth, column) -> a weight."""
Steps = Callable[[Callable[[Load, Weight, Expr | int], Stmt]], Stmt]
"""Calls ``run(load, weight, depth)`` for each stretch of the depth."""
Write = Callable[[Expr, Expr, int, Callable[[Expr], Expr]], Stmt]
"""(pixel of the tile, first column, lanes, value of a lane) -> the statement that keeps it."""


@dataclass(frozen=True)
class PanelTile:
    """``rows`` pixels times ``vectors`` vectors of ``lanes`` filters."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @staticmethod
    def of_columns(columns: int, dtype: str, target: Target) -> PanelTile:
        """The tile for panels that are ``columns`` wide: sums take three quarters of the registers."""
        lanes = hardware.lanes(target, dtype)
        vectors = columns // lanes
        return PanelTile(
            max(min(hardware.registers(target) * 3 // 4 // vectors, _most_rows(target)), 1), vectors, lanes
        )

    def candidates(self, target: Target) -> list[PanelTile]:
        """Tiles for panels as wide: from two rows up to sums in seven eighths of the registers."""
        most = min(hardware.registers(target) * 7 // 8 // self.vectors, _most_rows(target))
        return [replace(self, rows=rows) for rows in range(min(2, most), most + 1)]

    @staticmethod
    def choose_columns(filters: int, dtype: str, target: Target) -> int:
        """Panel width with the fewest columns beyond the last filter, the widest of equals."""
        lanes = hardware.lanes(target, dtype)
        widths = [v * lanes for v in range(1, hardware.registers(target) // 8 + 1)]
        return min(widths, key=lambda w: (-(-filters // w) * w, -w))


def _most_rows(target: Target) -> int:
    """Each pixel of a tile takes an address register; the weights, the step and the stack take the others."""
    return hardware.address_registers(target) - 4


def product(tile: PanelTile, rows: int, dtype: str, columns: int, steps: Steps, write: Write) -> Stmt:
    """Sum ``rows`` pixels times a panel of which ``columns`` columns count, and write the sums."""
    lanes = tile.lanes
    vectors = -(-columns // lanes)

    def each(body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        return emit.unrolled(
            rows,
            lambda i: emit.unrolled(vectors, lambda v: emit.vectorized(lanes, lambda j: body(i, v * lanes + j)), "v"),
            "i",
        )

    def body(acc: Buffer) -> Stmt:
        def run(load: Load, weight: Weight, depth: Expr | int) -> Stmt:
            def step(k: Expr) -> Stmt:
                return each(lambda i, j: emit.store(acc, acc[i, j] + load(i, k) * weight(k, j), i, j))

            return emit.serial(depth, step, "k")

        def keep(i: Expr) -> Stmt:
            return emit.seq(
                *[
                    write(i, emit.const(first), width, lambda j, first=first: acc[i, first + j])
                    for first, width in column_pieces(columns, lanes)
                ]
            )

        return emit.seq(
            each(lambda i, j: emit.store(acc, tirx.const(0.0, dtype), i, j)),
            steps(run),
            emit.serial(rows, keep, "i"),
        )

    return emit.scratch([([rows, vectors * lanes], dtype)], body)


def column_pieces(columns: int, lanes: int) -> list[tuple[int, int]]:
    """(start, width) of vectors that cover ``columns``: full ones, then powers of two."""
    pieces, start, width = [], 0, lanes
    while start < columns:
        while width > columns - start:
            width //= 2
        pieces.append((start, width))
        start += width
    return pieces


def each_panel(filters: int, columns: int, body: Callable[[Expr, int], Stmt]) -> Stmt:
    """``body(panel, columns that count)`` of every panel; the last one may be narrower."""
    full, rest = divmod(filters, columns)
    parts = [emit.serial(full, lambda p: body(p, columns), "panel")] if full else []
    return emit.seq(*parts, *([body(emit.const(full), rest)] if rest else []))
