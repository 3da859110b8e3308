"""The contents of small integer tensors that hold shapes, as symbolic expressions.

Importers move shapes through tensors (``shape_to_tensor``, a few slices and products, ``tensor_to_shape``).
Where each element is a known expression, the tensor is followed element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.ir import prim

from tvm_dyn.passes.shape_types import dims_of

Elements = np.ndarray  # of dtype object: int64 expressions
_LIMIT = 64  # elements; a shape is shorter, anything longer is data


class Unknown(Exception):
    """An operand is not known element by element."""


class ShapeValues:
    """Known contents of variables, filled in by `learn` in program order."""

    def __init__(self) -> None:
        self._known: dict[ir.Var, Elements] = {}

    def learn(self, var: ir.Var, value: ir.Expr) -> None:
        """Remember the contents of ``var`` if those of ``value`` are known."""
        found = self.elements(value)
        if found is not None and found.size <= _LIMIT:
            self._known[var] = found

    def elements(self, value: ir.Expr) -> Elements | None:
        """The contents of an expression, None where they are not known."""
        if isinstance(value, ir.Var):
            return self._known.get(value)
        if isinstance(value, ir.GenericConst):
            return _constant(value)
        if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
            return None
        follow = _FOLLOW.get(value.op.name)
        try:
            return follow(self, value) if follow is not None else None
        except Unknown:
            return None

    def operand(self, value: ir.Expr) -> Elements:
        found = self.elements(value)
        if found is None:
            raise Unknown
        return found

    def integers(self, value: ir.Expr) -> list[int]:
        """The contents of a constant operand: a tuple of scalars or a tensor."""
        items = value.fields if isinstance(value, relax.Tuple) else self.operand(value).ravel().tolist()
        if not all(isinstance(item, prim.IntImm) for item in items):
            raise Unknown
        return [int(item.value) for item in items]


def _constant(value: ir.GenericConst) -> Elements | None:
    if str(value.ty.dtype) not in ("int64", "int32") or int(np.prod(value.value.shape)) > _LIMIT:
        return None
    data = value.value.numpy()
    result = np.empty(data.shape, dtype=object)
    for index in np.ndindex(data.shape):
        result[index] = tirx.IntImm("int64", int(data[index]))
    return result


def _array(items: list[ir.Expr]) -> Elements:
    result = np.empty(len(items), dtype=object)
    result[:] = items
    return result


def _shape_to_tensor(values: ShapeValues, call: ir.Call) -> Elements:
    dims = dims_of(call.args[0].ty)
    if dims is None:
        raise Unknown
    return _array(dims)


def _elementwise(combine: Callable[[Any, Any], ir.Expr]) -> Callable[[ShapeValues, ir.Call], Elements]:
    def follow(values: ShapeValues, call: ir.Call) -> Elements:
        if str(call.ty.dtype) not in ("int64", "int32"):
            raise Unknown
        a, b = np.broadcast_arrays(*(values.operand(arg) for arg in call.args))
        result = np.empty(a.shape, dtype=object)
        for index in np.ndindex(a.shape):
            result[index] = combine(a[index], b[index])
        return result

    return follow


def _strided_slice(values: ShapeValues, call: ir.Call) -> Elements:
    data = values.operand(call.args[0])
    axes, begins, ends, *strides = (values.integers(arg) for arg in call.args[1:])
    selection = [slice(None)] * data.ndim
    for position, axis in enumerate(axes):
        stride = strides[0][position] if strides else 1
        if stride < 1:
            raise Unknown
        selection[axis] = slice(begins[position], ends[position], stride)
    return data[tuple(selection)]


def _take(values: ShapeValues, call: ir.Call) -> Elements:
    data, index = values.operand(call.args[0]), call.args[1]
    if isinstance(index.ty, ir.PrimType):
        raise Unknown
    positions = np.array(values.integers(index), dtype=int).reshape(values.operand(index).shape)
    attrs: Any = call.attrs
    axis = int(attrs.axis or 0)
    extent = data.shape[axis] if data.ndim else 0
    if not all(-extent <= p < extent for p in positions.ravel()):
        raise Unknown
    taken = data.take(positions, axis=axis)
    return taken if isinstance(taken, np.ndarray) else _array([taken]).reshape(())


def _concat(values: ShapeValues, call: ir.Call) -> Elements:
    if not isinstance(call.args[0], relax.Tuple):
        raise Unknown
    parts = [values.operand(field) for field in call.args[0].fields]
    attrs: Any = call.attrs
    return np.concatenate(parts, axis=int(attrs.axis or 0))


def _same_elements(values: ShapeValues, call: ir.Call) -> Elements:
    """Operators that only regroup elements: the static result type tells the new shape."""
    dims = dims_of(call.ty)
    if dims is None or not all(isinstance(dim, prim.IntImm) for dim in dims):
        raise Unknown
    return values.operand(call.args[0]).reshape([int(dim.value) for dim in dims])


def _cast(values: ShapeValues, call: ir.Call) -> Elements:
    if str(call.ty.dtype) not in ("int64", "int32"):
        raise Unknown
    return values.operand(call.args[0])


def _product(values: ShapeValues, call: ir.Call) -> Elements:
    data = values.operand(call.args[0])
    if data.ndim != 1:
        raise Unknown
    result: ir.Expr = tirx.IntImm("int64", 1)
    for element in data:
        result = result * element
    attrs: Any = call.attrs
    return _array([result]).reshape((1,) if attrs.keepdims else ())


_FOLLOW: dict[str, Callable[[ShapeValues, ir.Call], Elements]] = {
    "relax.shape_to_tensor": _shape_to_tensor,
    "relax.strided_slice": _strided_slice,
    "relax.take": _take,
    "relax.concat": _concat,
    "relax.reshape": _same_elements,
    "relax.squeeze": _same_elements,
    "relax.expand_dims": _same_elements,
    "relax.flatten": _same_elements,
    "relax.astype": _cast,
    "relax.prod": _product,
    "relax.add": _elementwise(lambda a, b: a + b),
    "relax.subtract": _elementwise(lambda a, b: a - b),
    "relax.multiply": _elementwise(lambda a, b: a * b),
    "relax.floor_divide": _elementwise(lambda a, b: prim.FloorDiv(a, b)),
    "relax.floor_mod": _elementwise(lambda a, b: prim.FloorMod(a, b)),
    "relax.divide": _elementwise(lambda a, b: prim.Div(a, b)),
    "relax.maximum": _elementwise(lambda a, b: prim.Max(a, b)),
    "relax.minimum": _elementwise(lambda a, b: prim.Min(a, b)),
}
