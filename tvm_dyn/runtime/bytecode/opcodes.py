"""The functions of the opcodes: maps, reductions, and movements, each over the rows and elements of a tile."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import PrimFunc, Stmt, Var

from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.blocks import Block, internal
from tvm_dyn.runtime.bytecode.fold import VECTORS, Fold
from tvm_dyn.runtime.bytecode.isa import Opcode
from tvm_dyn.runtime.bytecode.layout import STATUS, WORD, Record, Shape
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.emit import const
from tvm_dyn.schedules.math import exp_negative

INVOLVED = ("find", "load", "gather")
"""The kinds of opcodes that also look at the tile's place in the shape."""


class Operands:
    """The parameters of an opcode's function."""

    def __init__(self) -> None:
        self.addresses = [Var(name, "int64") for name in "dabce"]
        self.outer, self.inner = Var("outer", "int64"), Var("inner", "int64")
        self.steps = [Var(f"k{name}", "int64") for name in "dabce"]
        self.shape, self.record = Var("shape", "int64"), Var("record", "int64")
        self.row, self.column, self.arena = Var("row", "int64"), Var("column", "int64"), Var("arena", "int64")

    @property
    def simple(self) -> list[Var]:
        return [*self.addresses, self.outer, self.inner, *self.steps]

    @property
    def involved(self) -> list[Var]:
        return [*self.simple, self.shape, self.record, self.row, self.column, self.arena]


def opcode_function(opcode: Opcode, lanes: int) -> PrimFunc:
    """The function of an opcode; ``lanes``: elements of float32 in a vector of the target."""
    block, operands = Block(), Operands()
    emitters = {
        "map": _map,
        "reduce": _reduce,
        "find": _find,
        "softmax": _softmax,
        "standardize": _standardize,
        "layer_norm": _standardize,
        "load": _load,
        "gather": _gather,
    }
    emitters[opcode.kind](opcode, block, operands, lanes)
    params = operands.involved if opcode.kind in INVOLVED else operands.simple
    return internal(opcode.mnemonic.replace(".", "_"), params, block.stmt())


def _pieces(block: Block, extent: Expr, lanes: int, body: Callable[[Block, Expr, int], None]) -> None:
    """``body`` of (start, width) for every element below ``extent``: several vectors at once, one, then singles."""
    start: Expr = const(0)
    for width in (lanes * VECTORS, lanes, 1):
        count = block.let(emit.quotient(extent - start, width), "n")
        first = start

        def piece(inside: Block, index: Expr, width: int = width, first: Expr = first) -> None:
            body(inside, first + index * width, width)

        block.loop(count, piece)
        start = block.let(start + count * width, "start")


def _map(opcode: Opcode, block: Block, operands: Operands, lanes: int) -> None:
    d, *sources = _views(opcode, block, operands)

    def row(inside: Block, o: Expr) -> None:
        offsets = [inside.let(o * step, "offset") for step in operands.steps]

        def piece(innermost: Block, start: Expr, width: int) -> None:
            def element(lane: Expr) -> Stmt:
                values = [
                    source[offset + (start + lane if letter == "v" else 0)]
                    for source, offset, letter in zip(sources, offsets[1:], opcode.form, strict=False)
                ]
                return tirx.BufferStore(d, opcode.body(*values), [offsets[0] + start + lane])

            innermost.add(emit.vectorized(width, element))

        _pieces(inside, operands.inner, lanes, piece)

    block.loop(operands.outer, row)


def _views(opcode: Opcode, block: Block, operands: Operands) -> list[tirx.Buffer]:
    dtypes = (opcode.output, *opcode.inputs)
    return [block.at(address, dtype) for address, dtype in zip(operands.addresses, dtypes, strict=False)]


