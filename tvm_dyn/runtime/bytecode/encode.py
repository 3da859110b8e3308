"""Recipes become code: instructions are chosen, joined by the peephole, and given registers.

    2 = add(0, 1), 3 = exp(2)      -->      add.f32.vs  r0, m0, m1
                                            exp.f32     m2, r0

Code holds nothing that depends on a shape or on an address.
"""

from __future__ import annotations

import functools
from array import array
from typing import NamedTuple

from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.layout import MAX_SLOTS, OPERANDS, Kind, Mode
from tvm_dyn.runtime.bytecode.peephole import join_pairs
from tvm_dyn.runtime.bytecode.recipe import Layout, Recipe, Step
from tvm_dyn.runtime.bytecode.registers import assign

_MODES = {Layout.COLUMN: Mode.COLUMN, Layout.ROW: Mode.ROW, Layout.ONE: Mode.ONE}
_KINDS = {Layout.TILE: Kind.FULL, Layout.COLUMN: Kind.COLUMN, Layout.ROW: Kind.FIXED, Layout.ONE: Kind.FIXED}

ACCUMULATE = {"rsum": "add", "rprod": "mul", "rmax": "max", "rmin": "min", "rany": "or", "rall": "and"}
"""How a reduction over rows takes in one row more."""


class Instruction(NamedTuple):
    """An instruction on values that have no slots yet. ``layout`` is that of the result."""

    op: str
    dtype: str
    form: str
    mode: Mode
    target: int
    args: tuple[int, ...]
    kinds: tuple[Kind, ...]
    layout: Layout

    @property
    def mnemonic(self) -> str:
        return self.op if "." in self.op else isa.mnemonic(self.op, self.dtype, self.form)


class Code:
    """Encoded instructions, with the constants they use."""

    def __init__(self, recipe: Recipe, sections: list[list[Instruction]], slots: dict[int, int], memory: int) -> None:
        self.recipe = recipe
        self.memory = memory
        self.registers = max(slots.values(), default=0) + 1 - memory
        self.accumulates = bool(sections[2])
        self.gathers = any(i.op.startswith("gather") for i in sections[1])
        dtypes = {operand.dtype for operand in recipe.inputs} | {step.result for step in recipe.steps}
        self.element_bytes = max([isa.BYTES[dtype] for dtype in dtypes], default=8)
        self.words = array("q", [*map(len, sections), memory])
        for instruction in (i for section in sections for i in section):
            self.words.extend(_words(instruction, slots))
        self._sections, self._slots = sections, slots
        self._pool = [_cell(value, dtype) for value, dtype in recipe.constants]
        self.constants = [cell.buffer_info()[0] for cell in self._pool]
        self.address = self.words.buffer_info()[0]

    @property
    def listing(self) -> list[list[str]]:
        """The instructions as text, of each section."""
        return [[_text(i, self._slots, self.memory) for i in section] for section in self._sections]

    def disassemble(self) -> str:
        """The program as text: what runs before, in, and after each column of tiles."""
        parts = zip(("init", "body", "finish"), self.listing, strict=True)
        return "\n".join("\n".join([f"{name}:", *(f"    {line}" for line in lines)]) for name, lines in parts if lines)


@functools.lru_cache(maxsize=4096)
def encode(recipe: Recipe) -> Code:
    """The code of a recipe; equal recipes share it."""
    builder = _Builder(recipe)
    for number, step in enumerate(recipe.steps):
        builder.add(recipe.first_result + number, step)
    builder.store_outputs()
    body = join_pairs(builder.body, set(recipe.outputs) | builder.pinned)
    sections = [builder.init, body, builder.finish]
    inputs = {v: v for v in range(recipe.first_result)}
    outputs = {value: recipe.first_result + place for place, value in enumerate(builder.outputs)}
    memory = recipe.first_result + len(recipe.outputs)
    slots = assign(sections, {**inputs, **outputs}, memory, builder.pinned)
    if max(slots.values(), default=0) >= MAX_SLOTS:
        raise ValueError(f"a group of {len(recipe.steps)} operations needs more than {MAX_SLOTS} slots: split it")
    return Code(recipe, sections, slots, memory)


