"""A model that runs at once, by the virtual machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from tvm_dyn.embed import ATTRIBUTE
from tvm_dyn.errors import CompileError
from tvm_dyn.runtime.executable import Library
from tvm_dyn.runtime.signature import Signature
from tvm_dyn.tiers.executor import Executor
from tvm_dyn.tiers.lowering import lower_for_bytecode


class InterpretedLibrary(Library):
    """A library without compiled kernels: operators are fused, encoded and interpreted as they are called.

    It takes and gives what a compiled library does, at the same shapes, and cannot be exported.
    """

    def __init__(self, module: tvm.IRModule, target: tvm.target.Target, num_threads: int | None = None) -> None:
        self._executor = Executor(lower_for_bytecode(module, target))
        self._file = None
        self._set_up(Signature.from_json(str(module["main"].attrs[ATTRIBUTE])), num_threads)

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """The operators that the virtual machine has no opcode for, each with who computes it: numpy, or LLVM."""
        return dict(self._executor.fallbacks)

    @property
    def groups(self) -> tuple[str, ...]:
        """None: groups are formed call by call."""
        return ()

    def export(self, path: str | os.PathLike[str]) -> None:
        raise CompileError(f"cannot export {str(path)!r}: tier 'bytecode' compiles nothing; use tier='llvm'")

    def _main(self) -> Any:
        return self._interpret

    def _interpret(self, *tensors: Any) -> Any:
        results = self._executor([np.from_dlpack(tensor) for tensor in tensors])
        arrays = [tvm_ffi.from_dlpack(_own(result)) for result in results]
        return arrays[0] if len(arrays) == 1 else tvm_ffi.convert(arrays)


def _own(array: np.ndarray) -> np.ndarray:
    """The array as DLPack takes it: in one piece, and writable."""
    return np.require(array, requirements=["C", "W"])
