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

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.ir import Expr, GlobalVar
from tvm.target import Target
from tvm.tirx import PrimFunc, Stmt, Var

from tvm_dyn import hardware
from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.blocks import Block, call_function, internal
from tvm_dyn.runtime.bytecode.cache import ENTRY
from tvm_dyn.runtime.bytecode.layout import (
    ARENA_HEAD,
    MAX_SLOTS,
    OPERANDS,
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
from tvm_dyn.runtime.bytecode.opcodes import INVOLVED, opcode_function
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.emit import const
from tvm_dyn.schedules.math import legalize_math


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
    functions = {GlobalVar(f"opcode_{n}"): opcode_function(opcode, lanes) for n, opcode in enumerate(isa.OPCODES)}
    tiles = GlobalVar("run_tiles")
    share = GlobalVar("run_share")
    module = {
        **{name: legalize_math(function, target) for name, function in functions.items()},
        tiles: _run_tiles(list(functions)),
        share: _run_share(tiles),
        GlobalVar(ENTRY): _entry(share),
    }
    return tvm.IRModule(module)


# ---- tiles

def _run_tiles(opcodes: list[GlobalVar]) -> PrimFunc:
    """Runs a program's tiles ``first`` to ``last``: init, then body for each row of tiles, then finish."""
    at = {name: Var(name, "int64") for name in ("code", "shape", "bases", "arena", "first", "last")}
    block = Block()
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

    def tile(inside: Block, n: Expr) -> None:
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

        def place(innermost: Block, slot: Expr) -> None:
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
    return internal("tiles", list(at.values()), block.stmt())


@dataclass
class _Context:
    """What an instruction may look at: the program's words, the slots, and the tile."""

    code: tirx.Buffer
    shape: tirx.Buffer
    bases: tirx.Buffer
    slots: tirx.Buffer
    at: Mapping[str, Var]
    rows: Expr
    columns: Expr
    row: Expr
    column: Expr


def _dispatch(block: Block, context: _Context, number: Expr, opcodes: list[GlobalVar]) -> None:
    """Decode an instruction and call its opcode's function."""
    code, rows, columns = context.code, context.rows, context.columns
    start = block.let(const(Code.INSTRUCTIONS) + number * const(Field.SIZE), "start")
    opcode = block.let(code[start + Field.OPCODE], "opcode")
    mode = block.let(code[start + Field.MODE], "mode")
    slots = [block.let(code[start + Field.SLOTS + n], "slot") for n in range(OPERANDS)]
    addresses = [block.let(context.slots[slot], "address") for slot in slots]
    kinds = [code[start + Field.KINDS + n] for n in range(OPERANDS)]
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
        args = [*simple, *place] if kind == "find" else [*from_base, *place] if kind in INVOLVED else simple
        return call_function(opcodes[number], *args)

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
    block = Block()
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

    def segment(inside: Block, n: Expr) -> None:
        start = inside.let(n * int(Segment.SIZE), "start")
        before = inside.let(sums[const(1)], "before")
        units = inside.let(words[start + Segment.UNITS], "units")
        shape = inside.at(words[start + Segment.SHAPE])
        grain = inside.let(shape[const(Shape.GRAIN)], "grain")
        begin = inside.let(tirx.max(low - before, const(0)), "begin")
        end = inside.let(tirx.min(low + share - before, units), "end")
        inside.store(sums, before + units, 1)
        run = call_function(
            tiles, *[words[start + word] for word in (Segment.CODE, Segment.SHAPE, Segment.BASES)], arena,
            begin * grain, end * grain,
        )  # fmt: skip
        inside.when(begin < end, lambda innermost: innermost.add(run))

    block.loop(count, segment)
    return internal("share", params, block.stmt())


def _entry(share: GlobalVar) -> PrimFunc:
    launch_address, arena, arena_bytes = (Var(name, "int64") for name in ("launch", "arena", "arena_bytes"))
    block = Block()
    launch = block.at(launch_address)
    place = block.scratch(1, "int64")
    block.store(place, const(Launch.FIRST), 0)

    def wave(inside: Block, _n: Expr) -> None:
        start = inside.let(place[const(0)], "start")
        segments = inside.let(launch[start + Wave.SEGMENTS], "segments")
        tasks = inside.let(launch[start + Wave.TASKS], "tasks")
        first = inside.let(launch_address + WORD * (start + Wave.FIRST), "first")
        inside.store(place, start + Wave.FIRST + segments * int(Segment.SIZE), 0)
        parallel = emit.parallel(
            tasks, lambda task: call_function(share, first, segments, task, tasks, arena + task * arena_bytes)
        )
        serial = call_function(share, first, segments, const(0), const(1), arena)
        inside.add(tirx.IfThenElse(tasks > 1, parallel, serial))

    block.loop(launch[const(Launch.WAVES)], wave)
    body = block.stmt()
    params = [launch_address, arena, arena_bytes]
    return PrimFunc(params, body).with_attrs({"global_symbol": ENTRY, "tirx.noalias": False})
