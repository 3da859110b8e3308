"""Bounds the memory that TVM's pool keeps: it gives nothing back, and outputs of every new shape are of new sizes."""

from __future__ import annotations

import threading

import psutil
import tvm_ffi

# How far the process may grow over new shapes before idle buffers are freed.
GROWTH_BYTES = 64 << 20

_clear_pool = tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")
_process = psutil.Process()
_lock = threading.Lock()
_baseline = _process.memory_info().rss


def note_new_shape() -> None:
    """Free the pool's idle buffers where the process has grown by `GROWTH_BYTES` since the last time."""
    global _baseline
    rss = _process.memory_info().rss
    if rss > _baseline + GROWTH_BYTES:
        with _lock:
            _clear_pool()
            _baseline = _process.memory_info().rss
