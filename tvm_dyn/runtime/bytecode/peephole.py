"""The peephole: two instructions become one super-instruction where the table has it.

    add.f32.vs  r0, m0, m1                -->     add_gelu.f32.vs  r1, m0, m1
    gelu.f32    r1, r0

A tile then passes through the cache once instead of twice, which is what bounds cheap instructions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.layout import Mode

if TYPE_CHECKING:
    from tvm_dyn.runtime.bytecode.encode import Instruction

_REDUCING = {("square", "rsum"): "rsumsq"}


_FIRST = frozenset(first for first, _ in (*isa.SUPER, *_REDUCING))
"""Operations that may become part of the instruction that reads their result."""


def join_pairs(body: list[Instruction], kept: Collection[int]) -> list[Instruction]:
    """``body`` with pairs joined, first come first served; results in ``kept`` are needed by others."""
    uses: dict[int, int] = {}
    for instruction in body:
        for arg in instruction.args:
            uses[arg] = uses.get(arg, 0) + 1
    joined: list[Instruction | None] = []
    open_places: dict[int, int] = {}  # value -> place in `joined`, of what may still become part of another
    for instruction in body:
        for arg in instruction.args:
            place = open_places.get(arg)
            first = None if place is None else joined[place]
            pair = first and _joined(first, instruction)
            if pair:
                joined[open_places.pop(arg)] = None
                instruction = pair
                break
        if instruction.op in _FIRST and uses.get(instruction.target) == 1 and instruction.target not in kept:
            open_places[instruction.target] = len(joined)
        joined.append(instruction)
    return [instruction for instruction in joined if instruction]


def _joined(first: Instruction, second: Instruction) -> Instruction | None:
    """The super-instruction in place of ``second``, whose operand ``first`` computes; None where there is none."""
    if first.layout is not second.layout and (first.op, second.op) not in _REDUCING:
        return None
    if (first.op, second.op) in _REDUCING and first.dtype == second.dtype == "float32":
        kinds = (second.kinds[0], first.kinds[1])
        return second._replace(op=_REDUCING[first.op, second.op], args=first.args, kinds=kinds)
    forms = isa.SUPER.get((first.op, second.op), ())
    if first.dtype != "float32" or second.dtype != "float32" or not forms:
        return None
    args, form, kinds = list(second.args), second.form, list(second.kinds[1:])
    if args[0] != first.target:
        if second.op not in isa.COMMUTATIVE:
            return None
        args.reverse()
        kinds.reverse()
        form = form[::-1]
    form = first.form + form[1:]
    if form not in forms:
        return None
    mode = Mode.ROWS if Mode.ROWS in (first.mode, second.mode) else second.mode
    return second._replace(
        op=f"{first.op}_{second.op}",
        form=form,
        mode=mode,
        args=(*first.args, *args[1:]),
        kinds=(second.kinds[0], *first.kinds[1:], *kinds[1:]),
    )
