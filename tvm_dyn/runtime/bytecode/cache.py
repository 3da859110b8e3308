"""The interpreter of this machine: built the first time it is needed, then loaded from a file.

The file's name holds the versions, the target and the instruction set, so that none is ever used for another. Of
several processes one builds while the others wait; a file appears whole or not at all.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import filelock
import tvm
from tvm.target import Target

from tvm_dyn import hardware
from tvm_dyn.runtime.bytecode import isa

ENTRY = "tvm_dyn_bytecode"


def default_folder() -> Path:
    """Where interpreters lie unless another folder is named."""
    return Path.home() / ".cache" / "tvm_dyn" / "bytecode"


@functools.cache
def interpreter() -> Any:
    """The entry of the interpreter: a function of the addresses of a launch and an arena, and the arena's bytes."""
    return load_interpreter(hardware.host_target(), default_folder())[ENTRY]


def load_interpreter(target: Target, folder: Path) -> tvm.runtime.Module:
    """The module of the interpreter for ``target``, from ``folder`` or built into it.

    Where the folder cannot be written or no linker is there, it is built in memory.
    """
    file = _file(target, folder)
    if file.exists():
        return tvm.runtime.load_module(str(file))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(file.with_suffix(".lock")):
            if not file.exists():
                _build(target, file)
        return tvm.runtime.load_module(str(file))
    except (OSError, RuntimeError):
        return _compile(target).jit()


def _file(target: Target, folder: Path) -> Path:
    text = f"{tvm.__version__} {target} {isa.version()}"
    return folder / f"interpreter-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"


def _build(target: Target, file: Path) -> None:
    executable = _compile(target)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.stem}-") as unfinished:
        path = Path(unfinished) / file.name
        executable.export_library(str(path))
        os.replace(path, file)


def _compile(target: Target) -> Any:
    from tvm_dyn.runtime.bytecode.interpreter import compile_interpreter  # needed once a machine

    return compile_interpreter(target)
