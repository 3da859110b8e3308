"""Recording: operations on arrays become nodes, with the dtypes and shapes that numpy would give them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvm_dyn.lazy.graph import Node, Shape, broadcast, by_numpy, has_opcode, leaf
from tvm_dyn.lazy.run import materialise
from tvm_dyn.runtime.bytecode import isa

NUMBERS = ("float32", "float64", "int32", "int64", "bool")
_HALVES = ("float16", "bfloat16")
_WIDENED = {"rsum": ("bool", "int32"), "rprod": ("bool", "int32")}


def value_of(node: Node) -> np.ndarray:
    """The node's elements, computed now if they are not there."""
    if not node.is_computed:
        materialise([node])
    return node.value


def operand(value: Any, beside: str | None = None) -> Node:
    """A scalar or an array-like as a node; a Python number takes the dtype it has ``beside`` another."""
    if isinstance(value, (bool, int, float)) and beside is not None:
        return _number(value, beside)
    return leaf(np.asarray(value))


@functools.lru_cache(maxsize=1024, typed=True)
def _number(value: float | int | bool, beside: str) -> Node:
    dtype = _common((beside,), (value,))
    return leaf(np.asarray(value, dtype))


@functools.lru_cache(maxsize=4096, typed=True)
def _common(dtypes: tuple[str, ...], numbers: tuple[Any, ...] = ()) -> str:
    """The dtype that numpy computes in, Python numbers being weak."""
    return np.result_type(*[np.dtype(dtype) for dtype in dtypes], *numbers).name


def elementwise(op: str, name: str, function: Callable[..., Any], *args: Node) -> Node:
    """A map on operands of their common dtype; numpy's where the table has no such opcode."""
    dtype = args[0].dtype
    if len(args) == 2 and args[1].dtype != dtype:
        dtype = _common((dtype, args[1].dtype))
        args = tuple([cast(arg, dtype) for arg in args])
    if not has_opcode(op, dtype):
        return fallback(name, function, *args)
    return apply(op, args, dtype)


def compare(op: str, name: str, function: Callable[..., Any], a: Node, b: Node) -> Node:
    """A comparison, in the dtype that numpy compares in; numpy's own where opcodes do not mix as it does."""
    dtype = a.dtype if a.dtype == b.dtype else _common((a.dtype, b.dtype))
    mixed = {"int64", "float32"} <= {a.dtype, b.dtype} or not has_opcode(op, dtype)
    if mixed:
        return fallback(name, function, a, b)
    return apply(op, [cast(a, dtype), cast(b, dtype)], "bool")


def choose(condition: Node, then: Node, otherwise: Node) -> Node:
    """``then`` or ``otherwise`` by a condition, in their common dtype."""
    dtype = _common((then.dtype, otherwise.dtype))
    if not has_opcode("where", dtype) or condition.dtype != "bool":
        return fallback("where", np.where, condition, then, otherwise)
    return apply("where", [condition, cast(then, dtype), cast(otherwise, dtype)], dtype)


def apply(op: str, args: Sequence[Node], dtype: str) -> Node:
    """A map's node; without elements there is nothing left to compute."""
    shape = args[0].shape if len(args) == 1 else broadcast([arg.shape for arg in args])
    if 0 in shape:
        return leaf(np.empty(shape, dtype))
    return Node(op, tuple(args), dtype, shape)


def cast(node: Node, dtype: str) -> Node:
    """The node in another dtype; itself where it has that."""
    if node.dtype == dtype:
        return node
    known = {node.dtype, dtype} <= set(NUMBERS) or ("float32" in (node.dtype, dtype) and (
        node.dtype in _HALVES or dtype in _HALVES
    ))
    if not known:
        return fallback("astype", lambda value: value.astype(dtype), node)
    if node.value is not None and node.value.size == 1:
        return leaf(node.value.astype(dtype))
    return apply("cast", [node], dtype)


def reduction(op: str, name: str, node: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    """A reduction over ``axes``, which are distinct and not negative; names are the table's."""
    if node.dtype in _WIDENED.get(op, ()):
        node = cast(node, "int64")
    shape = reduced_shape(node.shape, axes, keepdims)
    if not has_opcode(op, node.dtype) or 0 in node.shape:
        return fallback(name, lambda value: _NUMPY[op](value, axis=axes, keepdims=keepdims), node)
    if not axes:
        return node
    rank = len(node.shape)
    if len(axes) == rank:
        attr: Any = ("ONE", None)
    elif axes == tuple(range(rank - len(axes), rank)):
        attr = ("COLUMN", rank - len(axes))
    elif axes == tuple(range(len(axes))):
        attr = ("ROW", len(axes))
    else:
        order = [axis for axis in range(rank) if axis not in axes]
        node = view(node, lambda value: value.transpose([*order, *axes]))
        attr = ("COLUMN", len(order))
    return Node(op, (node,), node.dtype, shape, attr)


_NUMPY = {"rsum": np.sum, "rprod": np.prod, "rmax": np.max, "rmin": np.min, "rany": np.any, "rall": np.all}


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """What a reduction over ``axes`` leaves of a shape."""
    kept = [(axis, extent) for axis, extent in enumerate(shape)]
    return tuple(1 if axis in axes else extent for axis, extent in kept if keepdims or axis not in axes)


def by_row(op: str, node: Node, *numbers: Node) -> Node:
    """A map of the last axis as a whole, of float32; ``numbers`` are its parameters."""
    return Node(op, (node, *numbers), node.dtype, node.shape, ("TILE", len(node.shape) - 1))


def place_of_extreme(op: str, node: Node) -> Node:
    """Where in the last axis the maximum (``rmax``) or minimum (``rmin``) first occurs; that axis stays, as 1."""
    rank = len(node.shape)
    attr = ("COLUMN", rank - 1)
    shape = (*node.shape[:-1], 1)
    extreme = Node(op, (node,), node.dtype, shape, attr)
    return Node("find", (node, extreme), "int64", shape, attr)


def gather(table: Node, index: Node) -> Node:
    """Rows of ``table`` by their numbers."""
    shape = (*index.shape, *table.shape[1:])
    if 0 in shape or table.shape[0] == 0 or table.dtype not in isa.SHORT or index.dtype not in ("int32", "int64"):
        return fallback("take", lambda t, i: np.take(t, i, axis=0), table, index)
    return Node("gather", (table, cast(index, "int64")), table.dtype, shape)


def view(node: Node, function: Callable[[np.ndarray], np.ndarray]) -> Node:
    """Another look at the same elements, which are computed first."""
    return leaf(function(value_of(node)))


def reshaped(node: Node, shape: Shape) -> Node:
    """The elements in another shape; where only axes of extent 1 come or go, without computing them."""
    if shape == node.shape:
        return node
    if node.value is None and _long_axes(shape) == _long_axes(node.shape):
        return Node("alias", (node,), node.dtype, shape)
    return view(node, lambda value: value.reshape(shape))


def _long_axes(shape: Shape) -> list[int]:
    return [extent for extent in shape if extent != 1]


def fallback(name: str, function: Callable[..., Any], *args: Node) -> Node:
    """Numpy's result at once, counted under ``name``."""
    return leaf(np.asarray(by_numpy(name, function, *[value_of(arg) for arg in args])))


def normal_axes(axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes in order, none negative. Raises `numpy.exceptions.AxisError`, `ValueError` on a repeated one."""
    if axis is None:
        return tuple(range(rank))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    for each in given:
        if not -rank <= each < rank:
            raise np.exceptions.AxisError(each, rank)
    axes = tuple(sorted(each % rank for each in given))
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis={axis}: an axis is named twice")
    return axes
