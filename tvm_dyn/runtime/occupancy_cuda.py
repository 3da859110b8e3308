"""Closed forms for a GPU: how many blocks share a multiprocessor, and how waves of them fill the device.

`residency` equals NVIDIA's occupancy calculator (`cuda_occupancy.h` of the CUDA toolkit) for compute capabilities 7.0
to 9.0, default carve-out of shared memory, kernels that ask for the shared memory they use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm.target import Target

from .estimate import Estimate, overlapped

WARP = 32
_MOST_THREADS, _MOST_REGISTERS = 1024, 256
_REGISTERS, _REGISTER_UNIT, _PARTITIONS = 64 << 10, 256, 4
_KIB = 1 << 10


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor (CUDA C++ Programming Guide, compute capabilities), shared memory in bytes.

    largest_block: shared memory that one block may ask for. reserved: that the driver takes on top for each block.
    unit: in which it is allotted.
    """

    warps: int
    blocks: int
    shared: int
    largest_block: int
    reserved: int = _KIB
    unit: int = 128


MULTIPROCESSORS = {
    "sm_70": Multiprocessor(64, 32, 96 * _KIB, 96 * _KIB, 0, 256),
    "sm_72": Multiprocessor(64, 32, 96 * _KIB, 96 * _KIB, 0, 256),
    "sm_75": Multiprocessor(32, 16, 64 * _KIB, 64 * _KIB, 0, 256),
    "sm_80": Multiprocessor(64, 32, 164 * _KIB, 163 * _KIB),
    "sm_86": Multiprocessor(48, 16, 100 * _KIB, 99 * _KIB),
    "sm_87": Multiprocessor(48, 16, 164 * _KIB, 163 * _KIB),
    "sm_89": Multiprocessor(48, 24, 100 * _KIB, 99 * _KIB),
    "sm_90": Multiprocessor(64, 32, 228 * _KIB, 227 * _KIB),
}
"""By compute capability."""


@dataclass(frozen=True)
class Residency:
    """Blocks of a kernel that share a multiprocessor, and what each resource would allow: the least decides.

    limits: by "warps", "blocks", "registers" and "shared memory"; a resource that is not used sets none.
    """

    blocks: int
    warps: int
    limits: Mapping[str, int]

    @property
    def limited_by(self) -> str:
        """The resource that runs out first."""
        return min(self.limits, key=lambda name: self.limits[name])


