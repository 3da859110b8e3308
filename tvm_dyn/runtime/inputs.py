"""Arguments of a call as TVM tensors: without a copy where dtype, strides and alignment allow."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..errors import InvalidInputError
from .dtypes import carrier_dtype, numpy_dtype
from .signature import TensorInfo

# Compiled code loads whole vectors from the start of a tensor; `tvm.runtime.from_dlpack` asks for the same.
ALIGNMENT = 64
_CPU = 1  # kDLCPU

Taker = Callable[[Any], tvm.runtime.Tensor]


def bind_arguments(inputs: Sequence[TensorInfo], args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
    """The arguments in graph order, given by position, by name or both; raises `InvalidInputError`."""
    rest = inputs[len(args) :]
    if len(args) + len(named) == len(inputs) and all(info.name in named for info in rest):
        return [*args, *[named[info.name] for info in rest]]
    raise InvalidInputError(_misbound(inputs, args, named))


def _misbound(inputs: Sequence[TensorInfo], args: Sequence[Any], named: Mapping[str, Any]) -> str:
    names = [info.name for info in inputs]
    listed = ", ".join(map(str, inputs)) or "none"
    for name in named:
        if name not in names:
            return f"no input is named {name!r}; the inputs are {listed}"
        if name in names[: len(args)]:
            return f"input {name!r} is given by position and by name; give it once"
    missing = [name for name in names[len(args) :] if name not in named]
    if missing:
        return f"missing input {', '.join(map(repr, missing))}; the inputs are {listed}"
    return f"{len(args)} arguments, but the model has {len(names)} inputs: {listed}"


def make_taker(info: TensorInfo) -> Taker:
    """A function from one argument (numpy, torch, TVM, any DLPack tensor, a Python scalar) to a TVM tensor.

    It checks dtype and device and raises `InvalidInputError`; shapes are checked apart.
    """
    dtype = numpy_dtype(info.dtype)
    direct = carrier_dtype(info.dtype) is None
    from_dlpack = tvm_ffi.from_dlpack

    def take(value: Any) -> tvm.runtime.Tensor:
        # Of a built-in dtype there is mostly one object, and to compare takes longer.
        same = type(value) is np.ndarray and (value.dtype is dtype or value.dtype == dtype)
        if same and direct and value.flags.writeable:
            tensor = from_dlpack(value)
            return tensor if _usable(tensor) else aligned_copy(value, info.dtype)
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
            return _take_dlpack(info, value)
        return _take_other(info, dtype, value)

    return take


def aligned_copy(array: np.ndarray, dtype: str) -> tvm.runtime.Tensor:
    """A C-contiguous copy of `array` as TVM's `dtype`, in native byte order, that compiled code accepts."""
    if array.size == 0:
        return tvm.runtime.empty(array.shape, dtype)
    carrier = carrier_dtype(dtype)
    stored = np.dtype(carrier) if carrier else numpy_dtype(dtype)
    buffer = np.empty(array.size * stored.itemsize + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    copy = buffer[start : start + array.size * stored.itemsize].view(stored).reshape(array.shape)
    copy[...] = array.view(carrier) if carrier else array
    tensor = tvm_ffi.from_dlpack(copy)
    return tensor._create_view(tensor.shape, dtype) if carrier else tensor


def _usable(tensor: tvm.runtime.Tensor) -> bool:
    """Whether compiled code takes the tensor as it is; numpy gives empty arrays strides it does not."""
    return tensor.data_ptr() % ALIGNMENT == 0 and tensor.is_contiguous() and tensor.numel() > 0


def _take_other(info: TensorInfo, dtype: np.dtype, value: Any) -> tvm.runtime.Tensor:
    if isinstance(value, np.ndarray | np.generic):
        return _take_numpy(info, dtype, np.asarray(value))
    if isinstance(value, numbers.Number):
        return _take_scalar(info, dtype, value)
    raise InvalidInputError(
        f"input {info.name!r}: a {type(value).__name__} is no tensor; pass a numpy array, a torch tensor or "
        f"another DLPack tensor of dtype {info.dtype}"
    )


def _take_numpy(info: TensorInfo, dtype: np.dtype, array: np.ndarray) -> tvm.runtime.Tensor:
    if array.dtype.newbyteorder("=") != dtype:
        raise _wrong_dtype(info, array.dtype)
    return aligned_copy(array, info.dtype)


def _take_scalar(info: TensorInfo, dtype: np.dtype, value: numbers.Number) -> tvm.runtime.Tensor:
    """A Python scalar stands for a 0-d tensor where its kind is the tensor's or a narrower one."""
    kinds = "b" if isinstance(value, bool) else "iuf" if isinstance(value, int) else "f"
    kind = "f" if carrier_dtype(info.dtype) else dtype.kind
    if kind not in kinds:
        raise _wrong_dtype(info, type(value).__name__)
    try:
        return _take_numpy(info, dtype, np.asarray(value, dtype))
    except OverflowError as error:
        raise InvalidInputError(f"input {info.name!r}: {value} does not fit {info.dtype}") from error


def _take_dlpack(info: TensorInfo, value: Any) -> tvm.runtime.Tensor:
    if getattr(value, "requires_grad", False):
        value = value.detach()
    try:
        tensor = value if type(value) is tvm.runtime.Tensor else tvm_ffi.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(f"input {info.name!r} cannot be passed through DLPack: {error}") from error
    if tensor.__dlpack_device__()[0] != _CPU:
        raise InvalidInputError(
            f"input {info.name!r} lies on {tensor.device}; this library runs on the CPU: move it there first"
        )
    if tensor.dtype != info.dtype:
        raise _wrong_dtype(info, tensor.dtype)
    return tensor if _usable(tensor) else _copy_tensor(info, tensor)


def _copy_tensor(info: TensorInfo, tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    if tensor.numel() == 0:
        return tvm.runtime.empty(tensor.shape, info.dtype)
    carrier = carrier_dtype(info.dtype)
    if carrier is None:
        return aligned_copy(np.from_dlpack(tensor), info.dtype)
    if not tensor.is_contiguous():
        raise InvalidInputError(f"input {info.name!r}: a strided {info.dtype} tensor; make it contiguous")
    bits = np.from_dlpack(tensor._create_view(tensor.shape, carrier))
    return aligned_copy(bits.view(numpy_dtype(info.dtype)), info.dtype)


def _wrong_dtype(info: TensorInfo, found: Any) -> InvalidInputError:
    return InvalidInputError(
        f"input {info.name!r} has dtype {found}, but the model takes {info.dtype}; convert it, "
        f"for numpy with .astype({info.dtype!r})"
    )
