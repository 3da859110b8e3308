"""Builds batches of candidates on all workers, then measures them one after another, so that neither disturbs times."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvm_dyn.runtime.threads import available_cores
from tvm_dyn.tuning.build import Artifact
from tvm_dyn.tuning.records import StoredWorkload, plain
from tvm_dyn.tuning.worker import JobFailure, Worker, WorkerFailure

_BUILD_SECONDS, _MEASURE_SECONDS = 60.0, 120.0
_MOST_WORKERS = 16

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
        arguments: tuple[Any, ...] = (workload.plain, artifact, list(extents))
        try:
            return self._workers[0].call("measure", *arguments, timeout=_MEASURE_SECONDS)
        except (JobFailure, WorkerFailure) as error:
            return f"does not run right: {error}"
