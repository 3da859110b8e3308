"""The walk of a decision table (`tvm_dyn.runtime.table`) as compiled code: a few loads, no branch, no call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tvm_dyn.runtime import table
from tvm_dyn.schedules import emit


def table_buffer(words: np.ndarray) -> Buffer:
    """The parameter of a kernel that takes its table."""
    return tirx.decl_buffer([len(words)], "int64", "decisions")


def walk(words: Buffer, extents: Sequence[Expr], width: int, body: Callable[..., Stmt]) -> Stmt:
    """``body(copy, *decisions)`` of the variant that the table takes at these extents; ``width`` words a variant.

    The way goes through memory, which LLVM turns into registers: TVM would put each step's formula, in which the one
    before occurs several times, into every index that is computed from the decisions.
    """
    slot = 1 + emit.load(words, 0) * table.SLOT

    def steps(path: Buffer, taken: Buffer) -> Stmt:
        node, at = emit.load(path, 0), emit.load(path, 1)
        threshold = emit.load(words, at + table.INNER + node)
        right = tirx.Cast("int64", _extent(words, extents, at + node) >= threshold)
        step = emit.store(path, 2 * node + 1 + right, 0)
        leaf = emit.load(words, at + table.INNER + node)
        take = [
            emit.store(taken, emit.load(words, table.VARIANTS + leaf * width + word), word) for word in range(width)
        ]
        return emit.seq(
            emit.store(path, emit.const(0), 0),
            emit.store(path, slot, 1),
            *[step] * table.DEPTH,
            *take,
            emit.bind([emit.load(taken, word) for word in range(width)], body, rename=True),
        )

    return emit.scratch([([2], "int64"), ([width], "int64")], steps)


def _extent(words: Buffer, extents: Sequence[Expr], place: Expr) -> Expr:
    """The extent whose position the table holds at ``place``."""
    *others, last = extents
    value = last
    for position, extent in reversed([*enumerate(others)]):
        value = tirx.Select(emit.load(words, place).equal(position), extent, value)
    return value
