"""A compiled model (skeleton: positional numpy in, numpy out)."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax


class Library:
    """A compiled model; call it with arrays."""

    def __init__(self, executable, module) -> None:
        self._vm = relax.VirtualMachine(executable, tvm.cpu())
        self._main = self._vm["main"]

    def __call__(self, *arrays):
        result = self._main(*[tvm.runtime.tensor(np.asarray(a, order="C")) for a in arrays])
        return _flat(result)


def _flat(value) -> list[np.ndarray]:
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    if isinstance(value, int | float):
        return [np.asarray(value)]
    return [array for item in value for array in _flat(item)]
