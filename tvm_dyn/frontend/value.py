"""What the importer knows of an ONNX value: a constant, the symbolic content of a small tensor, or an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

# Shape subgraphs work on a few integers; larger tensors are data, whatever they hold.
MAX_ELEMENTS = 256

# TVM packs several of these into one byte, which no array that a caller has does.
SUB_BYTE = {"int4", "uint4", "int2", "uint2", "float4_e2m1fn"}


@dataclass(frozen=True, slots=True)
class Value:
    """One ONNX value. Exactly one of the fields is set.

    const: the array, known at import.
    elements: object array (of the tensor's shape) of Python numbers and TVM prim expressions over shape symbols.
    expr: a Relax expression (tensor or, for sequences, a tuple).
    """

    const: np.ndarray | None = None
    elements: np.ndarray | None = None
    expr: relax.Expr | None = None
    # dtype of `elements`, as numpy spells it
    element_dtype: str = "int64"

    @property
    def is_const(self) -> bool:
        return self.const is not None

    @property
    def array(self) -> np.ndarray:
        """The array of a constant; raises ValueError for anything else."""
        if self.const is None:
            raise ValueError("the value is not a constant")
        return self.const

    @property
    def dtype(self) -> str:
        if self.const is not None:
            return str(self.const.dtype)
        if self.elements is not None:
            return self.element_dtype
        return str(tensor_dtype(self.expr))

    def known_elements(self) -> np.ndarray | None:
        """The content as an object array if it is known at import (as numbers or symbols) and small, else None."""
        if self.elements is not None:
            return self.elements
        if self.const is not None and self.const.size <= MAX_ELEMENTS and self.const.dtype.kind in "biuf":
            return to_object_array(self.const)
        return None


def to_object_array(array: np.ndarray) -> np.ndarray:
    """Numpy numbers -> Python numbers in an object array of the same shape."""
    out = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        out[index] = array[index].item()
    return out


def object_array(items: list[Any], shape: tuple[int, ...] | None = None) -> np.ndarray:
    """A list of numbers and prim expressions -> object array; numpy never looks inside the expressions."""
    out = np.empty(len(items), dtype=object)
    for position, item in enumerate(items):
        out[position] = item
    return out if shape is None else out.reshape(shape)


def constant(array: Any, dtype: str | None = None) -> Value:
    return Value(const=np.asarray(array, dtype=dtype))


def symbols(items: list[Any], shape: tuple[int, ...] | None = None, dtype: str = "int64") -> Value:
    """Content known as symbols; collapses to a constant when no symbol is left."""
    return from_elements(object_array(items, shape), dtype)


def from_elements(array: np.ndarray, dtype: str) -> Value:
    if all(isinstance(item, (int, float, bool, np.generic)) for item in array.flat):
        return Value(const=np.array(array.tolist(), dtype=dtype).reshape(array.shape))
    return Value(elements=array, element_dtype=dtype)


def tensor_dtype(expr: Any) -> str:
    """Element type of a Relax tensor expression."""
    dtype = expr.ty.dtype
    return str(getattr(dtype, "dtype", dtype))
