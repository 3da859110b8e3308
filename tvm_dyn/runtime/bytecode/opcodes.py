"""The functions of the opcodes: maps, reductions, and movements, each over the rows and elements of a tile."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import PrimFunc, Stmt, Var

from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.blocks import Block, internal
from tvm_dyn.runtime.bytecode.isa import Opcode
from tvm_dyn.runtime.bytecode.layout import STATUS, WORD, Record, Shape
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.emit import const

_VECTORS = 4
"""Vectors of float32 that a map computes at once."""

INVOLVED = ("find", "load", "gather")
"""The kinds of opcodes that also look at the tile's place in the shape."""


class Operands:
    """The parameters of an opcode's function."""

    def __init__(self) -> None:
        self.addresses = [Var(name, "int64") for name in "dabc"]
        self.outer, self.inner = Var("outer", "int64"), Var("inner", "int64")
        self.steps = [Var(f"k{name}", "int64") for name in "dabc"]
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
    emitters = {"map": _map, "reduce": _reduce, "find": _find, "load": _load, "gather": _gather}
    emitters[opcode.kind](opcode, block, operands, lanes)
    params = operands.involved if opcode.kind in INVOLVED else operands.simple
    return internal(opcode.mnemonic.replace(".", "_"), params, block.stmt())


def _pieces(block: Block, extent: Expr, lanes: int, body: Callable[[Block, Expr, int], None]) -> None:
    """``body`` of (start, width) for every element below ``extent``: several vectors at once, one, then singles."""
    start: Expr = const(0)
    for width in (lanes * _VECTORS, lanes, 1):
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

    def row(inside: Block, o: Expr) -> None:
        offset = inside.let(o * operands.steps[1], "offset")
        total = _fold(opcode, inside, operands.inner, lanes, lambda i: a[offset + i])
        inside.store(d, total, o * operands.steps[0])

    block.loop(operands.outer, row)


def _fold(opcode: Opcode, block: Block, extent: Expr, lanes: int, element: Callable[[Expr], Expr]) -> Expr:
    """The reduction of ``element(i)`` for i below ``extent``: a total for each lane, halved until one is left."""
    identity = tirx.const(opcode.identity, opcode.output)
    combine = _combination(opcode)
    wide, total = lanes * _VECTORS, block.scratch(1, opcode.output)
    lane_totals = block.scratch(wide, opcode.output)
    vectors = block.let(emit.quotient(extent, wide), "vectors")
    done = block.let(vectors * wide, "done")
    block.store(total, identity, 0)

    def in_vectors(inside: Block) -> None:
        inside.add(emit.vectorized(wide, lambda j: tirx.BufferStore(lane_totals, identity, [j])))

        def step(innermost: Block, n: Expr) -> None:
            innermost.add(
                emit.vectorized(
                    wide,
                    lambda j: tirx.BufferStore(
                        lane_totals, opcode.body(lane_totals[j], element(n * wide + j)), [j]
                    ),
                )
            )

        inside.loop(vectors, step)
        _halve(inside, lane_totals, wide, lanes, combine)

    block.when(vectors > 0, in_vectors)
    single = block.let(emit.quotient(extent - done, lanes), "single")
    block.when(
        vectors < 1,
        lambda inside: inside.add(
            emit.vectorized(lanes, lambda j: tirx.BufferStore(lane_totals, identity, [j]))
        ),
    )
    block.loop(
        single,
        lambda inside, n: inside.add(
            emit.vectorized(
                lanes,
                lambda j: tirx.BufferStore(
                    lane_totals, opcode.body(lane_totals[j], element(done + n * lanes + j)), [j]
                ),
            )
        ),
    )

    def across(inside: Block) -> None:
        _halve(inside, lane_totals, lanes, 1, combine)
        inside.store(total, lane_totals[const(0)], 0)

    block.when(extent >= lanes, across)
    rest = block.let(done + single * lanes, "rest")
    block.loop(
        extent - rest, lambda inside, n: inside.store(total, opcode.body(total[const(0)], element(rest + n)), 0)
    )
    return total[const(0)]


def _combination(opcode: Opcode) -> isa.Body:
    """How two totals become one: as an element joins a total, unless elements are changed on their way."""
    if opcode.mnemonic.startswith("rsumsq"):
        return lambda a, b: a + b
    return opcode.body


def _halve(block: Block, totals: tirx.Buffer, lanes: int, until: int, combine: isa.Body) -> None:
    while lanes > until:
        lanes //= 2
        half = lanes
        block.add(
            emit.vectorized(
                lanes, lambda j, half=half: tirx.BufferStore(totals, combine(totals[j], totals[j + half]), [j])
            )
        )


def _find(opcode: Opcode, block: Block, operands: Operands, lanes: int) -> None:
    """The first column whose element is the row's value ``b``; vectors are searched as wholes."""
    d, a, b = _views(opcode, block, operands)
    least = Opcode("", "reduce", ("int64",), "int64", isa.minimum_of_ints, identity=isa.NOT_FOUND)

    def row(inside: Block, o: Expr) -> None:
        offset = inside.let(o * operands.steps[1], "offset")
        wanted = o * operands.steps[2]

        def place(i: Expr) -> Expr:
            missing = tirx.const(isa.NOT_FOUND, "int64")
            return tirx.Select(opcode.body(a[offset + i], b[wanted]), i + operands.column, missing)

        inside.store(d, _fold(least, inside, operands.inner, lanes // 2, place), o * operands.steps[0])

    block.loop(operands.outer, row)


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
