"""A compilation in another process: it takes a core when one is free, can be stopped, and ends with this process.

A thread would share the interpreter lock with the calls it is to speed up, could not be stopped while LLVM works,
and would leave its locks behind in a forked child.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from tvm_dyn.dims import Dim
from tvm_dyn.errors import CompileError
from tvm_dyn.runtime.executable import Library, load_library

_LIBRARY, _REQUEST, _MODULE = "library.so", "request.json", "module.json"
_PRIORITY = 10  # about a tenth of a core that others want too

_running: weakref.WeakSet[BackgroundBuild]


class BackgroundBuild:
    """The compilation of a module, begun when this is made.

    model: the path of an .onnx file, which the process then reads itself, or the module.
    """

    def __init__(
        self,
        model: str | tvm.IRModule,
        target: Target | None,
        dims: Mapping[str, Dim | int] | None,
        num_threads: int,
    ) -> None:
        self._owner = os.getpid()
        self._folder = tempfile.TemporaryDirectory(prefix="tvm_dyn-")
        self._num_threads = num_threads
        folder = Path(self._folder.name)
        request: dict[str, Any] = {"target": str(target) if target else None, "path": None, "dims": None}
        if isinstance(model, str):
            request["path"] = os.path.abspath(model)
            request["dims"] = {name: _plain_dim(dim) for name, dim in (dims or {}).items()}
        else:
            (folder / _MODULE).write_text(tvm.ir.save_json(model))
        (folder / _REQUEST).write_text(json.dumps(request))
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tvm_dyn.tiers.background", str(folder)],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        _running.add(self)

    @property
    def is_done(self) -> bool:
        """Whether the process has ended, well or not. In a forked child there is nothing to wait for."""
        return self._owner == os.getpid() and self._process.poll() is not None

    def library(self) -> Library:
        """The compiled library, once it `is_done`; its file lives as long as this object. Raises `CompileError`."""
        path = Path(self._folder.name) / _LIBRARY
        if self._process.returncode != 0 or not path.exists():
            log = Path(self._folder.name, "log").read_text(errors="replace").strip()
            self.stop()
            raise CompileError(f"the compilation in the background failed: {log[-2000:]}")
        return load_library(path, self._num_threads)

    def wait(self, seconds: float | None = None) -> bool:
        """Whether the process has ended, within the time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.is_done

    def stop(self) -> None:
        """End the process if it still runs, and remove its files. Does nothing in a forked child."""
        if self._owner != os.getpid():
            return
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()
        _running.discard(self)


_running = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for build in list(_running):
        build.stop()


def _plain_dim(dim: Dim | int) -> int | list[int | None]:
    return dim if isinstance(dim, int) else [dim.min, dim.max, dim.divisor]


def _serve(folder: Path) -> None:
    """What the other process does."""
    os.nice(_PRIORITY)
    import tvm_dyn

    request = json.loads((folder / _REQUEST).read_text())
    model: Any = request["path"] or tvm.ir.load_json((folder / _MODULE).read_text())
    dims = {name: dim if isinstance(dim, int) else Dim(*dim) for name, dim in (request["dims"] or {}).items()}
    target = Target(request["target"]) if request["target"] else None
    library = tvm_dyn.compile(model, target, dims or None, num_threads=1)
    library.export(folder / _LIBRARY)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