class _Builder:
    """Instructions of the three sections, on values; temporaries are numbered on from the recipe's."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.init: list[Instruction] = []
        self.body: list[Instruction] = []
        self.finish: list[Instruction] = []
        self.outputs = list(recipe.outputs)
        self.pinned: set[int] = set()
        self.late: set[int] = set()
        self._names: dict[int, int] = {}
        self._layouts: dict[int, tuple[Layout, str]] = {}
        self._splats: dict[tuple[int, Layout], int] = {}
        self._next = _values(recipe)

    def add(self, value: int, step: Step) -> None:
        args = tuple(self._resident(arg) for arg in step.args)
        if step.op == "find":
            args = (self._as_tile(args[0]), args[1])
            kinds = (Kind.COLUMN, Kind.FULL, Kind.COLUMN)
            self._emit(step.op, step.dtype, Mode.ROWS, value, args, kinds, Layout.COLUMN)
        elif step.op in isa.BY_ROW:
            args = (self._as_tile(args[0]), *args[1:])
            kinds = (Kind.FULL, Kind.FULL, *[Kind.FIXED] * (len(args) - 1))
            self._emit(step.op, step.dtype, Mode.ROWS, value, args, kinds, Layout.TILE)
        elif step.op == "gather":
            kinds = (Kind.FULL, Kind.FIXED, Kind.COLUMN)
            self._emit(isa.movement("gather", step.dtype), step.dtype, Mode.ROWS, value, args, kinds, Layout.TILE)
        elif step.op in ACCUMULATE or step.op == "rsumsq":
            self._reduce(value, step, self._as_tile(args[0]))
        else:
            self._map(value, step, args)

    def store_outputs(self) -> None:
        """What is no instruction's result, or stays in a register while it grows, is copied to its output."""
        taken: set[int] = set()
        for place, value in enumerate(self.outputs):
            if value in self.pinned or value < self.recipe.first_result or value in taken:
                copy = self._new(self._layout(value), self._dtype(value))
                source = self._resident(value)
                self._emit_map("copy", self._dtype(value), copy, (source,), self._layout(copy), value in self.late)
                self.outputs[place] = copy
            taken.add(value)

    def _resident(self, value: int) -> int:
        """The value itself, or the tile that a strided operand is loaded into."""
        if self._layout(value) is not Layout.STRIDED:
            return self._names.get(value, value)
        if value not in self._names:
            dtype = self._dtype(value)
            self._names[value] = self._new(Layout.TILE, dtype)
            kinds = (Kind.FULL, Kind.FIXED)
            self._emit(
                isa.movement("load", dtype), dtype, Mode.ROWS, self._names[value], (value,), kinds, Layout.TILE
            )
        return self._names[value]

    def _as_tile(self, arg: int) -> int:
        """An operand of a reduction, which goes over elements: what is broadcast is spread first."""
        layout, dtype = self._layout(arg), self._dtype(arg)
        if layout is Layout.TILE or arg >= self.recipe.first_result:
            return arg
        tile = self._new(Layout.TILE, dtype)
        form = "v" if layout is Layout.ROW else "s"
        kinds = (Kind.FULL, _KINDS[layout])
        self.body.append(Instruction("copy", dtype, form, Mode.ROWS, tile, (arg,), kinds, Layout.TILE))
        return tile

    def _reduce(self, value: int, step: Step, arg: int) -> None:
        dtype, tile = step.dtype, self._layout(arg) is Layout.TILE
        if step.layout is Layout.COLUMN:
            self._emit(step.op, dtype, Mode.ROWS, value, (arg,), (Kind.COLUMN, Kind.FULL), Layout.COLUMN)
            return
        accumulate = ACCUMULATE.get(step.op, "add")
        self.pinned.add(value)
        self.late.add(value)
        start = self._constant_of(step)
        self._emit_map("copy", step.result, value, (start,), step.layout, section=self.init)
        if step.layout is Layout.ROW:
            kinds = (Kind.FIXED, Kind.FIXED, Kind.FULL)
            self._emit(accumulate, dtype, Mode.ROWS, value, (value, arg), kinds, Layout.ROW)
            return
        part = self._new(Layout.ONE, dtype)
        mode = Mode.FLAT if tile else Mode.COLUMN
        self._emit(step.op, dtype, mode, part, (arg,), (Kind.FIXED, Kind.FULL), Layout.ONE)
        self._emit(accumulate, dtype, Mode.ONE, value, (value, part), (Kind.FIXED,) * 3, Layout.ONE)

    def _constant_of(self, step: Step) -> int:
        """The constant that the reduction starts from; `fuse` lists it among the step's arguments."""
        return step.args[1]

    def _map(self, value: int, step: Step, args: tuple[int, ...]) -> None:
        late = any(arg in self.late for arg in args)
        if late:
            self.late.add(value)
        self._emit_map(step.op, step.dtype, value, args, step.layout, late)

    def _emit_map(
        self,
        op: str,
        dtype: str,
        value: int,
        args: tuple[int, ...],
        layout: Layout,
        late: bool = False,
        section: list[Instruction] | None = None,
    ) -> None:
        section = section if section is not None else self.finish if late else self.body
        form = "".join(["v" if self._covers(arg, layout) else "s" for arg in args])
        op, form, args = _available(op, dtype, form, args)
        if not form:
            args = tuple(self._splat(arg, layout, section) for arg in args)
            form = "v" * len(args)
        layouts = [self._layout(arg) for arg in args]
        by_row = layout is Layout.TILE and not {Layout.ROW, Layout.COLUMN}.isdisjoint(layouts)
        mode = Mode.ROWS if by_row else _MODES.get(layout, Mode.FLAT)
        kinds = (_KINDS[layout], *[_KINDS[each] for each in layouts])
        section.append(Instruction(op, dtype, form, mode, value, args, kinds, layout))
        self._layouts.setdefault(value, (layout, dtype))

    def _emit(
        self,
        op: str,
        dtype: str,
        mode: Mode,
        value: int,
        args: tuple[int, ...],
        kinds: tuple[Kind, ...],
        layout: Layout,
    ) -> None:
        self.body.append(Instruction(op, dtype, "v" * len(args), mode, value, args, kinds, layout))

    def _covers(self, arg: int, layout: Layout) -> bool:
        """Whether an operand has an element for each one of the row that the instruction computes."""
        own = self._layout(arg)
        return own is layout or (layout is Layout.TILE and own is Layout.ROW)

    def _splat(self, arg: int, layout: Layout, section: list[Instruction]) -> int:
        """The operand with an element for each of the result; what is one number is spread but once."""
        if self._covers(arg, layout):
            return arg
        key = (arg, layout)
        if key not in self._splats:
            dtype = self._dtype(arg)
            once = self._layout(arg) is Layout.ONE and arg < self.recipe.first_result
            self._splats[key] = self._new(layout, dtype)
            if once:
                self.pinned.add(self._splats[key])
            target = self.init if once else section
            kinds = (_KINDS[layout], _KINDS[self._layout(arg)])
            mode = Mode.ROWS if layout is Layout.TILE else _MODES[layout]
            target.append(Instruction("copy", dtype, "s", mode, self._splats[key], (arg,), kinds, layout))
        return self._splats[key]

    def _new(self, layout: Layout, dtype: str) -> int:
        self._layouts[self._next] = (layout, dtype)
        self._next += 1
        return self._next - 1

    def _layout(self, value: int) -> Layout:
        if value in self._layouts:
            return self._layouts[value][0]
        return self.recipe.layout(value)

    def _dtype(self, value: int) -> str:
        if value in self._layouts:
            return self._layouts[value][1]
        return self.recipe.dtype(value)