def residency(limits: Multiprocessor, threads: int, registers: int, shared_bytes: int) -> Residency:
    """Of blocks of ``threads`` threads with ``registers`` each and ``shared_bytes``, static and dynamic together.

    No block fits (0) where it asks for more than a block may have. Raises ValueError for a number below 0 or a block
    without threads.
    """
    if threads < 1 or registers < 0 or shared_bytes < 0:
        raise ValueError(f"no kernel has {threads} threads, {registers} registers and {shared_bytes} bytes")
    warps = -(-threads // WARP)
    allowed = {"warps": limits.warps // warps if threads <= _MOST_THREADS else 0, "blocks": limits.blocks}
    if registers:
        allowed["registers"] = _by_registers(warps, registers)
    shared = _rounded_up(shared_bytes + limits.reserved, limits.unit)
    if shared:
        fits = shared <= limits.largest_block + limits.reserved
        allowed["shared memory"] = limits.shared // shared if fits else 0
    blocks = min(allowed.values())
    return Residency(blocks, blocks * warps, allowed)


def _by_registers(warps: int, registers: int) -> int:
    """Registers belong to warps, in units, and warps to one of four partitions; a launch is checked as if all four
    had as many.
    """
    per_warp = _rounded_up(registers * WARP, _REGISTER_UNIT)
    if registers > _MOST_REGISTERS or per_warp * _rounded_up(warps, _PARTITIONS) > _REGISTERS:
        return 0
    return (_REGISTERS // _PARTITIONS // per_warp) * _PARTITIONS // warps


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


_DEVICES = {
    "sm_70": (80, 1.53e9, 64, 512, 900e9),
    "sm_72": (8, 1.38e9, 64, 512, 137e9),
    "sm_75": (40, 1.59e9, 64, 512, 320e9),
    "sm_80": (108, 1.41e9, 64, 1024, 1555e9),
    "sm_86": (84, 1.70e9, 128, 512, 696e9),
    "sm_87": (16, 1.30e9, 128, 512, 204e9),
    "sm_89": (142, 2.50e9, 128, 512, 864e9),
    "sm_90": (132, 1.83e9, 128, 2048, 3350e9),
}
"""Multiprocessors, clock, multiply-adds of float32 and of float16 on tensor cores per cycle of one, bytes a second: as
NVIDIA states them for the V100, Xavier, T4, A100, A40, Orin, L40 and H100."""

_LAUNCH_SECONDS = 4e-6
_ENOUGH_WARPS = 8
"""Warps of a multiprocessor that hide the latency of its units: two for each partition."""
_CACHE_SPEEDUP = 3.0
"""Bandwidth of the second-level cache over that of the memory."""


@dataclass(frozen=True)
class GpuMachine:
    """A GPU in numbers. multiply_adds, tensor_multiply_adds: per cycle of one multiprocessor."""

    limits: Multiprocessor
    multiprocessors: int
    clock_hz: float
    multiply_adds: int
    tensor_multiply_adds: int
    bytes_per_second: float
    launch_seconds: float = _LAUNCH_SECONDS

    @staticmethod
    def for_target(target: Target) -> GpuMachine:
        """Raises ValueError for an architecture that is not known."""
        arch = str(target.attrs.get("arch", ""))[:5]
        if arch not in _DEVICES:
            raise ValueError(f"the occupancy of {arch or 'a target without arch'} is not known: {', '.join(_DEVICES)}")
        return GpuMachine(MULTIPROCESSORS[arch], *_DEVICES[arch])

    def estimate(self, kernel: Mapping[str, Any], extents: Mapping[str, int]) -> Estimate:
        """Seconds of a tiled product. kernel: block_rows, block_columns, block_depth, threads, registers,
        shared_bytes, element_bytes, tensor_cores (0 or 1). extents: batch, rows, columns, depth.

        Raises ValueError where no block of the kernel fits a multiprocessor.
        """
        found = residency(self.limits, kernel["threads"], kernel["registers"], kernel["shared_bytes"])
        if not found.blocks:
            raise ValueError(f"no block fits a multiprocessor: {found.limited_by} allows none")
        batch, rows, columns, depth = (extents[name] for name in ("batch", "rows", "columns", "depth"))
        high, wide, deep = (kernel[f"block_{name}"] for name in ("rows", "columns", "depth"))
        blocks = batch * -(-rows // high) * -(-columns // wide)
        if not blocks:
            return Estimate.of({"launch": self.launch_seconds})
        rate = (self.tensor_multiply_adds if kernel["tensor_cores"] else self.multiply_adds) * self.clock_hz
        one = high * wide * -(-depth // deep) * deep / rate
        warps = -(-kernel["threads"] // WARP)

        # All waves but the last hold as many blocks as fit; the last one as many as are left.
        full = (blocks - 1) // (self.multiprocessors * found.blocks) * found.blocks
        last = -(-(blocks - full * self.multiprocessors) // self.multiprocessors)
        running = (full + last) * one
        exposed = full * one / _busy(found.blocks * warps) + last * one / _busy(last * warps)
        ideal = batch * rows * columns * depth / rate / self.multiprocessors
        even = blocks / self.multiprocessors * one
        together = overlapped((exposed, *self._moved(kernel, extents, blocks, found.blocks)))
        return Estimate.of(
            {
                "launch": self.launch_seconds,
                "compute": ideal,
                "padding": even - ideal,
                "tail": running - even,
                "occupancy": exposed - running,
                "bandwidth": together - exposed,
            }
        )

    def _moved(
        self, kernel: Mapping[str, Any], extents: Mapping[str, int], blocks: int, resident: int
    ) -> tuple[float, float]:
        """Seconds to move what blocks read from the second-level cache, and what waves of them read from memory."""
        high, wide = kernel["block_rows"], kernel["block_columns"]
        across = -(-extents["columns"] // wide)
        wave = min(blocks, self.multiprocessors * resident)
        stripes = -(-wave // across) * high + min(across, wave) * wide
        step = extents["depth"] * kernel["element_bytes"]
        written = extents["batch"] * extents["rows"] * extents["columns"] * kernel["element_bytes"]
        from_memory = blocks / wave * stripes * step + written
        near = blocks * (high + wide) * step / (_CACHE_SPEEDUP * self.bytes_per_second)
        return near, from_memory / self.bytes_per_second


def _busy(warps: int) -> float:
    """Share of its multiply-adds that a multiprocessor with so many warps gets issued."""
    return min(1.0, warps / _ENOUGH_WARPS)
