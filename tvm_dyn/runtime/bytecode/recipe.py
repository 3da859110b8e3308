"""A fused group as plain data: the recipe that code is encoded from, whatever the shape.

    Recipe(inputs  = [x: float32 TILE, b: float32 ROW],        # b has one value for each column
           steps   = [2 = add(0, 1), 3 = exp(2), 4 = fold.rsum(3) -> COLUMN],
           outputs = [3, 4])

Values are numbered: inputs first, then constants, then the results of the steps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum


class Layout(IntEnum):
    """Which part of a tile a value has an element for; `STRIDED` is a tile that lies scattered in memory."""

    TILE = 1
    COLUMN = 2
    ROW = 3
    ONE = 4
    STRIDED = 5
    TABLE = 6


@dataclass(frozen=True)
class Operand:
    """An input in memory."""

    dtype: str
    layout: Layout


@dataclass(frozen=True)
class Step:
    """An operation: `op` as in the table of opcodes, on operands of ``dtype``.

    Results of reductions: `rsum` and its like, of a tile, give a COLUMN; with ``layout`` ROW they go over all rows,
    with ONE over everything, and are known only when the last tile is done.
    """

    op: str
    args: tuple[int, ...]
    dtype: str
    result: str
    layout: Layout


@dataclass(frozen=True)
class Recipe:
    """What a fused group computes: values are numbered, inputs first, then constants, then the result of each step.

    constants: (number, dtype). outputs: the numbers of the values that leave the group.
    """

    inputs: tuple[Operand, ...]
    constants: tuple[tuple[float | int, str], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @functools.cached_property
    def first_result(self) -> int:
        return len(self.inputs) + len(self.constants)

    def dtype(self, value: int) -> str:
        if value < len(self.inputs):
            return self.inputs[value].dtype
        if value < self.first_result:
            return self.constants[value - len(self.inputs)][1]
        return self.steps[value - self.first_result].result

    def layout(self, value: int) -> Layout:
        if value < len(self.inputs):
            return self.inputs[value].layout
        if value < self.first_result:
            return Layout.ONE
        return self.steps[value - self.first_result].layout
