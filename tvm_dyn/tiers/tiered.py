"""A model that runs at once, and faster when it is compiled.

    call 1     virtual machine                     a process compiles
    call 8     both, timed                         it is done
    call 12    compiled                            it was faster

Both tiers are the same model; which of them runs is decided by what calls of the same shapes take.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm.target import Target

from tvm_dyn.dims import Dim
from tvm_dyn.errors import CompileError
from tvm_dyn.runtime.executable import Library
from tvm_dyn.tiers.background import BackgroundBuild
from tvm_dyn.tiers.interpreted import InterpretedLibrary

_TRIALS = 3
"""Calls in which both tiers run, after one that warms the compiled library; the best of each counts."""


class TieredLibrary(InterpretedLibrary):
    """A library that starts in the virtual machine and moves to compiled kernels.

    tier: "bytecode" or "llvm", which runs now. stop() ends the compilation; the library stays as it is.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        model: str | tvm.IRModule,
        target: Target,
        dims: Mapping[str, Dim | int] | None,
        num_threads: int | None,
    ) -> None:
        super().__init__(module, target, num_threads)
        self._compiled: Library | None = None
        self._source: BackgroundBuild | None = None  # of the compiled library's file
        self._tier = "bytecode"
        self._decided = False  # which tier stays
        self._times: list[tuple[float, float]] = []
        self._changing = threading.Lock()
        self._build: BackgroundBuild | None = BackgroundBuild(model, target, dims, self._num_threads)

    @property
    def tier(self) -> str:
        return self._tier

    @property
    def groups(self) -> tuple[str, ...]:
        return self._compiled.groups if self._compiled else ()

    def stop(self) -> None:
        """End the compilation in the background, if it still runs."""
        with self._changing:
            build, self._build = self._build, None
        if build:
            build.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the compilation to end; whether it has. The calls after it decide which tier stays."""
        build = self._build
        return build is None or build.wait(seconds)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled library; waits for it."""
        self.wait()
        self._receive()
        if self._compiled is None:
            raise CompileError(f"cannot export {str(path)!r}: the compilation was stopped or has failed")
        self._compiled.export(path)

    def _main(self) -> Callable[..., Any]:
        if self._build and self._build.is_done:
            self._receive()
        compiled = self._compiled
        if self._tier == "llvm" and compiled:
            return compiled._main()
        return self._interpret if compiled is None or self._decided else self._try_both

    def _receive(self) -> None:
        with self._changing:
            build, self._build = self._build, None
            if build is None:
                return
            try:
                self._compiled, self._source = build.library(), build
            except CompileError as error:
                warnings.warn(f"stays in tier 'bytecode': {error}", RuntimeWarning, stacklevel=4)

    def _try_both(self, *tensors: Any) -> Any:
        """Run both tiers and time them; after some calls the faster one stays."""
        compiled = self._compiled
        assert compiled
        start = time.perf_counter()
        result = compiled._main()(*tensors)
        middle = time.perf_counter()
        self._interpret(*tensors)
        end = time.perf_counter()
        with self._changing:
            if self._decided:
                return result
            self._times.append((middle - start, end - middle))
            trials = self._times[1:]
            if len(trials) >= _TRIALS:
                compiled_best, interpreted_best = (min(times) for times in zip(*trials, strict=True))
                self._tier = "llvm" if compiled_best <= interpreted_best else "bytecode"
                self._decided = True
        return result
