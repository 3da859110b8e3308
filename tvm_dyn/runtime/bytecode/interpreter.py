"""The interpreter, generated from the table of opcodes as TIR: a loop over tiles around a loop over instructions.

    @T.prim_func(private=True)
    def opcode_0(d: T.int64, a: T.int64, b: T.int64, c: T.int64, outer: T.int64, inner: T.int64, ...):
        for o in range(outer):
            for i in range(inner // 64): D[o * kd + i * 64 + lanes] = A[o * ka + i * 64 + lanes] + ...

    @T.prim_func
    def run(launch: T.Buffer(("n",), "int64"), arena: T.int64, arena_bytes: T.int64):
        for wave in range(launch[0]):
            for task in T.parallel(tasks):          # each takes an equal share of the wave's tiles
                for tile in share:
                    for instruction in code: switch (opcode) ...

One private function for each opcode keeps LLVM's work linear in their number; it turns the chain of comparisons
into a jump table. Everything is addressed by int64: the encoder, and nobody else, writes addresses.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.ir import Call, Expr, GlobalVar, Op, PointerType, PrimType
from tvm.target import Target
from tvm.tirx import PrimFunc, Stmt, Var

from tvm_dyn import hardware
from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.cache import ENTRY
from tvm_dyn.runtime.bytecode.isa import Opcode
from tvm_dyn.runtime.bytecode.layout import (
    ARENA_HEAD,
    MAX_SLOTS,
    STATUS,
    WORD,
    Code,
    Field,
    Launch,
    Mode,
    Record,
    Segment,
    Shape,
    Wave,
)
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.emit import const
from tvm_dyn.schedules.math import legalize_math



_MEMORY = 1 << 40
"""Elements of a buffer that stands for all memory from an address on."""

_VECTORS = 4
"""Vectors of float32 that a map computes at once."""

_INVOLVED = ("find", "load", "gather")
"""The kinds of opcodes that also look at the tile's place in the shape."""


def compile_interpreter(target: Target) -> tvm.runtime.Executable:
    """The interpreter as machine code; its entry is `ENTRY`.

    Every instruction is made out to be too costly to be inlined: else the opcodes move into the loop that dispatches
    to them, and LLVM optimizes the whole instruction set as one function, for minutes instead of seconds.
    """
    apart = Target({**target.export(), "cl-opt": ["-inline-instr-cost:int=1000"]})
    return tvm.tirx.build(build_interpreter(apart), apart)


def build_interpreter(target: Target) -> tvm.IRModule:
    """The interpreter's module."""
    lanes = hardware.lanes(target, "float32")
    functions = {GlobalVar(f"opcode_{n}"): _function(opcode, lanes) for n, opcode in enumerate(isa.OPCODES)}
    tiles = GlobalVar("run_tiles")
    share = GlobalVar("run_share")
    module = {
        **{name: legalize_math(function, target) for name, function in functions.items()},
        tiles: _run_tiles(list(functions)),
        share: _run_share(tiles),
        GlobalVar(ENTRY): _entry(share),
    }
    return tvm.IRModule(module)


class _Block:
    """Statements in the making."""

    def __init__(self) -> None:
        self.statements: list[Stmt] = []

    def add(self, *statements: Stmt) -> None:
        self.statements += statements

    def let(self, value: Expr, name: str = "v") -> Var:
        """The value, computed here and once."""
        variable = Var(name, str(value.ty))
        self.add(tirx.stmt.Bind(variable, value))
        return variable

    def at(self, address: Expr, dtype: str = "int64") -> tirx.Buffer:
        """The memory from an address on."""
        pointer = Var("p", PointerType(PrimType(dtype)))
        self.add(tirx.stmt.Bind(pointer, Call(Op.get("tirx.reinterpret"), [address], ret_ty=pointer.ty)))
        buffer = tirx.decl_buffer((const(_MEMORY),), dtype, "memory")
        self.add(tirx.stmt.DeclBuffer(buffer, data=pointer))
        return buffer

    def scratch(self, count: int, dtype: str) -> tirx.Buffer:
        buffer = tirx.decl_buffer((const(count),), dtype, "scratch")
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def loop(self, extent: Expr, body: Callable[[_Block, Expr], None]) -> None:
        def nested(index: Expr) -> Stmt:
            block = _Block()
            body(block, index)
            return block.stmt()

        self.add(emit.serial(extent, nested))

    def when(self, condition: Expr, body: Callable[[_Block], None]) -> None:
        block = _Block()
        body(block)
        self.add(tirx.IfThenElse(condition, block.stmt(), None))

    def store(self, buffer: tirx.Buffer, value: Expr, index: Expr | int) -> None:
        self.add(tirx.BufferStore(buffer, value, [const(index) if isinstance(index, int) else index]))

    def stmt(self) -> Stmt:
        return emit.seq(*self.statements)


