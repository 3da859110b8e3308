"""What the figures were measured with."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tvm_dyn import hardware
from tvm_dyn.runtime.threads import available_cores

_PACKAGES = ("tvm-dyn", "apache-tvm", "onnxruntime", "openvino", "torch", "transformers", "numpy")


def machine() -> dict[str, Any]:
    """The processor as the operating system and LLVM name it, its usable cores and its caches in bytes."""
    target = hardware.host_target()
    return {
        "processor": _processor(),
        "llvm_cpu": hardware.host_cpu(),
        "cores": available_cores(),
        "cache_bytes": {f"L{level}": hardware.cache_bytes(target, level) for level in (1, 2, 3)},
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Installed versions of the contestants; this package's own is in its code where it is not installed."""
    import tvm_dyn

    found = {"tvm-dyn": tvm_dyn.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found.setdefault(package, version(package))
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1) if match else platform.processor()
