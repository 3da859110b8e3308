"""Numbers that describe the machine behind a `Target`: the only place where the package keeps any.

Everything is derived from the target's features where TVM (LLVM) knows them; cache sizes come from the
running kernel when the target is the host's own CPU, and from conservative defaults otherwise.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import tvm_ffi
from tvm.target import Target

_DEFAULT_CACHE_BYTES = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}
_DTYPE_BYTES = {"bool": 1, "bfloat16": 2}

_INSTRUCTION_SETS = ("sse", "avx", "fma", "f16c", "bmi", "amx", "gfni", "vaes", "vpclmul", "neon", "sve", "sme", "dot")

PARALLEL_MIN_BYTES = 32 << 10
"""Memory traffic below which one core is done before a second one has woken up (about 3 microseconds)."""

PARALLEL_MIN_SUMS = 1 << 19
"""Multiply-adds of float32 below which the same holds."""


@functools.cache
def host_cpu() -> str:
    """LLVM's name of the CPU this process runs on, e.g. ``znver4``."""
    return str(tvm_ffi.get_global_func("target.llvm_get_system_cpu")())


def host_target(num_cores: int | None = None) -> Target:
    """The target for this machine: its real CPU features, with the cores this process may use by default."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Target({"kind": "llvm", "mcpu": host_cpu(), "num-cores": num_cores or available})


def for_code_generation(target: Target) -> Target:
    """The target with what our kernels ask of LLVM.

    Its pass over machine code that moves invariants out of loops is off: it keeps the constants of an epilogue's
    polynomials in registers across the loops of the product before it, whose sums it then spills (measured: 2.7 x on
    dense + GELU; nothing on softmax and norms). Invariants that matter are moved earlier, in LLVM's own language.
    """
    if target.kind.name != "llvm" or "cl-opt" in target.attrs:
        return target
    return Target({**target.export(), "cl-opt": ["-disable-machine-licm:bool=1"]})


def has_feature(target: Target, name: str) -> bool:
    """Whether LLVM's model of the target's CPU has a feature, e.g. ``avx2``."""
    return bool(tvm_ffi.get_global_func("target.llvm_cpu_has_feature")(name, target))


def runs_here(target: Target) -> bool:
    """Whether this machine can run code for ``target``: the same kind of CPU, with all of its instructions."""
    here = host_target()
    triple = str(target.attrs.get("mtriple", ""))
    if target.kind.name != "llvm" or triple.partition("-")[0] not in ("", _host_triple().partition("-")[0]):
        return False
    return _instructions(target) <= _instructions(here)


def _host_triple() -> str:
    return str(tvm_ffi.get_global_func("target.llvm_get_system_triple")())


def _instructions(target: Target) -> set[str]:
    # LLVM's lists also tell what is fast: no reason not to run.
    features = tvm_ffi.get_global_func("target.llvm_get_cpu_features")(target)
    return {str(name) for name in features if str(name).startswith(_INSTRUCTION_SETS)}


def vector_bytes(target: Target) -> int:
    """Width of a vector register in bytes."""
    if has_feature(target, "avx512f"):
        return 64
    return 32 if has_feature(target, "avx2") or has_feature(target, "avx") else 16


def dtype_bytes(dtype: str) -> int:
    """Size in bytes of one element of ``dtype``."""
    if dtype in _DTYPE_BYTES:
        return _DTYPE_BYTES[dtype]
    bits = "".join(c for c in dtype.split("_")[0] if c.isdigit())
    return max(int(bits or 32) // 8, 1)


def lanes(target: Target, dtype: str) -> int:
    """Elements of ``dtype`` in one vector register."""
    return max(vector_bytes(target) // dtype_bytes(dtype), 1)


def registers(target: Target) -> int:
    """Number of vector registers an instruction can name."""
    return 32 if has_feature(target, "avx512f") or has_feature(target, "neon") else 16


def address_registers(target: Target) -> int:
    """Number of general registers an instruction can name."""
    return 31 if has_feature(target, "neon") else 16


def cores(target: Target) -> int:
    """Cores the target says it has; 1 where it does not say."""
    return int(target.attrs.get("num-cores", 1))


@functools.cache
def _host_cache_bytes(level: int) -> int | None:
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if int((entry / "level").read_text()) != level or (entry / "type").read_text().strip() == "Instruction":
                continue
            size = (entry / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        return int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] if size[-1] in "KM" else int(size)
    return None


def cache_bytes(target: Target, level: int) -> int:
    """Size in bytes of the data cache at ``level`` 1, 2 or 3 as one core sees it."""
    host = _host_cache_bytes(level) if target.attrs.get("mcpu") == host_cpu() else None
    return host or _DEFAULT_CACHE_BYTES[level]
