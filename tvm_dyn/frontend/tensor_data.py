"""Tensors stored in an ONNX model: claimed size against data present, and data kept in other files."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import psutil
from onnx import TensorProto

from tvm_dyn.errors import InvalidModelError

# A tensor is stored in `raw_data` or in one typed field; both say how many elements there are.
_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
# Typed fields that hold one element in two entries, or two (four) elements in one.
_COMPLEX = {TensorProto.COMPLEX64, TensorProto.COMPLEX128}
_BITS = {
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
}
# A sparse tensor claims more than it stores: nothing dense above this many bytes is built.
MAX_DENSE_BYTES = 1 << 32


def check_tensor(tensor: TensorProto, folder: Path | None) -> None:
    """Check that the data present is what the dims claim, and load it where it lies in another file.

    folder: the model's folder, which external data must not leave; None where the model came as an object.
    Raises `InvalidModelError` before anything of the claimed size is allocated.
    """
    count = element_count(tensor)
    if tensor.data_location == TensorProto.EXTERNAL:
        _load_external(tensor, count, folder)
    elif tensor.data_type == TensorProto.STRING:
        _expect(tensor, "strings", len(tensor.string_data), count)
    elif tensor.HasField("raw_data"):
        _expect(tensor, "bytes", len(tensor.raw_data), byte_count(tensor, count))
    else:
        entries = max(len(getattr(tensor, field)) for field in _TYPED_FIELDS)
        _expect(tensor, "entries", entries, _entry_count(tensor, count))


def check_sparse_tensor(sparse: onnx.SparseTensorProto, folder: Path | None) -> None:
    """Check the values and indices of a sparse tensor and bound its dense size; see `check_tensor`."""
    check_tensor(sparse.values, folder)
    check_tensor(sparse.indices, folder)
    name = sparse.values.name
    if any(dim < 0 for dim in sparse.dims):
        raise InvalidModelError(f"sparse tensor {name!r} has a negative dim: {list(sparse.dims)}")
    size = math.prod(sparse.dims) * _bits(sparse.values) // 8
    if size > MAX_DENSE_BYTES:
        raise InvalidModelError(f"sparse tensor {name!r}, dims {list(sparse.dims)}, claims {size} bytes")


def element_count(tensor: TensorProto) -> int:
    """The number of elements that the dims claim; raises `InvalidModelError` on a negative dim or no type."""
    if tensor.data_type not in TensorProto.DataType.values() or tensor.data_type == TensorProto.UNDEFINED:
        raise InvalidModelError(f"tensor {tensor.name!r} has the unknown element type {tensor.data_type}")
    if any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"tensor {tensor.name!r} has a negative dim: {list(tensor.dims)}")
    return math.prod(tensor.dims)


def byte_count(tensor: TensorProto, count: int) -> int:
    """The bytes that `count` elements of the tensor's type take, small types packed."""
    return -(-count * _bits(tensor) // 8)


def _bits(tensor: TensorProto) -> int:
    name = TensorProto.DataType.Name(tensor.data_type)
    if name in _BITS:
        return _BITS[name]
    return 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _entry_count(tensor: TensorProto, count: int) -> int:
    if tensor.data_type in _COMPLEX:
        return 2 * count
    bits = _bits(tensor)
    return count if bits >= 8 else -(-count * bits // 8)


def _expect(tensor: TensorProto, unit: str, present: int, claimed: int) -> None:
    if present != claimed:
        raise InvalidModelError(
            f"tensor {tensor.name!r}, dims {list(tensor.dims)}, needs {claimed} {unit}, but has {present}"
        )


def _load_external(tensor: TensorProto, count: int, folder: Path | None) -> None:
    if tensor.data_type == TensorProto.STRING:
        raise InvalidModelError(f"tensor {tensor.name!r}: strings cannot lie in an external file")
    where = {entry.key: entry.value for entry in tensor.external_data}
    path = _external_path(tensor, where.get("location", ""), folder)
    size = byte_count(tensor, count)
    offset = _number(tensor, where, "offset", 0)
    _expect(tensor, "bytes", _number(tensor, where, "length", size), size)
    if offset + size > path.stat().st_size:
        raise InvalidModelError(
            f"tensor {tensor.name!r} needs bytes {offset}..{offset + size} of {path.name!r}, "
            f"which has {path.stat().st_size}"
        )
    if size > psutil.virtual_memory().total:
        raise InvalidModelError(f"tensor {tensor.name!r} needs {size} bytes, more than this machine has")
    with path.open("rb") as file:
        file.seek(offset)
        tensor.raw_data = file.read(size)
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _external_path(tensor: TensorProto, location: str, folder: Path | None) -> Path:
    """The file that holds the data; links are followed before it is compared with the model's folder."""
    if folder is None:
        raise InvalidModelError(
            f"tensor {tensor.name!r} lies in the external file {location!r}: pass the model by its path"
        )
    if not location or "\0" in location:
        raise InvalidModelError(f"tensor {tensor.name!r} names no external file: {location!r}")
    path = (folder / location).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InvalidModelError(f"tensor {tensor.name!r}: {location!r} lies outside the model's folder")
    if not path.is_file():
        raise InvalidModelError(f"tensor {tensor.name!r}: there is no file {location!r} beside the model")
    return path


def _number(tensor: TensorProto, where: dict[str, str], key: str, default: int) -> int:
    text = where.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()):
        raise InvalidModelError(f"tensor {tensor.name!r}: external {key} {text!r} is not a number")
    return int(text)