def _reduce(opcode: Opcode, block: Block, operands: Operands, lanes: int) -> None:
    d, a = _views(opcode, block, operands)
    fold = Fold(opcode.output, opcode.identity, opcode.body, lanes)
    squared = opcode.mnemonic.startswith("rsumsq")

    def element_at(offset: Expr) -> Callable[[Expr], Expr]:
        return lambda i: a[offset + i] * a[offset + i] if squared else a[offset + i]

    def row(inside: Block, o: Expr) -> None:
        offset = inside.let(o * operands.steps[1], "offset")
        total = fold.emit(inside, operands.inner, element_at(offset))
        inside.store(d, total, o * operands.steps[0])

    block.loop(operands.outer, row)


def _find(opcode: Opcode, block: Block, operands: Operands, lanes: int) -> None:
    """The first column whose element is the row's value ``b``; vectors are searched as wholes."""
    d, a, b = _views(opcode, block, operands)
    least = Fold("int64", isa.NOT_FOUND, isa.minimum, lanes // 2)

    def row(inside: Block, o: Expr) -> None:
        offset = inside.let(o * operands.steps[1], "offset")
        wanted = o * operands.steps[2]

        def place(i: Expr) -> Expr:
            missing = tirx.const(isa.NOT_FOUND, "int64")
            return tirx.Select(opcode.body(a[offset + i], b[wanted]), i + operands.column, missing)

        inside.store(d, least.emit(inside, operands.inner, place), o * operands.steps[0])

    block.loop(operands.outer, row)


def _softmax(opcode: Opcode, block: Block, operands: Operands, lanes: int) -> None:
    """Exponentials of the differences to the row's maximum, summed as they are written, over their sum."""
    d, a = _views(opcode, block, operands)
    # A NaN need not be the maximum: it makes the sum NaN, and with it the row.
    largest = Fold("float32", float("-inf"), lambda most, x: tirx.Select(x > most, x, most), lanes)
    total = Fold("float32", 0.0, lambda x, y: x + y, lanes)

    def row(inside: Block, o: Expr) -> None:
        source, target = inside.let(o * operands.steps[1], "source"), inside.let(o * operands.steps[0], "target")
        most = largest.emit(inside, operands.inner, lambda i: a[source + i])

        def weigh(i: Expr) -> Stmt:
            return tirx.BufferStore(d, exp_negative(a[source + i] - most), [target + i])

        weights = total.emit(inside, operands.inner, lambda i: d[target + i], weigh)
        share = inside.let(tirx.const(1, "float32") / weights, "share")
        _every(inside, operands.inner, lanes, lambda i: tirx.BufferStore(d, d[target + i] * share, [target + i]))

    block.loop(operands.outer, row)


def _standardize(opcode: Opcode, block: Block, operands: Operands, lanes: int) -> None:
    """Distances from the row's mean, over the root of their mean square and a guard; then by a gain, to a shift."""
    d, a, guards, *affine = _views(opcode, block, operands)
    total = Fold("float32", 0.0, lambda x, y: x + y, lanes)

    def row(inside: Block, o: Expr) -> None:
        source, target = inside.let(o * operands.steps[1], "source"), inside.let(o * operands.steps[0], "target")
        part = inside.let(tirx.const(1, "float32") / operands.inner.astype("float32"), "part")
        mean = inside.let(total.emit(inside, operands.inner, lambda i: a[source + i]) * part, "mean")
        squares = total.emit(
            inside, operands.inner, lambda i: (a[source + i] - mean) * (a[source + i] - mean)
        )
        guard = guards[o * operands.steps[2]]
        scale = inside.let(tirx.const(1, "float32") / tirx.sqrt(squares * part + guard), "scale")

        def element(i: Expr) -> Stmt:
            value = (a[source + i] - mean) * scale
            return tirx.BufferStore(d, value * affine[0][i] + affine[1][i] if affine else value, [target + i])

        _every(inside, operands.inner, lanes, element)

    block.loop(operands.outer, row)


def _every(block: Block, extent: Expr, lanes: int, element: Callable[[Expr], Stmt]) -> None:
    """``element(i)`` for every i below ``extent``."""

    def piece(inside: Block, start: Expr, width: int) -> None:
        inside.add(emit.vectorized(width, lambda j: element(start + j)))

    _pieces(block, extent, lanes, piece)


def _load(opcode: Opcode, block: Block, operands: Operands, lanes: int) -> None:
    """A tile from anywhere: the row's number, digit by digit, finds where the row starts."""
    size = isa.stored_bytes(opcode.output)
    d = block.at(operands.addresses[0], opcode.output)
    shape, record = block.at(operands.shape), block.at(operands.record)
    step = block.let(record[const(Record.COLUMN_STEP)], "step")

    def row(inside: Block, o: Expr) -> None:
        at = inside.scratch(2, "int64")  # where the row starts, and what is left of its number
        inside.store(at, operands.addresses[1] + operands.column * step, 0)
        inside.store(at, operands.row + o, 1)

        def digit(innermost: Block, n: Expr) -> None:
            axis = innermost.let(shape[const(Shape.AXES)] - 1 - n, "axis")
            extent = innermost.let(shape[const(Shape.EXTENTS) + axis], "extent")
            innermost.store(
                at, at[const(0)] + tirx.truncmod(at[const(1)], extent) * record[const(Record.STEPS) + axis], 0
            )
            innermost.store(at, tirx.truncdiv(at[const(1)], extent), 1)

        inside.loop(shape[const(Shape.AXES)], digit)
        start = inside.let(at[const(0)], "start")
        offset = inside.let(o * operands.steps[0], "offset")
        _copy_row(inside, opcode, (d, offset), start, operands.inner, step, size, lanes)

    block.loop(operands.outer, row)


def _copy_row(
    block: Block,
    opcode: Opcode,
    target: tuple[tirx.Buffer, Expr],
    start: Expr,
    count: Expr,
    step: Expr,
    size: int,
    lanes: int,
) -> None:
    """``count`` elements from ``start`` on, ``step`` bytes apart; neighbours in vectors."""
    d, offset = target

    def contiguous(inside: Block) -> None:
        a = inside.at(start, opcode.output)
        _pieces(
            inside,
            count,
            lanes,
            lambda innermost, first, width: innermost.add(
                emit.vectorized(
                    width, lambda j: tirx.BufferStore(d, a[first + j], [offset + first + j])
                )
            ),
        )

    def apart(inside: Block) -> None:
        def element(innermost: Block, i: Expr) -> None:
            a = innermost.at(start + i * step, opcode.output)
            innermost.store(d, a[const(0)], offset + i)

        inside.loop(count, element)

    block.when(tirx.EQ(step, const(size)), contiguous)
    block.when(tirx.NE(step, const(size)), apart)


def _gather(opcode: Opcode, block: Block, operands: Operands, lanes: int) -> None:
    """Rows by their number; one out of bounds is noted, and the first row taken in its place."""
    size = isa.stored_bytes(opcode.output)
    d = block.at(operands.addresses[0], opcode.output)
    numbers = block.at(operands.addresses[2], "int64")
    record, status = block.at(operands.record), block.at(operands.arena + WORD * STATUS)
    limit = block.let(record[const(Record.LIMIT)], "limit")

    def row(inside: Block, o: Expr) -> None:
        given = inside.let(numbers[o * operands.steps[2]], "given")
        wrapped = inside.let(tirx.Select(given < 0, given + limit, given), "wrapped")
        valid = inside.let(tirx.And(wrapped >= 0, wrapped < limit), "valid")
        inside.when(tirx.Not(valid), lambda fault: fault.store(status, const(1), 0))
        number = inside.let(tirx.Select(valid, wrapped, const(0)), "number")
        column = operands.column * record[const(Record.COLUMN_STEP)]
        start = inside.let(operands.addresses[1] + number * record[const(Record.STEPS)] + column, "start")
        offset = inside.let(o * operands.steps[0], "offset")
        step = inside.let(record[const(Record.COLUMN_STEP)], "step")
        _copy_row(inside, opcode, (d, offset), start, operands.inner, step, size, lanes)

    block.loop(operands.outer, row)
