"""Registers: each value gets a slot from its first use to its last, and the slot is then free for another."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.layout import Mode

if TYPE_CHECKING:
    from tvm_dyn.runtime.bytecode.encode import Instruction


def assign(
    sections: Sequence[Sequence[Instruction]], fixed: Mapping[int, int], first: int, pinned: Collection[int]
) -> dict[int, int]:
    """The slot of every value: ``fixed`` where it is in memory, else a register from ``first`` on.

    pinned: values that live as long as the program. A result may take the register of an operand that ends with the
    same instruction only where both are read and written element by element.
    """
    slots = dict(fixed)
    last = {arg: place for place, i in enumerate(_all(sections)) for arg in (*i.args, i.target)}
    free: list[int] = []
    count = first
    for place, instruction in enumerate(_all(sections)):
        ending = [arg for arg in set(instruction.args) if last[arg] == place and slots.get(arg, 0) >= first]
        ending = [arg for arg in ending if arg not in pinned and arg != instruction.target]
        early = ending if _in_place(instruction) else []
        free += [slots[arg] for arg in early]
        if instruction.target not in slots:
            if free and instruction.target not in pinned:
                slots[instruction.target] = free.pop()
            else:
                slots[instruction.target] = count
                count += 1
        free += [slots[arg] for arg in ending if arg not in early]
        unread = last[instruction.target] == place and slots[instruction.target] >= first
        if unread and instruction.target not in pinned:
            free.append(slots[instruction.target])
    return slots


def _in_place(instruction: Instruction) -> bool:
    """Whether the result may overwrite an operand: all are of one kind and of elements of one size."""
    if instruction.mode == Mode.ROWS or len(set(instruction.kinds)) > 1:
        return False
    return _is_uniform(instruction.mnemonic)


@functools.cache
def _is_uniform(mnemonic: str) -> bool:
    """Whether an opcode computes elements of one size from elements of the same."""
    opcode = isa.OPCODES[isa.NUMBER[mnemonic]]
    return opcode.kind == "map" and len({isa.stored_bytes(dtype) for dtype in (opcode.output, *opcode.inputs)}) == 1


def _all(sections: Sequence[Sequence[Instruction]]) -> list[Instruction]:
    return [instruction for section in sections for instruction in section]