def _internal(name: str, params: list[Var], body: Stmt) -> PrimFunc:
    """A function that is only called from TIR.

    Its symbol is visible, as LLVM always inlines what has but one caller that it knows of.
    """
    symbol = f"{ENTRY}_{name}"
    return PrimFunc(params, body).with_attrs({"calling_conv": -1, "tirx.noalias": False, "global_symbol": symbol})


def _call(function: GlobalVar, *args: Expr) -> Stmt:
    return tirx.Evaluate(Call(function, list(args), ret_ty=PrimType("void")))


# ---- opcodes

class _Operands:
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


def _function(opcode: Opcode, lanes: int) -> PrimFunc:
    block, operands = _Block(), _Operands()
    emitters = {"map": _map, "reduce": _reduce, "find": _find, "load": _load, "gather": _gather}
    emitters[opcode.kind](opcode, block, operands, lanes)
    params = operands.involved if opcode.kind in _INVOLVED else operands.simple
    return _internal(opcode.mnemonic.replace(".", "_"), params, block.stmt())


def _pieces(block: _Block, extent: Expr, lanes: int, body: Callable[[_Block, Expr, int], None]) -> None:
    """``body`` of (start, width) for every element below ``extent``: several vectors at once, one, then singles."""
    start: Expr = const(0)
    for width in (lanes * _VECTORS, lanes, 1):
        count = block.let(emit.quotient(extent - start, width), "n")
        first = start

        def piece(inside: _Block, index: Expr, width: int = width, first: Expr = first) -> None:
            body(inside, first + index * width, width)

        block.loop(count, piece)
        start = block.let(start + count * width, "start")


def _map(opcode: Opcode, block: _Block, operands: _Operands, lanes: int) -> None:
    d, *sources = _views(opcode, block, operands)

    def row(inside: _Block, o: Expr) -> None:
        offsets = [inside.let(o * step, "offset") for step in operands.steps]

        def piece(innermost: _Block, start: Expr, width: int) -> None:
            def element(lane: Expr) -> Stmt:
                values = [
                    source[offset + (start + lane if letter == "v" else 0)]
                    for source, offset, letter in zip(sources, offsets[1:], opcode.form, strict=False)
                ]
                return tirx.BufferStore(d, opcode.body(*values), [offsets[0] + start + lane])

            innermost.add(emit.vectorized(width, element))

        _pieces(inside, operands.inner, lanes, piece)

    block.loop(operands.outer, row)


def _views(opcode: Opcode, block: _Block, operands: _Operands) -> list[tirx.Buffer]:
    dtypes = (opcode.output, *opcode.inputs)
    return [block.at(address, dtype) for address, dtype in zip(operands.addresses, dtypes, strict=False)]


def _reduce(opcode: Opcode, block: _Block, operands: _Operands, lanes: int) -> None:
    d, a = _views(opcode, block, operands)

    def row(inside: _Block, o: Expr) -> None:
        offset = inside.let(o * operands.steps[1], "offset")
        total = _fold(opcode, inside, operands.inner, lanes, lambda i: a[offset + i])
        inside.store(d, total, o * operands.steps[0])

    block.loop(operands.outer, row)


