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
from tvm_dyn.runtime.bytecode.layout import STATUS, WORD, Segment
from tvm_dyn.runtime.bytecode.program import Program

_PAGE = 4096
_KEPT_BYTES = 64 << 20
"""An arena of more is given back after the launch."""

PARALLEL_MIN_ELEMENTS = 1 << 16
"""Elements of a program below which one task is done before another one has woken up."""


class _Arena(threading.local):
    """The registers of the calling thread's tasks; grows, and starts at a page."""

    task_bytes = 0
    tasks = 0
    address = 0

    def fit(self, task_bytes: int, tasks: int) -> None:
        """Have at least so many bytes for each of so many tasks."""
        task_bytes, tasks = max(self.task_bytes, task_bytes + -task_bytes % _PAGE), max(self.tasks, tasks)
        self._memory = np.empty(task_bytes * tasks + _PAGE, np.uint8)
        self.task_bytes, self.tasks = task_bytes, tasks  # not before there is memory for them
        offset = -self._memory.ctypes.data % _PAGE
        self.address = self._memory.ctypes.data + offset
        words = self._memory[offset : offset + self.task_bytes * self.tasks].view(np.int64)
        self._status = words[STATUS :: self.task_bytes // WORD]
        self._status[:] = 0

    def shrink(self) -> None:
        """Give back what only long rows need."""
        if self.task_bytes * self.tasks > _KEPT_BYTES:
            self.task_bytes = self.tasks = 0
            del self._memory, self._status

    def take_fault(self) -> bool:
        """Whether an index was out of bounds since the last time."""
        found = bool(self._status.any())
        if found:
            self._status[:] = 0
        return found


_arena = _Arena()


class Launch:
    """Programs that run in one call of the interpreter, in waves.

    The programs of a wave do not depend on each other and run side by side on the threads at hand; a wave begins when
    the one before it is done. A launch may be run by several threads at once.
    """

    def __init__(self, waves: Sequence[Sequence[Program]]) -> None:
        words = array("q", [len(waves)])
        self._programs = [program for wave in waves for program in wave]
        self._bases: list[tuple[int, int]] = []  # where in the words bases go, and where they are in the call's
        self.tasks, first = 1, 0
        for wave in waves:
            tasks = self._tasks(wave)
            words.extend((len(wave), tasks))
            for program in wave:
                self._bases.append((len(words) + Segment.BASES, first * WORD))
                words.extend((*program.addresses, 0, program.units))
                first += program.operands
            self.tasks = max(self.tasks, tasks)
        self._words = words
        self._arena_bytes = max(program.arena_bytes for program in self._programs)
        self._gathers = any(program.code.gathers for program in self._programs)

    def run(self, bases: array[int]) -> None:
        """Run on operands at ``bases``: the addresses of each program's inputs, constants and outputs, in order.

        Raises `IndexError` where a gather was given an index that is out of bounds.
        """
        arena = _arena
        if self._arena_bytes > arena.task_bytes or self.tasks > arena.tasks:
            arena.fit(self._arena_bytes, self.tasks)
        words = self._words[:]
        address = bases.buffer_info()[0]
        for place, offset in self._bases:
            words[place] = address + offset
        interpreter()(words.buffer_info()[0], arena.address, arena.task_bytes)
        fault = self._gathers and arena.take_fault()
        arena.shrink()
        if fault:
            raise IndexError("an index is out of bounds for the axis it selects from")

    @staticmethod
    def _tasks(programs: Sequence[Program]) -> int:
        if sum(program.elements for program in programs) < PARALLEL_MIN_ELEMENTS:
            return 1
        return min(max(threads.current.count, 1), sum(program.units for program in programs))
