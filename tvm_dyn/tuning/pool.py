"""Builds batches of candidates on all workers, then measures them one after another, so that neither disturbs times."""

from __future__ import annotations

import os
import queue
import socket
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tvm.target import Target

from tvm_dyn.errors import TuningError
from tvm_dyn.runtime.threads import available_cores
from tvm_dyn.tuning.build import Artifact
from tvm_dyn.tuning.records import StoredWorkload, plain
from tvm_dyn.tuning.sites import ServerLost, TrackedSite
from tvm_dyn.tuning.worker import JobFailure, Worker, WorkerFailure

_BUILD_SECONDS, _MEASURE_SECONDS = 60.0, 120.0
_MOST_WORKERS = 16
_ATTEMPTS = 3
_CONNECT_SECONDS = 5.0

Values = tuple[int, ...]
Outcome = list[float] | str
"""Seconds at each of the extents, or what is wrong with the candidate."""


class LocalPool:
    """Workers on this machine, as many as it has cores. Use it in a `with` statement."""

    def __init__(self, target: Target):
        self._target = plain(target.export())
        self._workers = [Worker() for _ in range(min(available_cores(), _MOST_WORKERS))]
        self._folder = tempfile.TemporaryDirectory(prefix="tvm_dyn_tuning_")

    def __enter__(self) -> LocalPool:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()
        self._folder.cleanup()

    def evaluate(
        self, workload: StoredWorkload, traces: Sequence[list], extents: Sequence[Sequence[Values]]
    ) -> Iterator[tuple[int, Outcome]]:
        """(position, outcome) of each trace as it is known; traces that do not build come first.

        extents: for each trace the values of the workload's symbols to measure it at.
        """
        for position, artifact in enumerate(self._build(workload, traces)):
            if isinstance(artifact, str):
                yield position, artifact
                continue
            try:
                yield position, self._measured(workload, artifact, extents[position])
            finally:
                os.unlink(artifact.path)

    def _build(self, workload: StoredWorkload, traces: Sequence[list]) -> list[Artifact | str]:
        def share(number: int) -> list[tuple[int, Artifact | str]]:
            worker = self._workers[number]
            return [(n, self._built_by(worker, workload, traces[n]))
                    for n in range(number, len(traces), len(self._workers))]  # fmt: skip

        with ThreadPoolExecutor(len(self._workers)) as threads:
            results = [pair for part in threads.map(share, range(len(self._workers))) for pair in part]
        return [artifact for _, artifact in sorted(results, key=lambda pair: pair[0])]

    def _built_by(self, worker: Worker, workload: StoredWorkload, trace: list) -> Artifact | str:
        path = Path(self._folder.name) / f"{os.urandom(8).hex()}.so"
        try:
            return worker.call("build", workload.plain, trace, self._target, str(path), timeout=_BUILD_SECONDS)
        except (JobFailure, WorkerFailure) as error:
            return f"does not build: {error}"

    def _measured(self, workload: StoredWorkload, artifact: Artifact, extents: Sequence[Values]) -> Outcome:
        try:
            return self._workers[0].call("measure", workload.plain, artifact, list(extents), timeout=_MEASURE_SECONDS)
        except (JobFailure, WorkerFailure) as error:
            return f"does not run right: {error}"


class TrackedPool(LocalPool):
    """Builds on this machine, and measures on all servers that an RPC tracker has for a key, at once.

    A server that dies loses nothing: its candidate is tried on another one, three times in all.
    Raises TuningError where the tracker does not answer or has no server for the key.
    """

    measure_seconds = _MEASURE_SECONDS
    """After which a server that does not answer counts as dead."""

    def __init__(self, target: Target, tracker: str, key: str):
        super().__init__(target)
        host, _, port = tracker.rpartition(":")
        if not (host and port.isdigit()):
            raise TuningError(f"cannot read the tracker {tracker!r}: write host:port")
        self._site = TrackedSite(host, int(port), key, target.kind.name)
        servers = _servers(self._site)
        self._workers += [Worker() for _ in range(servers - len(self._workers))]
        self._at_once = servers

    def evaluate(
        self, workload: StoredWorkload, traces: Sequence[list], extents: Sequence[Sequence[Values]]
    ) -> Iterator[tuple[int, Outcome]]:
        artifacts = self._build(workload, traces)
        free: queue.Queue[Worker] = queue.Queue()
        for worker in self._workers[: self._at_once]:
            free.put(worker)

        def one(position: int) -> tuple[int, Outcome]:
            artifact = artifacts[position]
            if isinstance(artifact, str):
                return position, artifact
            worker = free.get()
            try:
                return position, self._somewhere(worker, workload, artifact, extents[position])
            finally:
                free.put(worker)
                os.unlink(artifact.path)

        with ThreadPoolExecutor(self._at_once) as threads:
            try:
                for future in as_completed([threads.submit(one, position) for position in range(len(traces))]):
                    yield future.result()
            finally:  # who stops early waits for what runs only
                threads.shutdown(wait=False, cancel_futures=True)

    def _somewhere(
        self, worker: Worker, workload: StoredWorkload, artifact: Artifact, extents: Sequence[Values]
    ) -> Outcome:
        """The outcome on a server that lives."""
        arguments = (workload.plain, artifact, list(extents), self._site)
        for attempt in range(_ATTEMPTS):
            try:
                return worker.call("measure", *arguments, timeout=self.measure_seconds)
            except (JobFailure, WorkerFailure) as error:
                lost = isinstance(error, WorkerFailure) or str(error).startswith(ServerLost.__name__)
                if not lost or attempt == _ATTEMPTS - 1:
                    return f"does not run right: {error}"
        raise AssertionError("every attempt returns or fails")


def _servers(site: TrackedSite) -> int:
    """How many servers a tracker has for the key."""
    try:
        from tvm import rpc

        socket.create_connection((site.host, site.port), timeout=_CONNECT_SECONDS).close()  # TVM tries for minutes
        summary = rpc.connect_tracker(site.host, site.port).summary()
    except (ImportError, OSError, RuntimeError) as error:
        raise TuningError(f"the tracker {site.host}:{site.port} does not answer: {error}") from error
    known = [server["key"] for server in summary["server_info"]]
    count = sum(name in (site.key, f"server:{site.key}") for name in known)
    if not count:
        raise TuningError(
            f"the tracker has no server for {site.key!r}; it has {', '.join(sorted(set(known))) or 'none'}"
        )
    return count
