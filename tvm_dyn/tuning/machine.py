"""Where times were measured and what with: the keys that keep a foreign record from being taken for one's own."""

from __future__ import annotations

import functools
from importlib.metadata import version
from pathlib import Path

from tvm.target import Target

from tvm_dyn import hardware


@functools.cache
def machine_key() -> str:
    """This machine in words, the same in every process: CPU, vector width, caches and cores."""
    target = hardware.host_target()
    caches = "/".join(f"{hardware.cache_bytes(target, level) >> 10}K" for level in (1, 2, 3))
    model = _model_name()
    bits = 8 * hardware.vector_bytes(target)
    return f"{model} ({hardware.host_cpu()}), {bits}-bit vectors, caches {caches}, {hardware.cores(target)} cores"


def target_key(target: Target) -> str:
    """What of a target the speed of code depends on."""
    kept = {name: str(target.attrs[name]) for name in ("mcpu", "mattr", "arch", "opt-level") if name in target.attrs}
    return " ".join([target.kind.name, *(f"{name}={value}" for name, value in sorted(kept.items()))])


@functools.cache
def versions() -> str:
    """The compilers that made the code that was measured."""
    import tvm_dyn  # defines its version last

    return f"tvm {version('apache-tvm')}, tvm_dyn {tvm_dyn.__version__}"


def _model_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