def _fold(opcode: Opcode, block: _Block, extent: Expr, lanes: int, element: Callable[[Expr], Expr]) -> Expr:
    """The reduction of ``element(i)`` for i below ``extent``: a total for each lane, halved until one is left."""
    identity = tirx.const(opcode.identity, opcode.output)
    combine = _combination(opcode)
    wide, total = lanes * _VECTORS, block.scratch(1, opcode.output)
    lane_totals = block.scratch(wide, opcode.output)
    vectors = block.let(emit.quotient(extent, wide), "vectors")
    done = block.let(vectors * wide, "done")
    block.store(total, identity, 0)

    def in_vectors(inside: _Block) -> None:
        inside.add(emit.vectorized(wide, lambda j: tirx.BufferStore(lane_totals, identity, [j])))

        def step(innermost: _Block, n: Expr) -> None:
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

    def across(inside: _Block) -> None:
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


def _halve(block: _Block, totals: tirx.Buffer, lanes: int, until: int, combine: isa.Body) -> None:
    while lanes > until:
        lanes //= 2
        half = lanes
        block.add(
            emit.vectorized(
                lanes, lambda j, half=half: tirx.BufferStore(totals, combine(totals[j], totals[j + half]), [j])
            )
        )


def _find(opcode: Opcode, block: _Block, operands: _Operands, lanes: int) -> None:
    """The first column whose element is the row's value ``b``; vectors are searched as wholes."""
    d, a, b = _views(opcode, block, operands)
    least = Opcode("", "reduce", ("int64",), "int64", isa.minimum_of_ints, identity=isa.NOT_FOUND)

    def row(inside: _Block, o: Expr) -> None:
        offset = inside.let(o * operands.steps[1], "offset")
        wanted = o * operands.steps[2]

        def place(i: Expr) -> Expr:
            missing = tirx.const(isa.NOT_FOUND, "int64")
            return tirx.Select(opcode.body(a[offset + i], b[wanted]), i + operands.column, missing)

        inside.store(d, _fold(least, inside, operands.inner, lanes // 2, place), o * operands.steps[0])

    block.loop(operands.outer, row)


def _load(opcode: Opcode, block: _Block, operands: _Operands, lanes: int) -> None:
    """A tile from anywhere: the row's number, digit by digit, finds where the row starts."""
    size = isa.stored_bytes(opcode.output)
    d = block.at(operands.addresses[0], opcode.output)
    shape, record = block.at(operands.shape), block.at(operands.record)
    step = block.let(record[const(Record.COLUMN_STEP)], "step")

    def row(inside: _Block, o: Expr) -> None:
        at = inside.scratch(2, "int64")  # where the row starts, and what is left of its number
        inside.store(at, operands.addresses[1] + operands.column * step, 0)
        inside.store(at, operands.row + o, 1)

        def digit(innermost: _Block, n: Expr) -> None:
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
    block: _Block,
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

    def contiguous(inside: _Block) -> None:
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

    def apart(inside: _Block) -> None:
        def element(innermost: _Block, i: Expr) -> None:
            a = innermost.at(start + i * step, opcode.output)
            innermost.store(d, a[const(0)], offset + i)

        inside.loop(count, element)

    block.when(tirx.EQ(step, const(size)), contiguous)
    block.when(tirx.NE(step, const(size)), apart)


def _gather(opcode: Opcode, block: _Block, operands: _Operands, lanes: int) -> None:
    """Rows by their number; one out of bounds is noted, and the first row taken in its place."""
    size = isa.stored_bytes(opcode.output)
    d = block.at(operands.addresses[0], opcode.output)
    numbers = block.at(operands.addresses[2], "int64")
    record, status = block.at(operands.record), block.at(operands.arena + WORD * STATUS)
    limit = block.let(record[const(Record.LIMIT)], "limit")

    def row(inside: _Block, o: Expr) -> None:
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


# ---- tiles

def _run_tiles(opcodes: list[GlobalVar]) -> PrimFunc:
    """Runs a program's tiles ``first`` to ``last``: init, then body for each row of tiles, then finish."""
    names = ("code", "shape", "bases", "arena", "first", "last")
    params = [Var(name, "int64") for name in names]
    at = dict(zip(names, params, strict=True))
    block = _Block()
    code, shape, bases = block.at(at["code"]), block.at(at["shape"]), block.at(at["bases"])
    slots = block.at(at["arena"])
    memory = block.let(code[const(Code.MEMORY)], "memory")
    register_bytes = block.let(shape[const(Shape.REGISTER_BYTES)], "register_bytes")
    rows_of_tiles = block.let(
        tirx.max(emit.ceildiv(shape[const(Shape.ROWS)], shape[const(Shape.TILE_ROWS)]), const(1)), "rows_of_tiles"
    )
    block.loop(
        const(MAX_SLOTS) - memory,
        lambda inside, n: inside.store(
            slots, at["arena"] + const(ARENA_HEAD) + n * register_bytes, memory + n
        ),
    )

    def tile(inside: _Block, n: Expr) -> None:
        number = inside.let(n + at["first"], "number")
        block_row = inside.let(tirx.truncmod(number, rows_of_tiles), "block_row")
        row = inside.let(block_row * shape[const(Shape.TILE_ROWS)], "row")
        column = inside.let(
            tirx.truncdiv(number, rows_of_tiles) * shape[const(Shape.TILE_COLUMNS)], "column"
        )
        rows = inside.let(tirx.min(shape[const(Shape.TILE_ROWS)], shape[const(Shape.ROWS)] - row), "rows")
        columns = inside.let(
            tirx.min(shape[const(Shape.TILE_COLUMNS)], shape[const(Shape.COLUMNS)] - column), "columns"
        )

        def place(innermost: _Block, slot: Expr) -> None:
            record = const(Shape.RECORDS) + slot * const(Record.SIZE)
            moved = row * shape[record + Record.STEPS] + column * shape[record + Record.COLUMN_STEP]
            innermost.store(slots, bases[slot] + moved, slot)

        inside.loop(memory, place)
        inits, bodies, ends = (code[const(part)] for part in (Code.INIT, Code.BODY, Code.FINISH))
        begins = tirx.Or(tirx.EQ(block_row, const(0)), tirx.EQ(n, const(0)))
        begin = inside.let(tirx.Select(begins, const(0), inits), "begin")
        is_last = tirx.EQ(block_row, rows_of_tiles - 1)
        end = inside.let(inits + bodies + tirx.Select(is_last, ends, const(0)), "end")
        context = _Context(code, shape, bases, slots, at, rows, columns, row, column)
        inside.loop(end - begin, lambda innermost, n: _dispatch(innermost, context, begin + n, opcodes))

    block.loop(at["last"] - at["first"], tile)
    return _internal("tiles", params, block.stmt())


class _Context:
    """What an instruction may look at."""

    def __init__(
        self,
        code: tirx.Buffer,
        shape: tirx.Buffer,
        bases: tirx.Buffer,
        slots: tirx.Buffer,
        at: dict[str, Var],
        rows: Expr,
        columns: Expr,
        row: Expr,
        column: Expr,
    ) -> None:
        self.code, self.shape, self.bases, self.slots, self.at = code, shape, bases, slots, at
        self.rows, self.columns, self.row, self.column = rows, columns, row, column


def _dispatch(block: _Block, context: _Context, number: Expr, opcodes: list[GlobalVar]) -> None:
    """Decode an instruction and call its opcode's function."""
    code, rows, columns = context.code, context.rows, context.columns
    start = block.let(const(Code.INSTRUCTIONS) + number * const(Field.SIZE), "start")
    opcode = block.let(code[start + Field.OPCODE], "opcode")
    mode = block.let(code[start + Field.MODE], "mode")
    slots = [block.let(code[start + Field.SLOTS + n], "slot") for n in range(4)]
    addresses = [block.let(context.slots[slot], "address") for slot in slots]
    kinds = [code[start + Field.KINDS + n] for n in range(4)]
    steps = [
        block.let((kind & 1) * columns + tirx.truncdiv(kind, const(2)), "step") for kind in kinds
    ]
    by_row = tirx.Select(tirx.EQ(mode, const(Mode.COLUMN)), rows, columns)
    by_row = tirx.Select(tirx.EQ(mode, const(Mode.ONE)), const(1), by_row)
    inner = block.let(tirx.Select(tirx.EQ(mode, const(Mode.FLAT)), rows * columns, by_row), "inner")
    outer = block.let(tirx.Select(tirx.EQ(mode, const(Mode.ROWS)), rows, const(1)), "outer")
    simple = [*addresses, outer, inner, *steps]
    record = context.at["shape"] + WORD * (const(Shape.RECORDS) + slots[1] * const(Record.SIZE))
    # Strided operands are found from where they start, not from where a tile would lie in them.
    from_base = [addresses[0], context.bases[slots[1]], *simple[2:]]
    place = [context.at["shape"], record, context.row, context.column, context.at["arena"]]
    def call(number: int) -> Stmt:
        kind = isa.OPCODES[number].kind
        args = [*simple, *place] if kind == "find" else [*from_base, *place] if kind in _INVOLVED else simple
        return _call(opcodes[number], *args)

    block.add(_choose(opcode, 0, len(opcodes), call))


def _choose(number: Expr, first: int, last: int, then: Callable[[int], Stmt]) -> Stmt:
    """``then`` of the number, which is from ``first`` to below ``last``, by bisection."""
    if last - first == 1:
        return then(first)
    middle = (first + last) // 2
    return tirx.IfThenElse(
        number < middle, _choose(number, first, middle, then), _choose(number, middle, last, then)
    )


# ---- shares and waves

def _run_share(tiles: GlobalVar) -> PrimFunc:
    """Runs what task ``task`` of ``tasks`` has of a wave: an equal share of its units, whatever their segments."""
    names = ("segments", "count", "task", "tasks", "arena")
    params = [Var(name, "int64") for name in names]
    first, count, task, tasks, arena = params
    block = _Block()
    words = block.at(first)
    sums = block.scratch(2, "int64")  # units of all segments; units before the segment at hand
    block.store(sums, const(0), 0)
    block.store(sums, const(0), 1)
    block.loop(
        count,
        lambda inside, n: inside.store(sums, sums[const(0)] + words[n * int(Segment.SIZE) + int(Segment.UNITS)], 0),
    )
    share = block.let(emit.ceildiv(sums[const(0)], tasks), "share")
    low = block.let(task * share, "low")

    def segment(inside: _Block, n: Expr) -> None:
        start = inside.let(n * int(Segment.SIZE), "start")
        before = inside.let(sums[const(1)], "before")
        units = inside.let(words[start + Segment.UNITS], "units")
        shape = inside.at(words[start + Segment.SHAPE])
        grain = inside.let(shape[const(Shape.GRAIN)], "grain")
        begin = inside.let(tirx.max(low - before, const(0)), "begin")
        end = inside.let(tirx.min(low + share - before, units), "end")
        inside.store(sums, before + units, 1)
        run = _call(
            tiles, *[words[start + word] for word in (Segment.CODE, Segment.SHAPE, Segment.BASES)], arena,
            begin * grain, end * grain,
        )  # fmt: skip
        inside.when(begin < end, lambda innermost: innermost.add(run))

    block.loop(count, segment)
    return _internal("share", params, block.stmt())


def _entry(share: GlobalVar) -> PrimFunc:
    launch_address, arena, arena_bytes = (Var(name, "int64") for name in ("launch", "arena", "arena_bytes"))
    block = _Block()
    launch = block.at(launch_address)
    place = block.scratch(1, "int64")
    block.store(place, const(Launch.FIRST), 0)

    def wave(inside: _Block, _n: Expr) -> None:
        start = inside.let(place[const(0)], "start")
        segments = inside.let(launch[start + Wave.SEGMENTS], "segments")
        tasks = inside.let(launch[start + Wave.TASKS], "tasks")
        first = inside.let(launch_address + WORD * (start + Wave.FIRST), "first")
        inside.store(place, start + Wave.FIRST + segments * int(Segment.SIZE), 0)
        parallel = emit.parallel(
            tasks, lambda task: _call(share, first, segments, task, tasks, arena + task * arena_bytes)
        )
        serial = _call(share, first, segments, const(0), const(1), arena)
        inside.add(tirx.IfThenElse(tasks > 1, parallel, serial))

    block.loop(launch[const(Launch.WAVES)], wave)
    body = block.stmt()
    params = [launch_address, arena, arena_bytes]
    return PrimFunc(params, body).with_attrs({"global_symbol": ENTRY, "tirx.noalias": False})
