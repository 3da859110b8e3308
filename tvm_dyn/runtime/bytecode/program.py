"""Programs: code at a shape. What depends on the shape is a block of words that is filled in microseconds."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.encode import Code
from tvm_dyn.runtime.bytecode.layout import ARENA_HEAD, MAX_AXES
from tvm_dyn.runtime.bytecode.recipe import Layout

TILE = 2048
"""Elements of a tile: several registers of them stay in the first-level cache, and an instruction's dispatch, some
nanoseconds, is little beside the work on them."""

ROW_TILE = 2 * TILE
"""The same where rows are reduced: then there also are instructions on columns, with little work of their own."""

WHOLE_ROW = 256
"""Elements from which a row is a tile of its own where some operand's rows do not follow each other."""

_SPREAD = 192
"""Bytes between registers beyond their size: at equal offsets in a page, loads would wait for stores."""


@dataclass(frozen=True)
class Steps:
    """How a memory operand lies in the shape: bytes along each axis of the rows, bytes from column to column, and
    for a table the number of its rows."""

    rows: tuple[int, ...]
    column: int
    limit: int = 0


@dataclass(frozen=True)
class Space:
    """What a program iterates over: the extents of the axes that rows run over, and the columns."""

    axes: tuple[int, ...]
    columns: int


class Program:
    """Code with a shape: ready to run on operands that lie as ``steps`` say.

    steps: of inputs and outputs, in order; whoever gives them vouches that the operands are as large.
    """

    def __init__(self, code: Code, space: Space, steps: Sequence[Steps]) -> None:
        rows, columns = math.prod(space.axes), space.columns
        records = _records(code, steps)
        tile_rows, tile_columns = _tile(code, rows, columns)
        if any(layout is Layout.TILE and _has_gaps(step, size, columns) for step, layout, size in records):
            tile_rows = 1
        across = max(-(-columns // tile_columns), 1)
        down = max(-(-rows // tile_rows), 1)
        self.code, self.space = code, space
        self.elements = rows * columns
        self.units = across if code.accumulates else across * down
        register_bytes = (tile_rows * tile_columns * code.element_bytes + 63) & ~63
        register_bytes += _SPREAD
        self.arena_bytes = ARENA_HEAD + code.registers * register_bytes
        padding = [1] * (MAX_AXES - len(space.axes))
        words = array("q", [rows, columns, tile_rows, tile_columns, register_bytes])
        words.extend((down if code.accumulates else 1, len(space.axes), *space.axes, *padding))
        for step, layout, _ in records:
            words.extend(_record(step, layout, columns))
        self._words = words
        self.operands = code.memory
        self.addresses = (code.address, words.buffer_info()[0])


_WHOLE_ROWS = frozenset({"find", "gather", *isa.BY_ROW})


def _tile(code: Code, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a tile. A row stays whole where it is reduced or small, else it is cut, one at a time."""
    needs_rows = any(
        step.layout is Layout.COLUMN or step.op in _WHOLE_ROWS for step in code.recipe.steps
    )
    if needs_rows:
        return max(1, ROW_TILE // max(columns, 1)), max(columns, 1)
    if columns <= ROW_TILE:
        return max(1, TILE // max(columns, 1)), max(columns, 1)
    return 1, TILE


def _records(code: Code, steps: Sequence[Steps]) -> list[tuple[Steps, Layout, int]]:
    """Steps, layout and bytes of an element of each memory slot."""
    recipe = code.recipe
    inputs = [(step, operand.layout, operand.dtype) for step, operand in zip(steps, recipe.inputs, strict=False)]
    constants = [(Steps((), 0), Layout.ONE, dtype) for _, dtype in recipe.constants]
    results = zip(steps[len(inputs) :], recipe.outputs, strict=True)
    outputs = [(step, recipe.layout(value), recipe.dtype(value)) for step, value in results]
    return [(step, layout, isa.BYTES[dtype]) for step, layout, dtype in [*inputs, *constants, *outputs]]


def _has_gaps(step: Steps, element: int, columns: int) -> bool:
    """Whether an operand's rows do not follow each other."""
    return bool(step.rows) and step.rows[-1] != element * columns


def _record(step: Steps, layout: Layout, columns: int) -> list[int]:
    """The words of a slot. An operand that tiles address in place moves by whole rows."""
    rows = step.rows
    if layout not in (Layout.STRIDED, Layout.TABLE):
        rows = (step.rows[-1],) if step.rows else (0,)
    return [*rows, *[0] * (MAX_AXES - len(rows)), step.column, step.limit]
