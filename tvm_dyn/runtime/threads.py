"""How many threads a call may use.

TVM keeps one worker pool per *calling* thread, built at that thread's first parallel kernel and never
enlarged. So a call says how many threads it wants, and the pool is built for all cores the first time its
thread asks for more than one; a thread that only ever asks for one gets no pool. Workers are left to the
operating system: TVM's habit of pinning worker i to core i makes the pools of several callers share cores.
Set TVM_BIND_THREADS=1 to have the pinning back.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from pathlib import Path

import psutil
import tvm
import tvm_ffi

_SHARE_ALL_CORES = -3  # threading::ThreadGroup::kSpecifyThreadShareAllCore
_configure_pool = tvm_ffi.get_global_func("runtime.config_threadpool")
_pool_size = tvm_ffi.get_global_func("runtime.NumThreads")
# `threading::SetMaxConcurrency(int)`: unlike `runtime.config_threadpool` it builds no pool.
_set_max_concurrency = ctypes.CDLL(
    str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so")
)._ZN3tvm7runtime9threading17SetMaxConcurrencyEi


class _Current(threading.local):
    """The number of threads that the calling thread's parallel kernels use now; 0 before the first choice."""

    count = 0


current = _Current()


def resolve_num_threads(count: int | None) -> int:
    """`count`, else TVM_NUM_THREADS where set, else OMP_NUM_THREADS as in TVM, else all usable cores.

    Raises `ValueError` on a count below 1.
    """
    if count is not None:
        if count < 1:
            raise ValueError(f"num_threads={count}: use at least 1, or None for all cores")
        return count
    for variable in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(variable, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return available_cores()


def available_cores() -> int:
    """Physical cores within the process's affinity mask."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def use_threads(count: int) -> None:
    """Let the calling thread's kernels run on `count` threads, itself included, from now on."""
    if count == 1:
        _set_max_concurrency(1)
    else:
        os.environ.setdefault("TVM_BIND_THREADS", "0")
        size = max(count, available_cores())
        _configure_pool(_SHARE_ALL_CORES, count, [str(core) for core in range(size)])
        if _pool_size() < count:
            warnings.warn(
                f"TVM built this thread's pool with {_pool_size()} threads before tvm_dyn asked for {count}; "
                "call from a new thread to use them all",
                RuntimeWarning,
                stacklevel=3,
            )
    current.count = count
