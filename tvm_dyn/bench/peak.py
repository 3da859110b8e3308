"""The most this machine can do: fused multiply-adds on registers, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx as T

from tvm_dyn import hardware
from tvm_dyn.bench import timing
from tvm_dyn.runtime.threads import use_threads

_STEPS = 20_000


class FmaPeak:
    """Measures float32 multiply-adds on ``threads`` threads; ``best`` is the most seen, in operations a second."""

    def __init__(self, threads: int):
        target = hardware.host_target()
        # Half of the registers: enough chains to hide the latency, and room for the operands.
        lanes, chains = hardware.lanes(target, "float32"), hardware.registers(target) // 2
        self._kernel: Callable[..., Any] = tvm.compile(_multiply_add(lanes, chains, threads), target)["main"]
        self._operands = tvm.runtime.tensor(np.full(lanes, 0.5, "float32"))
        self._results = tvm.runtime.empty((threads, chains * lanes), "float32")
        self._read = timing.clock(threads)
        self._threads = threads
        self._operations = 2.0 * threads * chains * lanes * _STEPS
        self.best = 0.0

    def sample(self) -> None:
        """Measure once, under the conditions of this moment; about a millisecond."""
        use_threads(self._threads)
        start = self._read()
        self._kernel(self._operands, self._results, _STEPS)
        self.best = max(self.best, self._operations / (self._read() - start))


def _multiply_add(lanes: int, chains: int, threads: int) -> tvm.IRModule:
    """Independent chains of ``a = a * x + x`` in registers, as many as ``chains`` on each thread."""

    @T.prim_func(s_tir=True)
    def main(operands: T.handle, results: T.handle, steps: T.int64):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        x = T.match_buffer(operands, (lanes,), "float32")
        y = T.match_buffer(results, (threads, chains * lanes), "float32")
        for task in T.parallel(threads):
            a = T.alloc_buffer((chains * lanes,), "float32")
            for u in T.unroll(chains):
                for v in T.vectorized(lanes):
                    a[u * lanes + v] = T.Cast("float32", u)
            for _step in range(steps):
                for u in T.unroll(chains):
                    for v in T.vectorized(lanes):
                        a[u * lanes + v] = a[u * lanes + v] * x[v] + x[v]
            for u in T.unroll(chains):
                for v in T.vectorized(lanes):
                    y[task, u * lanes + v] = a[u * lanes + v]

    return tvm.IRModule({"main": main})
