"""Launches: what runs programs, one or many in a single call of the interpreter.

Each calling thread has an arena of its own for the registers of its tasks, so that threads do not meet.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

import numpy as np

from tvm_dyn.runtime import threads
from tvm_dyn.runtime.bytecode.cache import interpreter
from tvm_dyn.runtime.bytecode.layout import ARENA_HEAD, MAX_SLOTS, STATUS, WORD
from tvm_dyn.runtime.bytecode.program import Program

_PAGE = 4096

PARALLEL_MIN_ELEMENTS = 1 << 16
"""Elements of a program below which one task is done before another one has woken up."""


class _Arena(threading.local):
    """The registers of the calling thread's tasks; grows, and starts at a page."""

    task_bytes = 0
    tasks = 0
    address = 0
    status: memoryview

    def fit(self, register_bytes: int, tasks: int) -> None:
        if register_bytes > self.task_bytes or tasks > self.tasks:
            self.task_bytes = max(self.task_bytes, register_bytes + -register_bytes % _PAGE)
            self.tasks = max(self.tasks, tasks)
            self._memory = np.empty(self.task_bytes * self.tasks + _PAGE, np.uint8)
            offset = -self._memory.ctypes.data % _PAGE
            self.address = self._memory.ctypes.data + offset
            words = self._memory[offset : offset + self.task_bytes * self.tasks].view(np.int64)
            self._status = words[STATUS :: self.task_bytes // WORD]
            self._status[:] = 0

    def take_fault(self) -> bool:
        """Whether an index was out of bounds since the last time."""
        found = bool(self._status.any())
        if found:
            self._status[:] = 0
        return found


_arena = _Arena()


class Launch:
    """A launch with its operands: waves of programs that do not depend on each other.

    A wave's programs run side by side on the threads at hand; a wave begins when the one before it is done.
    """

    def __init__(self, waves: Sequence[Sequence[tuple[Program, array[int]]]]) -> None:
        words = array("q", [len(waves)])
        self._kept = waves  # programs and bases that the words point at
        self.tasks, self.register_bytes, self._indexed = 1, 0, False
        for wave in waves:
            tasks = self._tasks([program for program, _ in wave])
            words.extend((len(wave), tasks))
            for program, bases in wave:
                words.extend((*program.addresses, bases.buffer_info()[0], program.units))
                self.register_bytes = max(self.register_bytes, program.arena_bytes)
                self._indexed |= program.code.gathers
            self.tasks = max(self.tasks, tasks)
        self._words = words
        self._address = words.buffer_info()[0]

    @staticmethod
    def _tasks(programs: Sequence[Program]) -> int:
        if sum(program.elements for program in programs) < PARALLEL_MIN_ELEMENTS:
            return 1
        return min(max(threads.current.count, 1), sum(program.units for program in programs))

    def run(self) -> None:
        """Raises `IndexError` where a gather was given an index that is out of bounds."""
        arena = _arena
        if self.register_bytes > arena.task_bytes or self.tasks > arena.tasks:
            arena.fit(self.register_bytes, self.tasks)
        interpreter()(self._address, arena.address, arena.task_bytes)
        if self._indexed and arena.take_fault():
            raise IndexError("an index is out of bounds for the axis it selects from")


def arena_bytes(registers: int, register_bytes: int) -> int:
    """What a task needs for its registers."""
    return ARENA_HEAD + registers * register_bytes


assert MAX_SLOTS < STATUS + 1
