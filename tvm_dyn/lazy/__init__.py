"""Arrays by the names of the Python array API standard, computed on demand by the virtual machine.

    from tvm_dyn import lazy as xp

    x = xp.asarray(numpy_array)                             # no copy
    y = xp.tanh(x * 2 + 1) / xp.sum(x, axis=-1, keepdims=True)    # recorded
    y.numpy()                                               # fused, encoded and run, in microseconds

Operations are recorded until a value is needed: by `numpy()`, DLPack, a branch, printing or `sync`. Results are
numpy's, up to the rounding of sums and of fused multiply-adds. What the machine has no instruction for is numpy's,
at once, and counted in `fallbacks`: every other function of numpy is there under its own name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_dyn.lazy.array import Array
from tvm_dyn.lazy.functions import *  # noqa: F403
from tvm_dyn.lazy.graph import fallbacks, leaf
from tvm_dyn.lazy.inspection import disassemble as disassemble

bool, int32, int64, float16, float32, float64 = np.bool_, np.int32, np.int64, np.float16, np.float32, np.float64
e, inf, nan, newaxis, pi = np.e, np.inf, np.nan, np.newaxis, np.pi

_CREATION = (
    "arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "meshgrid", "ones", "ones_like", "tril",
    "triu", "zeros", "zeros_like",
)  # fmt: skip


def _of_numpy(name: str) -> Callable[..., Any]:
    """Numpy's function of the name, on arrays of ours; making arrays counts as no fallback."""
    function = getattr(np, name)

    def call(*args: Any, **options: Any) -> Any:
        plain = [_to_numpy(arg) for arg in args]
        options = {key: _to_numpy(value) for key, value in options.items()}
        if name not in _CREATION:
            fallbacks[name] += 1
        return _from_numpy(function(*plain, **options))

    call.__name__ = name
    return call


def _to_numpy(value: Any) -> Any:
    if isinstance(value, Array):
        return value.numpy()
    if isinstance(value, list | tuple):
        return type(value)(_to_numpy(each) for each in value)
    return value


def _from_numpy(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return Array(leaf(np.asarray(value)))
    if isinstance(value, list | tuple):
        return tuple(_from_numpy(each) for each in value)
    return value


def __getattr__(name: str) -> Any:
    if name.startswith("_") or not callable(getattr(np, name, None)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _of_numpy(name)
