"""How operands lie in a group's space: strides with broadcasting, and axes joined where all operands allow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm_dyn.runtime.bytecode.layout import MAX_AXES
from tvm_dyn.runtime.bytecode.program import WHOLE_ROW, Space, Steps
from tvm_dyn.runtime.bytecode.recipe import Layout

Strides = tuple[int, ...]


class NotAffine(Exception):
    """An operand lies so that no program can address it: it has to be copied first."""


def broadcast_strides(shape: Sequence[int], strides: Strides, space: Sequence[int]) -> Strides:
    """Byte strides along the axes of ``space``; 0 along those that the operand has not, or has one element of."""
    missing = len(space) - len(shape)
    own = [0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True)]
    return (*[0] * missing, *own)


def contiguous_strides(shape: Sequence[int], itemsize: int) -> Strides:
    """The strides, in bytes, of an array whose rows follow one another."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def collapse(extents: Sequence[int], operands: Sequence[Strides]) -> tuple[list[int], list[list[int]]]:
    """Axes joined where each operand steps over them as over one; axes of extent 1 are left out."""
    axes: list[int] = []
    steps: list[list[int]] = [[] for _ in operands]
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        here = [strides[axis] for strides in operands]
        if axes and all(own[-1] == stride * extent for own, stride in zip(steps, here, strict=True)):
            axes[-1] *= extent
            for own, stride in zip(steps, here, strict=True):
                own[-1] = stride
        else:
            axes.append(extent)
            for own, stride in zip(steps, here, strict=True):
                own.append(stride)
    return axes, steps


def arrange(
    shape: Sequence[int], split: int | None, operands: Sequence[Strides], itemsizes: Sequence[int]
) -> tuple[Space, list[tuple[Layout, Steps]]]:
    """The space of a group and how each operand lies in it.

    split: the axis where columns begin, where a reduction decides it. Raises `NotAffine`.
    """
    if split is None:
        axes, steps = collapse(shape, operands)
        if len(axes) <= 1 and all(own[-1:] in ([], [0], [size]) for own, size in zip(steps, itemsizes, strict=True)):
            space, rows, columns = Space((math.prod(axes),), 1), [own[-1:] or [0] for own in steps], [0] * len(steps)
            return space, [
                (Layout.TILE if own[0] else Layout.ONE, Steps(tuple(own), 0)) for own in rows
            ]
        space = Space(tuple(axes[:-1]), axes[-1])
        rows, columns = [own[:-1] for own in steps], [own[-1] for own in steps]
    else:
        axes, rows = collapse(shape[:split], [strides[:split] for strides in operands])
        inner, inner_steps = collapse(shape[split:], [strides[split:] for strides in operands])
        if len(inner) > 1:
            raise NotAffine
        space = Space(tuple(axes), math.prod(inner))
        columns = [own[0] if own else 0 for own in inner_steps]
    if len(space.axes) > MAX_AXES:
        raise NotAffine
    placed = zip(rows, columns, itemsizes, strict=True)
    return space, [(_layout(space, row, column, size), Steps(tuple(row), column)) for row, column, size in placed]


def _layout(space: Space, rows: Sequence[int], column: int, size: int) -> Layout:
    if not any(rows) and not column:
        single = math.prod(space.axes) == 1 and space.columns == 1
        return Layout.TILE if single else Layout.ONE
    across = column == size or space.columns == 1
    if across and list(rows) == _contiguous(space, size * space.columns):
        return Layout.TILE
    if column == size and not any(rows):
        return Layout.ROW
    if column == size and len(rows) == 1 and space.columns >= WHOLE_ROW:
        return Layout.TILE
    if column == 0 and list(rows) == _contiguous(space, size):
        return Layout.COLUMN
    return Layout.STRIDED


def _contiguous(space: Space, size: int) -> list[int]:
    return list(contiguous_strides((*space.axes, 1), size)[:-1]) if space.axes else []
