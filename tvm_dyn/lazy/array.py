"""The array of `tvm_dyn.lazy`: what numpy's is, but that its elements are computed when they are asked for."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_dyn.lazy import record
from tvm_dyn.lazy.graph import Node, Shape, leaf


class Array:
    """An n-dimensional array that may still be an expression. It does not change; `+=` binds the name anew.

    numpy(), `numpy.asarray`, DLPack, `float`, `int`, `bool` and printing compute it, with everything it needs and
    nothing else. Arrays made from numpy's share their memory.
    """

    __slots__ = ("__weakref__", "_node")
    __array_priority__ = 1000  # numpy's operators leave mixed expressions to ours

    def __init__(self, node: Node) -> None:
        self._node = node
        node.owner = weakref.ref(self)

    @property
    def shape(self) -> Shape:
        return self._node.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self._node.dtype)

    @property
    def ndim(self) -> int:
        return len(self._node.shape)

    @property
    def size(self) -> int:
        return math.prod(self._node.shape)

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def T(self) -> Array:
        return Array(record.view(self._node, lambda value: value.T))

    @property
    def mT(self) -> Array:
        return Array(record.view(self._node, lambda value: value.swapaxes(-1, -2)))

    def numpy(self) -> np.ndarray:
        """The elements; computed once. The array shares them: write to a copy."""
        return record.value_of(self._node)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __index__(self) -> int:
        return self.numpy().__index__()

    def __float__(self) -> float:
        return float(self.numpy())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return repr(self.numpy()).replace("array(", "lazy.Array(", 1)

    def __getitem__(self, key: Any) -> Array:
        if isinstance(key, Array) and key.dtype.kind == "i" and self.ndim:
            return Array(record.gather(self._node, key._node))
        key = tuple(_plain(k) for k in key) if isinstance(key, tuple) else _plain(key)
        spread = _unit_axes(key, self.shape)
        if spread is not None:
            return Array(record.reshaped(self._node, spread))
        return Array(leaf(np.asarray(self.numpy()[key])))

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("lazy arrays do not change: build the new one with where(), or change a numpy() copy")

    def astype(self, dtype: Any) -> Array:
        return Array(record.cast(self._node, np.dtype(dtype).name))

    def reshape(self, *shape: Any) -> Array:
        from tvm_dyn.lazy.functions import reshape

        return reshape(self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    if TYPE_CHECKING:  # they are made from the table below

        def _of_two(self, other: Any) -> Array: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _of_two
        __pow__ = __rpow__ = __matmul__ = __and__ = __or__ = __lt__ = __le__ = __gt__ = __ge__ = _of_two

    def __neg__(self) -> Array:
        return _unary("neg", np.negative, self)

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return _unary("abs", np.absolute, self)

    def __invert__(self) -> Array:
        if self._node.dtype == "bool":
            return _unary("not", np.logical_not, self)
        return Array(record.fallback("bitwise_invert", np.invert, self._node))


def _plain(key: Any) -> Any:
    return key.numpy() if isinstance(key, Array) else key


def _unit_axes(key: Any, shape: Shape) -> Shape | None:
    """The shape after a key of None, ... and : only, which adds axes; None of any other key."""
    keys = key if isinstance(key, tuple) else (key,)
    simple = all(k is None or k is Ellipsis or (isinstance(k, slice) and k == slice(None)) for k in keys)
    if not simple:
        return None
    return np.broadcast_to(np.empty(()), shape)[key].shape


def _unary(op: str, function: Callable[..., Any], x: Array) -> Array:
    return Array(record.elementwise(op, function.__name__, function, x._node))


def unpack(*values: Any) -> list[Node]:
    """The nodes of operands; Python numbers take the dtype of the arrays."""
    beside = next((value._node.dtype for value in values if isinstance(value, Array)), None)
    if beside is None:
        beside = next((np.asarray(v).dtype.name for v in values if not isinstance(v, bool | int | float)), None)
    return [value._node if isinstance(value, Array) else record.operand(value, beside) for value in values]


def _operator(op: str, function: Callable[..., Any], recorder: Callable[..., Node]) -> tuple[Any, Any]:
    """A binary operator and its reflection."""

    name = function.__name__

    def forward(self: Array, other: Any) -> Array:
        if isinstance(other, Array):
            return Array(recorder(op, name, function, self._node, other._node))
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return Array(recorder(op, name, function, self._node, record.operand(other, self._node.dtype)))

    def reflected(self: Array, other: Any) -> Array:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return Array(recorder(op, name, function, record.operand(other, self._node.dtype), self._node))

    return forward, reflected


_OPERANDS = (bool, int, float, np.ndarray, np.generic)


def multiply(op: str, name: str, function: Callable[..., Any], a: Node, b: Node) -> Node:
    """A product; of equals, a square, which the table has more uses for."""
    if a is b and record.has_opcode("square", a.dtype):
        return record.elementwise("square", name, np.square, a)
    return record.elementwise(op, name, function, a, b)


def divide(op: str, name: str, function: Callable[..., Any], a: Node, b: Node) -> Node:
    """True division: integers become float64, as in numpy."""
    if {a.dtype, b.dtype} <= {"int32", "int64", "bool"}:
        a, b = record.cast(a, "float64"), record.cast(b, "float64")
    return record.elementwise(op, name, function, a, b)


def power(op: str, name: str, function: Callable[..., Any], a: Node, b: Node) -> Node:
    """Powers that are products or roots; any other is numpy's."""
    exponent = b.value.item() if b.value is not None and b.shape == () else None
    if exponent == 2 and a.dtype == b.dtype:
        return record.elementwise("square", "square", np.square, a)
    if exponent == 0.5 and a.dtype == b.dtype and a.dtype in ("float32", "float64"):
        return record.elementwise("sqrt", "sqrt", np.sqrt, a)
    return record.fallback(name, function, a, b)


def logical(op: str, name: str, function: Callable[..., Any], a: Node, b: Node) -> Node:
    """Bits of truth values in the table's terms, of integers in numpy's."""
    if a.dtype == b.dtype == "bool":
        return record.elementwise(op, name, function, a, b)
    return record.fallback(name, function, a, b)


def by_numpy(op: str, name: str, function: Callable[..., Any], a: Node, b: Node) -> Node:
    return record.fallback(name, function, a, b)


_OPERATORS: dict[str, tuple[str, Callable[..., Any], Callable[..., Node]]] = {
    "add": ("add", np.add, record.elementwise),
    "sub": ("sub", np.subtract, record.elementwise),
    "mul": ("mul", np.multiply, multiply),
    "truediv": ("div", np.divide, divide),
    "pow": ("pow", np.power, power),
    "floordiv": ("", np.floor_divide, by_numpy),
    "mod": ("", np.remainder, by_numpy),
    "matmul": ("", np.matmul, by_numpy),
    "and": ("and", np.bitwise_and, logical),
    "or": ("or", np.bitwise_or, logical),
    "xor": ("xor", np.bitwise_xor, logical),
    "lshift": ("", np.left_shift, by_numpy),
    "rshift": ("", np.right_shift, by_numpy),
}
for _name, _row in _OPERATORS.items():
    _forward, _reflected = _operator(*_row)
    setattr(Array, f"__{_name}__", _forward)
    setattr(Array, f"__r{_name}__", _reflected)

COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
for _name, _function in COMPARISONS.items():
    setattr(Array, f"__{_name}__", _operator(_name, _function, record.compare)[0])
Array.__hash__ = None  # equality is by element
