"""A process that builds and measures candidates, so that one that crashes or hangs costs nothing but itself.

    python -m tvm_dyn.tuning.worker         reads pickled (name of a job, arguments) from stdin, answers on stdout

Workers import TVM once and none of its intrinsics (21 seconds). They keep out of the terminal's process group: Ctrl-C
is for the tuner. They end when their stdin does, so that a killed tuner leaves none behind.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm_dyn.errors import TvmDynError

JOBS = {"build": "tvm_dyn.tuning.build:build", "measure": "tvm_dyn.tuning.measure:measure", "ping": "os:getpid"}


class WorkerFailure(TvmDynError):
    """The worker crashed or took too long; the next job gets a new one."""

    stage = "tune"


class JobFailure(TvmDynError):
    """The job raised an error, which the message holds."""

    stage = "tune"


class Worker:
    """One process, started at the first job and again after a failure."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process where there is none; it imports TVM meanwhile."""
        if self._process is None:
            package = str(Path(__file__).parents[2])
            path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path, "TVM_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def call(self, job: str, *arguments: Any, timeout: float) -> Any:
        """What the job returns. Raises JobFailure, or WorkerFailure after ``timeout`` seconds or a crash."""
        self.start()
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        late = threading.Event()
        timer = threading.Timer(timeout, lambda: (late.set(), process.kill()))
        timer.start()
        try:
            pickle.dump((job, arguments), process.stdin)
            process.stdin.flush()
            right, value = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            status = self._end()
            why = f"took more than {timeout:g} seconds" if late.is_set() else f"crashed ({_status_text(status)})"
            raise WorkerFailure(f"{job} {why}") from error
        except BaseException:  # Ctrl-C: the answer would be taken for that of the next job
            self._end()
            raise
        finally:
            timer.cancel()
        if not right:
            raise JobFailure(value)
        return value

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._end()

    def _end(self) -> int:
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.kill()
        for stream in (process.stdin, process.stdout):
            try:
                stream.close()
            except OSError:
                continue  # what it still held has no reader
        return process.wait()


def _status_text(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"


def serve() -> None:
    """Answer jobs until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not mix with answers
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # TVM's handler symbolises 250 MB first
    requests = sys.stdin.buffer
    for name in JOBS:
        _job(name)
    while True:
        try:
            name, arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = (True, _job(name)(*arguments))
        except Exception as error:  # whatever a job raises is its answer
            answer = (False, f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()


def _job(name: str) -> Callable[..., Any]:
    import importlib

    module, _, function = JOBS[name].partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    serve()
