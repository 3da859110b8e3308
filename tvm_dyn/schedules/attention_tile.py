"""Tile sizes of attention, and what its kernels have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr
from tvm.target import Target
from tvm.tirx import Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.attention_match import Attention
from tvm_dyn.schedules.common import substitute


@dataclass(frozen=True)
class AttentionTile:
    """Tile sizes of the kernels; any positive ones are right.

    lanes: queries in a vector, a power of two; vectors: vectors in a full query block. accumulators: vector registers
    of a register tile, at least as many as vectors. keys: keys in a block. rows: queries up to which each is on its
    own, with ``row_keys`` keys in a block.
    """

    lanes: int
    vectors: int
    accumulators: int
    keys: int
    rows: int
    row_keys: int

    @staticmethod
    def for_target(target: Target, columns: int) -> AttentionTile:
        """Five of eight registers accumulate: the others hold the operands of two steps, as LLVM unrolls the loop.

        A block's scores and values fill the first cache.
        """
        lanes, registers = hardware.lanes(target, "float32"), hardware.registers(target)
        vectors = registers // 8
        element, cache = hardware.dtype_bytes("float32"), hardware.cache_bytes(target, 1)
        step = registers * 5 // 8
        keys = -(-cache // ((lanes * vectors + columns) * element * step)) * step
        row_keys = cache // (4 * element)
        return AttentionTile(lanes, vectors, step, keys, lanes // 4, row_keys)


def vector_columns(columns: int, lanes: int) -> tuple[list[int], int]:
    """The first columns of the vectors that cover a row, and their width: ``lanes``, or less for narrow rows.

    The last vector overlaps its neighbour where the columns do not fill it.
    """
    while lanes > columns:
        lanes //= 2
    return [min(c, columns - lanes) for c in range(0, columns, lanes)], lanes


def store_result(found: Attention, point: dict, column, value, total) -> Stmt:
    """Divide by the sum of the weights and store; ``point``: the batch and the query."""
    scaled = value * (tirx.const(1, "float32") / total)
    if found.nan_to_zero:
        scaled = tirx.Select(total > 0, scaled, tirx.const(0, "float32"))
    elif found.hidden_to_zero:
        scaled = tirx.Select(total.equal(0), value, scaled)
    return substitute(found.store, {**point, found.column.var: column, found.result: scaled})


def tiles(count, height: int, tile: Callable[[int, Callable], Stmt], offset: Expr | int = 0) -> Stmt:
    """Tiles of ``height`` rows that cover ``count`` from ``offset`` on, the last of half the height or less if enough.

    Rows of the last tile are clamped: computed twice rather than guarded.
    """
    lowest = [h for h in (height // 2, height // 4) if h]
    full = emit.quotient(count + (height - 1 - (lowest[0] if lowest else 0)), height)

    def at(height: int, start) -> Stmt:
        return tile(height, lambda r: tirx.min(start + r, count - 1) + offset)

    def tail(start) -> Stmt:
        statement, limits = None, [0, *reversed(lowest)]
        for limit, h in zip(limits, reversed(lowest), strict=False):
            statement = emit.when(count - start > limit, at(h, start), statement)
        return statement or tirx.Evaluate(emit.const(0))

    def whole(i) -> Stmt:
        return emit.bind([i * height], lambda start: at(height, start))

    return emit.seq(emit.serial(full, whole), emit.bind([full * height], tail))
