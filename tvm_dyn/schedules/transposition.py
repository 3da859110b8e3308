"""Functions that do nothing but transpose: squares of vectors that are turned in registers.

for n, y, x: Y[n, y, x] = X[n, x, y]
--->
for n, y0, x0: square at X[n, x0, y0] -> square at Y[n, y0, x0]     # the last ones overlap their neighbours
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import Buffer, IterVar, PrimFunc, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit, llvm_transpose
from tvm_dyn.schedules.elementwise import parallel_if_worth
from tvm_dyn.schedules.stage import Stage, group_point, merge_axes, parse

_SQUARES_PER_TASK = 4


@dataclass(frozen=True)
class Transposition:
    """``destination[lead, y, x] = source[lead, x, y]`` in groups of axes that follow one another on both sides."""

    stage: Stage
    source: Buffer
    destination: Buffer
    lead: list[IterVar]
    y: list[IterVar]
    x: list[IterVar]


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    found = match(func)
    lanes = hardware.lanes(target, "float32")
    if found is None or lanes < 4:
        return None
    return emit.kernel(func, llvm_transpose.importing(lanes, kernel(found, lanes, target)))


def match(func: PrimFunc) -> Transposition | None:
    """None where the function is more than a transposition of two groups of axes."""
    stages = parse(func)
    if stages is None or len(stages) != 1 or stages[0].reduction or not isinstance(stages[0].body, tirx.BufferStore):
        return None
    (stage,) = stages
    store = stage.body
    load = store.value
    if not isinstance(load, tvm.ir.TensorLoad) or str(load.source.dtype) != "float32":
        return None
    groups = merge_axes(stage.spatial, stages, list(func.params))
    last = [group[-1].var for group in groups]
    read = [i for i in load.indices if any(i.same_as(v) for v in last)]
    if len(groups) not in (2, 3) or len(load.indices) != len(store.indices) or len(read) != len(groups):
        return None
    order = [*range(len(groups) - 2), len(groups) - 1, len(groups) - 2]
    if not all(i.same_as(last[g]) for i, g in zip(read, order, strict=True)):
        return None
    lead = groups[0] if len(groups) == 3 else []
    return Transposition(stage, load.source, store.buffer, lead, groups[-2], groups[-1])


def kernel(found: Transposition, lanes: int, target: Target) -> Stmt:
    rows, columns, images = (emit.product([iv.dom.extent for iv in g]) for g in (found.y, found.x, found.lead))

    def body(rows: Expr, columns: Expr) -> Stmt:
        tall = _SQUARES_PER_TASK * lanes

        def task(index: Expr) -> Stmt:
            def band(image: Expr, part: Expr) -> Stmt:
                def square(s: Expr) -> Stmt:
                    y = tirx.min(part * tall + emit.quotient(s, wide) * lanes, rows - lanes)
                    x = tirx.min(tirx.truncmod(s, wide) * lanes, columns - lanes)
                    return emit.bind([y, x], lambda y, x: _square(found, lanes, (image, y, x), rows, columns))

                wide = emit.ceildiv(columns, lanes)
                count = emit.ceildiv(tirx.min(emit.const(tall), rows - part * tall), lanes)
                return emit.bind([wide, count * wide], lambda w, n: emit.serial(n, square, "square"))

            return emit.bind(emit.unflatten(index, [images, emit.ceildiv(rows, tall)]), band)

        def element(image: Expr, y: Expr, x: Expr) -> Stmt:
            point = group_point(found.lead, image) if found.lead else {}
            return found.stage.at({**point, **group_point(found.y, y), **group_point(found.x, x)})

        def narrow(index: Expr) -> Stmt:
            return emit.bind(
                emit.unflatten(index, [images, rows]),
                lambda image, y: emit.serial(columns, lambda x: element(image, y, x), "x"),
            )

        tasks = images * emit.ceildiv(rows, tall)
        work = images * rows * columns
        return emit.when(
            tirx.all(rows >= lanes, columns >= lanes),
            parallel_if_worth(work, tasks, task, found.stage, target),
            parallel_if_worth(work, images * rows, narrow, found.stage, target),
        )

    return emit.bind([rows, columns], body)


def _square(found: Transposition, lanes: int, at: tuple[Expr, Expr, Expr], rows: Expr, columns: Expr) -> Stmt:
    image, y, x = at
    source = _address(found.source, (image * columns + x) * rows + y)
    destination = _address(found.destination, (image * rows + y) * columns + x)
    return llvm_transpose.transpose(source, destination, columns, lanes, rows)


def _address(buffer: Buffer, offset: Expr) -> Expr:
    return tirx.address_of(buffer[(*[emit.const(0)] * (len(buffer.shape) - 1), offset)])
