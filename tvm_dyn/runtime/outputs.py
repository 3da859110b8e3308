"""Results of a call in the caller's kind of array: without a copy where nobody else owns the memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from .dtypes import carrier_dtype, numpy_dtype
from .signature import TensorInfo

# TVM's memory pool hands out whole pages: a smaller output is copied, so that keeping it keeps no page.
_PAGE_BYTES = 4096

_array_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")

Giver = Callable[[tvm.runtime.Tensor, TensorInfo, bool], Any]


def give_outputs(
    result: Any, infos: Sequence[TensorInfo], inputs: Sequence[tvm.runtime.Tensor], give: Giver
) -> list[Any]:
    """The outputs in graph order, each made by `give`.

    An output that shares memory with an input, a constant of the library or an earlier output is copied, so
    that writing to one array never changes another.
    """
    if len(infos) == 1 and not isinstance(result, tvm_ffi.Array):
        values = [result]
    else:
        values = [_array_item(result, index) for index in range(len(infos))]
    taken = {tensor.data_ptr() for tensor in inputs}
    outputs = []
    for value, info in zip(values, infos, strict=True):
        tensor = value if isinstance(value, tvm.runtime.Tensor) else _scalar_tensor(value, info)
        address = tensor.data_ptr()
        outputs.append(give(tensor, info, info.shared or address in taken))
        taken.add(address)
    return outputs


def giver_for(args: Sequence[Any]) -> Giver:
    """How to hand results back: in the kind of the first argument that is an array."""
    for value in args:
        if isinstance(value, np.ndarray):
            return give_numpy
        if isinstance(value, tvm.runtime.Tensor):
            return give_tvm
        if type(value).__module__.partition(".")[0] == "torch":
            return give_torch
        if hasattr(value, "__array_namespace__"):
            return _array_api_giver(value.__array_namespace__())
    return give_numpy


def give_numpy(tensor: tvm.runtime.Tensor, info: TensorInfo, shared: bool) -> np.ndarray:
    """A numpy array, which owns the tensor's memory unless it is `shared` or small."""
    carrier = carrier_dtype(info.dtype)
    if carrier is None:
        array = np.from_dlpack(tensor)
    else:
        array = np.from_dlpack(tensor._create_view(tensor.shape, carrier)).view(numpy_dtype(info.dtype))
    return array.copy() if shared or array.nbytes < _PAGE_BYTES else array


def give_tvm(tensor: tvm.runtime.Tensor, info: TensorInfo, shared: bool) -> tvm.runtime.Tensor:
    """The TVM tensor itself, or a copy where it is `shared`."""
    return tensor.copyto(tvm.cpu()) if shared else tensor


def give_torch(tensor: tvm.runtime.Tensor, info: TensorInfo, shared: bool) -> Any:
    """A torch tensor, which owns the tensor's memory unless it is `shared` or small."""
    array = sys.modules["torch"].from_dlpack(tensor)
    return array.clone() if shared or array.nbytes < _PAGE_BYTES else array


def _array_api_giver(namespace: Any) -> Giver:
    def give(tensor: tvm.runtime.Tensor, info: TensorInfo, shared: bool) -> Any:
        return namespace.from_dlpack(give_tvm(tensor, info, shared))

    return give


def _scalar_tensor(value: Any, info: TensorInfo) -> tvm.runtime.Tensor:
    """A symbolic value (an int, a float, a shape) as a tensor of the dtype that the signature says."""
    return tvm.runtime.tensor(np.asarray(value, dtype=info.dtype or "int64"))
