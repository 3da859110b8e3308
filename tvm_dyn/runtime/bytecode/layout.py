"""How programs lie in memory: words of int64 that the encoder writes and the interpreter reads.

    launch    waves, then for each: segments, tasks, and for each segment the addresses of a program's code, shape
              and bases, and its units of work
    code      what to do, at any shape: counts, then instructions
    shape     rows, columns and tiles of one shape, and how memory operands lie in them
    bases     where the memory operands of one call are
"""

from __future__ import annotations

from enum import IntEnum

WORD = 8
"""Bytes."""


class Code(IntEnum):
    """The head of the code; instructions follow."""

    INIT = 0
    BODY = 1
    FINISH = 2
    MEMORY = 3
    INSTRUCTIONS = 4


OPERANDS = 5
"""Slots that an instruction names: of its result, and of up to four operands."""


class Field(IntEnum):
    """The words of an instruction: opcode, mode, slots of destination and operands, kinds of the same."""

    OPCODE = 0
    MODE = 1
    SLOTS = 2
    KINDS = SLOTS + OPERANDS
    SIZE = KINDS + OPERANDS


class Shape(IntEnum):
    """The head of the shape; a record for each memory slot follows."""

    ROWS = 0
    COLUMNS = 1
    TILE_ROWS = 2
    TILE_COLUMNS = 3
    REGISTER_BYTES = 4
    GRAIN = 5
    AXES = 6
    EXTENTS = 7
    RECORDS = 13


MAX_AXES = Shape.RECORDS - Shape.EXTENTS
"""Axes that the rows of a strided operand may run over."""


class Record(IntEnum):
    """A memory slot: bytes from row to row (of a strided operand: along each axis), and from column to column."""

    STEPS = 0
    COLUMN_STEP = MAX_AXES
    LIMIT = MAX_AXES + 1
    SIZE = MAX_AXES + 2


class Launch(IntEnum):
    """Words of a launch: the number of its waves, then the waves, one behind the other."""

    WAVES = 0
    FIRST = 1


class Wave(IntEnum):
    """Words of a wave: the numbers of its segments and tasks, then the segments, one behind the other."""

    SEGMENTS = 0
    TASKS = 1
    FIRST = 2


class Segment(IntEnum):
    """Words of a program in a wave: where its code, shape and addresses are, and its units of work."""

    CODE = 0
    SHAPE = 1
    BASES = 2
    UNITS = 3
    SIZE = 4


class Mode(IntEnum):
    """What an instruction loops over: rows outside, elements of a row inside."""

    FLAT = 0
    COLUMN = 1
    ROWS = 2
    ROW = 3
    ONE = 4


class Kind(IntEnum):
    """How an operand moves from row to row: by a row of elements, by one element, or not at all."""

    FIXED = 0
    FULL = 1
    COLUMN = 2


MAX_SLOTS = 256
STATUS = MAX_SLOTS
"""The arena begins with the address of each slot; the word after them is set when an index was out of bounds."""

ARENA_HEAD = WORD * (MAX_SLOTS + 64)
"""Bytes of the arena before the first register."""
