"""Closed forms for a core: what a register tile demands of its units and caches, and how tasks fill the cores.

    step of a tile of h rows x v vectors:   h * v multiply-adds, v + h loads, v vectors and h elements moved in
    cycles of a step                        the slowest of its units, nearly (see `estimate.overlapped`)

Which cache the operands come from follows from how much is touched before they are met again (K. Goto, R. van de
Geijn, Anatomy of High-Performance Matrix Multiplication, ACM TOMS 2008). What tiles a kernel is made of is told in
`tile_forms`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace

from tvm.target import Target

from tvm_dyn import hardware

from .estimate import Estimate, overlapped

RATES = (
    "clock_hz",
    "second_level_bytes",
    "third_level_bytes",
    "memory_bytes",
    "tile_cycles",
    "fork_join_seconds",
)
"""The fields of a machine that calibration fits."""

_CAUSES = ("compute", "tail", "registers", "cache", "bandwidth")

_RAMP_BYTES, _RAMP_RATE = 16 << 10, 64.0
"""Until the prefetchers have caught up, the first bytes of a new stream cost so much on top, in bytes per cycle."""

_WINDOW_OPERATIONS = 300.0
"""Operations that a core looks ahead, into the next tile, while it waits for the sums of this one."""

_SPILL_CYCLES = 33.0
"""From one step to the next where a sum is kept in memory: its store has to reach its load."""

_USABLE = 0.75
"""Share of a cache that operands stay in while others pass."""


@dataclass(frozen=True)
class CpuMachine:
    """A CPU in numbers. The rates were measured on a Zen 5 core; `calibration.calibrated` fits them to others.

    vector_bytes, registers: of the vector unit. cache_bytes: of the three levels, as one core sees them. Per cycle:
    multiply_adds and loads of vectors, and bytes that come from beyond the first level. latency: cycles of a
    multiply-add. tile_cycles: to set up a tile. fork_join_seconds: to wake the other cores and wait for them.
    parallel_sums: multiply-adds below which kernels stay on one core. memory_cores: that saturate the memory.
    """

    vector_bytes: int
    registers: int
    cores: int
    cache_bytes: tuple[int, int, int]
    parallel_sums: int = hardware.PARALLEL_MIN_SUMS
    clock_hz: float = 4.12e9
    multiply_adds: float = 2.0
    loads: float = 2.0
    latency: float = 4.0
    second_level_bytes: float = 45.0
    third_level_bytes: float = 25.0
    memory_bytes: float = 10.0
    memory_cores: int = 4
    tile_cycles: float = 30.0
    fork_join_seconds: float = 3e-6

    @staticmethod
    def for_target(target: Target) -> CpuMachine:
        """What is known of the target's CPU, with the rates of the one that was measured."""
        first, second, third = (hardware.cache_bytes(target, level) for level in (1, 2, 3))
        vectors = (hardware.vector_bytes(target), hardware.registers(target))
        return CpuMachine(*vectors, hardware.cores(target), (first, second, third))

    def with_rates(self, rates: dict[str, float]) -> CpuMachine:
        """The same machine at other rates."""
        return replace(self, **rates)

    def rates(self) -> dict[str, float]:
        """The rates that calibration may change."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in RATES}

    def level(self, touched: float) -> int:
        """The level, 1 to 3, that still holds data met again after so many bytes were touched; 4 is the memory."""
        return next((n for n, size in enumerate(self.cache_bytes, 1) if touched <= size * _USABLE), 4)

    def bytes_per_cycle(self, level: int, workers: int) -> float:
        """What one of ``workers`` cores gets from a level beyond the first."""
        if level == 4:
            return self.memory_bytes * min(1.0, self.memory_cores / workers)
        return self.second_level_bytes if level == 2 else self.third_level_bytes


@dataclass
class Work:
    """Cycles of one core by cause, gathered tile by tile.

    useful: share of the multiply-adds that results need; the others are tails of tiles. workers: cores at work.
    """

    machine: CpuMachine
    lanes: int
    depth: int
    workers: int = 1
    useful: float = 1.0
    cycles: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_CAUSES, 0.0))

    @property
    def element_bytes(self) -> float:
        return self.machine.vector_bytes / self.lanes

    def tiles(self, count: float, height: int, vectors: int, panel: int, rows: int, new_stream: bool = False) -> None:
        """Add ``count`` tiles. panel, rows: the levels their two operands come from."""
        if count <= 0:
            return
        machine, total = self.machine, count * self.depth
        sums = height * vectors
        work = sums / machine.multiply_adds
        units = overlapped((work, (height + vectors) / machine.loads, self._latency(sums, vectors)))
        near, far = self._moved(height, vectors, panel, rows)
        with_cache = overlapped((units, near))
        everything = overlapped((with_cache, far))
        self.cycles["compute"] += total * work * self.useful
        self.cycles["tail"] += total * work * (1 - self.useful)
        self.cycles["registers"] += total * (units - work) + count * machine.tile_cycles
        self.cycles["cache"] += total * (with_cache - units)
        self.cycles["bandwidth"] += total * (everything - with_cache)
        if new_stream and panel > 1:
            self.stream("cache", count * min(self.depth * vectors * machine.vector_bytes, _RAMP_BYTES), _RAMP_RATE)

    def stream(self, cause: str, moved: float, rate: float) -> None:
        """Add the time of ``moved`` bytes at ``rate`` bytes a cycle, beside which nothing else happens."""
        self.cycles[cause] = self.cycles.get(cause, 0.0) + moved / rate

    def results(self, count: float, level: int) -> None:
        """Add the time to write ``count`` elements that stay in ``level``: each line is first read."""
        if level > 1:
            rate = self.machine.bytes_per_cycle(level, self.workers)
            self.stream("bandwidth" if level > 2 else "cache", 2 * count * self.element_bytes, rate)

    def _latency(self, sums: int, vectors: int) -> float:
        """Cycles between two updates of a sum; short loops run into the next tile's while they wait."""
        if sums + vectors + 1 > self.machine.registers:
            return _SPILL_CYCLES
        ahead = _WINDOW_OPERATIONS / (sums + vectors + 2)
        return self.machine.latency * max(1 - ahead / max(self.depth, 1), 0)

    def _moved(self, height: int, vectors: int, panel: int, rows: int) -> tuple[float, float]:
        """Cycles to move the operands of a step in from the second level, and from beyond it."""
        near = far = 0.0
        for level, size in ((panel, vectors * self.machine.vector_bytes), (rows, height * self.element_bytes)):
            if level > 1:
                cycles = size / self.machine.bytes_per_cycle(level, self.workers)
                near, far = (near + cycles, far) if level == 2 else (near, far + cycles)
        return near, far

    def estimate(self, tasks: int) -> Estimate:
        """Seconds when ``tasks`` of the same size go to the workers."""
        terms = {name: cycles / self.machine.clock_hz / self.workers for name, cycles in self.cycles.items()}
        if self.workers > 1:
            longest = -(-tasks // self.workers) * self.workers / tasks
            terms["imbalance"] = sum(terms.values()) * (longest - 1)
            terms["launch"] = self.machine.fork_join_seconds
        return Estimate.of(terms)


def sum_of(estimates: Iterable[Estimate]) -> Estimate:
    """Of parts that follow one another."""
    total: dict[str, float] = {}
    for estimate in estimates:
        for name, seconds in estimate.terms.items():
            total[name] = total.get(name, 0.0) + seconds
    return Estimate.of(total or {"compute": 0.0})