def _available(op: str, dtype: str, form: str, args: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
    """The instruction in a form that the table has, with operands exchanged if need be; form "" is none."""
    if _exists(op, dtype, form):
        return op, form, args
    flipped = op if op in isa.COMMUTATIVE else isa.FLIPPED.get(op)
    if len(args) == 2 and flipped and _exists(flipped, dtype, form[::-1]):
        return flipped, form[::-1], args[::-1]
    return op, "", args


def _exists(op: str, dtype: str, form: str) -> bool:
    return ("s" not in form and "." in op) or isa.mnemonic(op, dtype, form) in isa.NUMBER


def _values(recipe: Recipe) -> int:
    return recipe.first_result + len(recipe.steps)


def _words(instruction: Instruction, slots: dict[int, int]) -> list[int]:
    places = [slots[value] for value in (instruction.target, *instruction.args)]
    padding = [0] * (OPERANDS - len(places))
    return [
        isa.NUMBER[instruction.mnemonic], instruction.mode, *places, *padding, *instruction.kinds, *padding,
    ]  # fmt: skip


def _text(instruction: Instruction, slots: dict[int, int], memory: int) -> str:
    places = [slots[value] for value in (instruction.target, *instruction.args)]
    names = [f"m{place}" if place < memory else f"r{place - memory}" for place in places]
    return f"{instruction.mnemonic:18} {', '.join(names):20} {instruction.mode.name.lower()}"


_TYPECODES = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "bool": "b"}


def _cell(value: float | int, dtype: str) -> array:
    return array(_TYPECODES[dtype], [value])



