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

_Tensor = tvm.runtime.Tensor
_array_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")

# From a tensor and whether its memory has another owner to the caller's kind of array.
Giver = Callable[[tvm.runtime.Tensor, bool], Any]


class OutputPlan:
    """Hands the results of a call back; made once per library."""

    def __init__(self, infos: Sequence[TensorInfo]) -> None:
        self._infos = infos
        self._shared = [info.shared for info in infos]
        self._numpy = [_numpy_giver(info) for info in infos]

    def give(self, result: Any, inputs: Sequence[tvm.runtime.Tensor], args: Sequence[Any]) -> list[Any]:
        """The outputs in graph order, in the kind of the first array among `args`.

        An output that shares memory with an input, a constant of the library or an earlier output is copied,
        so that writing to one array never changes another.
        """
        count = len(self._infos)
        if isinstance(result, _Tensor) or (count == 1 and not isinstance(result, tvm_ffi.Array)):
            values = [result]
        else:
            values = [_array_item(result, index) for index in range(count)]
        taken = [tensor.data_ptr() for tensor in inputs]
        givers = self._givers(args)
        outputs = []
        for index, value in enumerate(values):
            if not isinstance(value, _Tensor):
                value = _scalar_tensor(value, self._infos[index])
            address = value.data_ptr()
            outputs.append(givers[index](value, self._shared[index] or address in taken))
            taken.append(address)
        return outputs

    def _givers(self, args: Sequence[Any]) -> Sequence[Giver]:
        for value in args:
            if isinstance(value, np.ndarray):
                return self._numpy
            if isinstance(value, tvm.runtime.Tensor):
                return [_give_tvm] * len(self._infos)
            if type(value).__module__.partition(".")[0] == "torch":
                return [_give_torch] * len(self._infos)
            if hasattr(value, "__array_namespace__"):
                return [_array_api_giver(value.__array_namespace__())] * len(self._infos)
        return self._numpy


def _numpy_giver(info: TensorInfo) -> Giver:
    """A numpy array, which owns the tensor's memory unless it is shared or small."""
    carrier, dtype = carrier_dtype(info.dtype), numpy_dtype(info.dtype)
    from_dlpack = np.from_dlpack

    def give(tensor: tvm.runtime.Tensor, shared: bool) -> np.ndarray:
        if carrier is not None:
            tensor = tensor._create_view(tensor.shape, carrier)
        array = from_dlpack(tensor)
        if shared or array.nbytes < _PAGE_BYTES:
            array = array.copy()
        return array if carrier is None else array.view(dtype)

    return give


def _give_torch(tensor: tvm.runtime.Tensor, shared: bool) -> Any:
    array = sys.modules["torch"].from_dlpack(tensor)
    return array.clone() if shared or array.nbytes < _PAGE_BYTES else array


def _give_tvm(tensor: tvm.runtime.Tensor, shared: bool) -> tvm.runtime.Tensor:
    return tensor.copyto(tvm.cpu()) if shared else tensor


def _array_api_giver(namespace: Any) -> Giver:
    return lambda tensor, shared: namespace.from_dlpack(_give_tvm(tensor, shared))


def _scalar_tensor(value: Any, info: TensorInfo) -> tvm.runtime.Tensor:
    """A symbolic value (an int, a float, a shape) as a tensor of the dtype that the signature says."""
    return tvm.runtime.tensor(np.asarray(value, dtype=info.dtype or "int64"))
