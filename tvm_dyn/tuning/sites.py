"""Where candidates run: in this process, or on a server that TVM's RPC tracker lends.

Here times are those that the thread spends on the CPU, so that other processes hardly count; the least of several
bursts is taken, and bursts go on until the two fastest agree, so that an outlier neither counts nor passes for the
truth. A server is timed by TVM's own evaluator, the least of its repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm

from tvm_dyn.errors import CompileError, TvmDynError
from tvm_dyn.runtime.threads import use_threads
from tvm_dyn.tuning.build import FUNCTION

_BURST_SECONDS = 2e-3
_BURSTS = 12
_AGREE = 1.01
_SPENT_SECONDS = 0.5
"""Bursts of one shape end after this, but for three of them."""
_SESSION_SECONDS = 120
_REMOTE_REPEATS = 5


class ServerLost(TvmDynError):
    """The server that measured is gone, or does not answer."""

    stage = "tune"


class Kernel(Protocol):
    """A candidate that is ready to run."""

    def tensor(self, array: np.ndarray) -> Any:
        """The array where the kernel can read it."""
        ...

    def call(self, given: Sequence[Any]) -> None:
        """Run it once."""
        ...

    def seconds(self, given: Sequence[Any]) -> float:
        """Of one call, at its best."""
        ...


class Site(Protocol):
    """Where kernels run."""

    def opened(self, path: str) -> AbstractContextManager[Kernel]:
        """The candidate in a library."""
        ...


@dataclass(frozen=True)
class LocalSite:
    """This process, on one thread."""

    @contextmanager
    def opened(self, path: str) -> Iterator[Kernel]:
        use_threads(1)
        yield _LocalKernel(tvm.runtime.load_module(path)[FUNCTION])


HERE = LocalSite()


@dataclass(frozen=True)
class _LocalKernel:
    function: Callable[..., Any]

    def tensor(self, array: np.ndarray) -> Any:
        return tvm.runtime.tensor(array)

    def call(self, given: Sequence[Any]) -> None:
        self.function(*given)

    def seconds(self, given: Sequence[Any]) -> float:
        start = time.thread_time()
        self.function(*given)
        count = max(1, round(_BURST_SECONDS / max(time.thread_time() - start, 1e-7)))
        fastest: list[float] = []
        spent = 0.0
        for number in range(_BURSTS):
            start = time.thread_time()
            for _ in range(count):
                self.function(*given)
            took = time.thread_time() - start
            spent += took
            fastest = sorted([*fastest, took / count])[:2]
            if number >= 2 and (fastest[1] <= _AGREE * fastest[0] or spent > _SPENT_SECONDS):
                break
        return fastest[0]


@dataclass(frozen=True)
class TrackedSite:
    """A server that the tracker at ``host:port`` lends for ``key``; another one each time. kind: of its device."""

    host: str
    port: int
    key: str
    kind: str

    @contextmanager
    def opened(self, path: str) -> Iterator[Kernel]:
        """Raises ServerLost where anything fails but the candidate's results."""
        from tvm import rpc

        try:
            tracker = rpc.connect_tracker(self.host, self.port)
            session = tracker.request(self.key, session_timeout=_SESSION_SECONDS)
            session.upload(path)
            module = session.load_module(Path(path).name)
            try:
                yield _RemoteKernel(module, session.cuda(0) if self.kind == "cuda" else session.cpu(0))
            except CompileError:
                session.remove(Path(path).name)
                raise
            session.remove(Path(path).name)
        except CompileError:
            raise
        except Exception as error:  # TVM has many ways to say that a connection broke
            raise ServerLost(f"a server for {self.key!r} fails: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class _RemoteKernel:
    module: Any
    device: Any

    def tensor(self, array: np.ndarray) -> Any:
        return tvm.runtime.tensor(array, self.device)

    def call(self, given: Sequence[Any]) -> None:
        self.module[FUNCTION](*given)

    def seconds(self, given: Sequence[Any]) -> float:
        burst = round(1000 * _BURST_SECONDS)
        evaluate = self.module.time_evaluator(
            FUNCTION, self.device, number=1, repeat=_REMOTE_REPEATS, min_repeat_ms=burst
        )
        return min(float(seconds) for seconds in evaluate(*given).results)
