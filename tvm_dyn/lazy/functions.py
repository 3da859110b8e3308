"""The functions of `tvm_dyn.lazy`, by the names of the Python array API standard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvm_dyn.lazy import record
from tvm_dyn.lazy.array import COMPARISONS, Array, logical, power, unpack
from tvm_dyn.lazy.array import divide as quotient
from tvm_dyn.lazy.array import multiply as product
from tvm_dyn.lazy.graph import leaf

__all__ = [
    "abs", "add", "all", "any", "argmax", "argmin", "asarray", "astype", "broadcast_to", "ceil", "clip",
    "divide", "equal", "erf", "exp", "expand_dims", "floor", "gelu", "greater", "greater_equal", "isnan",
    "layer_norm", "less", "less_equal", "log", "logical_and", "logical_not", "logical_or", "logical_xor",
    "matrix_transpose", "max", "maximum", "mean", "min", "minimum", "multiply", "negative", "not_equal",
    "permute_dims", "pow", "prod", "reciprocal", "relu", "reshape", "round", "rsqrt", "sigmoid", "sign",
    "silu", "softmax", "sqrt", "square", "squeeze", "standardize", "std", "subtract", "sum", "sync", "take",
    "tanh", "trunc", "var", "where",
]  # fmt: skip

Axis = int | Sequence[int] | None


def asarray(value: Any, dtype: Any = None, *, copy: bool | None = None) -> Array:
    """An array over anything numpy or DLPack knows; it shares memory where it can, and ``copy`` does not ask else."""
    if isinstance(value, Array):
        return value if dtype is None else value.astype(dtype)
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    return Array(leaf(np.array(value, dtype=dtype, copy=copy)))


# ---- elementwise

def _unary(op: str, function: Callable[..., Any]) -> Callable[[Any], Array]:
    def apply(x: Any) -> Array:
        (node,) = unpack(x)
        return Array(record.elementwise(op, function.__name__, function, node))

    apply.__name__ = function.__name__
    return apply


def _rounding(op: str, function: Callable[..., Any]) -> Callable[[Any], Array]:
    """Integers are their own roundings."""
    rounded = _unary(op, function)
    return lambda x: x if isinstance(x, Array) and x.dtype.kind in "iu" else rounded(x)


def _real(op: str, function: Callable[..., Any]) -> Callable[[Any], Array]:
    """A function of reals: integers become float64, as in numpy."""
    applied = _unary(op, function)
    return lambda x: applied(x.astype("float64") if isinstance(x, Array) and x.dtype.kind in "iub" else x)


def _binary(op: str, function: Callable[..., Any], recorder: Callable[..., Any]) -> Callable[[Any, Any], Array]:
    def apply(x1: Any, x2: Any) -> Array:
        return Array(recorder(op, function.__name__, function, *unpack(x1, x2)))

    apply.__name__ = function.__name__
    return apply


abs = _unary("abs", np.absolute)
negative = _unary("neg", np.negative)
square = _unary("square", np.square)
sign = _unary("sign", np.sign)
sqrt = _real("sqrt", np.sqrt)
exp = _real("exp", np.exp)
log = _real("log", np.log)
tanh = _real("tanh", np.tanh)
reciprocal = _unary("recip", np.reciprocal)
floor = _rounding("floor", np.floor)
ceil = _rounding("ceil", np.ceil)
trunc = _rounding("trunc", np.trunc)
round = _rounding("rint", np.rint)
logical_not = _unary("not", np.logical_not)

add = _binary("add", np.add, record.elementwise)
subtract = _binary("sub", np.subtract, record.elementwise)
multiply = _binary("mul", np.multiply, product)
divide = _binary("div", np.divide, quotient)
pow = _binary("pow", np.power, power)
maximum = _binary("max", np.maximum, record.elementwise)
minimum = _binary("min", np.minimum, record.elementwise)
logical_and = _binary("and", np.logical_and, logical)
logical_or = _binary("or", np.logical_or, logical)
logical_xor = _binary("xor", np.logical_xor, logical)
equal, not_equal, less, less_equal, greater, greater_equal = (
    _binary(op, function, record.compare) for op, function in COMPARISONS.items()
)


def where(condition: Any, x1: Any, x2: Any) -> Array:
    """Elements of ``x1`` where the condition holds, of ``x2`` elsewhere."""
    (test,) = unpack(condition)
    return Array(record.choose(test, *unpack(x1, x2)))


def clip(x: Any, min: Any = None, max: Any = None) -> Array:
    """Elements kept within ``min`` and ``max``, either of which may be None for no bound."""
    result = asarray(x)
    result = result if min is None else maximum(result, min)
    return result if max is None else minimum(result, max)


def isnan(x: Any) -> Array:
    """Which elements are NaN."""
    array = asarray(x)
    return not_equal(array, array)


def astype(x: Array, dtype: Any) -> Array:
    """The elements as another dtype, by numpy's conversion."""
    return x.astype(dtype)


# ---- beyond the standard: what networks are made of

def _activation(op: str) -> Callable[[Any], Array]:
    def apply(x: Any) -> Array:
        (node,) = unpack(x)
        return Array(record.apply(op, [record.cast(node, "float32")], "float32"))

    apply.__name__ = op
    return apply


erf, sigmoid, relu, gelu, silu, rsqrt = (_activation(op) for op in ("erf", "sigmoid", "relu", "gelu", "silu", "rsqrt"))


def softmax(x: Any, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along an axis, from differences to the largest."""
    array = asarray(x)
    if _is_row_of_float32(array, axis):
        return Array(record.by_row("softmax", array._node))
    weights = exp(array - max(array, axis=axis, keepdims=True))
    return weights / sum(weights, axis=axis, keepdims=True)


def standardize(x: Any, epsilon: float = 1e-5, axis: int = -1) -> Array:
    """(x - mean(x)) / sqrt(var(x) + epsilon) along an axis: a layer norm before its gain and shift."""
    array = asarray(x)
    if _is_row_of_float32(array, axis):
        return Array(record.by_row("standardize", array._node, record.operand(float(epsilon), "float32")))
    distance = array - mean(array, axis=axis, keepdims=True)
    return distance / sqrt(mean(distance * distance, axis=axis, keepdims=True) + epsilon)


def layer_norm(x: Any, gain: Any, shift: Any, epsilon: float = 1e-5) -> Array:
    """`standardize` along the last axis, times ``gain``, plus ``shift``: one number for each place in the row."""
    array, factor, term = asarray(x), asarray(gain), asarray(shift)
    if _is_row_of_float32(array, -1) and _is_row(factor, array) and _is_row(term, array):
        guard = record.operand(float(epsilon), "float32")
        return Array(record.by_row("layer_norm", array._node, guard, factor._node, term._node))
    return add(multiply(standardize(array, epsilon), factor), term)


def _is_row(values: Array, beside: Array) -> bool:
    """Whether the values lie in memory as one row of ``beside``."""
    node = values._node
    return (
        node.is_computed and node.value.flags.c_contiguous and node.dtype == "float32"
        and node.shape == beside.shape[-1:]
    )  # fmt: skip


def _is_row_of_float32(array: Array, axis: int) -> bool:
    return array.dtype == "float32" and array.ndim > 0 and axis in (-1, array.ndim - 1) and array.size > 0


# ---- reductions

def _reducing(op: str, name: str) -> Callable[..., Array]:
    def apply(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
        (node,) = unpack(x)
        axes = record.normal_axes(axis, len(node.shape))
        return Array(record.reduction(op, name, node, axes, keepdims))

    apply.__name__ = name
    return apply


sum = _reducing("rsum", "sum")
prod = _reducing("rprod", "prod")
max = _reducing("rmax", "max")
min = _reducing("rmin", "min")
_any = _reducing("rany", "any")
_all = _reducing("rall", "all")


def any(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether an element is true; along an axis, several, or all of them."""
    return _any(_truth(x), axis=axis, keepdims=keepdims)


def all(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether every element is true; along an axis, several, or all of them."""
    return _all(_truth(x), axis=axis, keepdims=keepdims)


def _truth(x: Any) -> Array:
    array = asarray(x)
    return array if array.dtype == bool else array.astype("bool")


def mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The arithmetic mean along an axis, several, or all of them; integers become float64."""
    array = _as_real(x)
    axes = record.normal_axes(axis, array.ndim)
    return sum(array, axis=axes, keepdims=keepdims) / _extent(array, axes)


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance: the sum of squared distances from the mean over their number less ``correction``."""
    array = _as_real(x)
    axes = record.normal_axes(axis, array.ndim)
    distance = array - mean(array, axis=axes, keepdims=True)
    return sum(distance * distance, axis=axes, keepdims=keepdims) / (_extent(array, axes) - correction)


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The square root of `var`."""
    return sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def _as_real(x: Any) -> Array:
    array = asarray(x)
    return array if array.dtype.kind == "f" else array.astype("float64")


def _extent(array: Array, axes: Sequence[int]) -> float:
    return float(np.prod([array.shape[axis] for axis in axes]))


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The place of the first largest element (int64), of the flat array for no axis."""
    return _place_of("rmax", np.argmax, x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The place of the first smallest element (int64), of the flat array for no axis."""
    return _place_of("rmin", np.argmin, x, axis, keepdims)


def _place_of(op: str, function: Callable[..., Any], x: Any, axis: int | None, keepdims: bool) -> Array:
    (node,) = unpack(x)
    last = axis is not None and len(node.shape) > 1 and axis in (-1, len(node.shape) - 1)
    if not last or 0 in node.shape or not record.has_opcode("find", node.dtype):
        return Array(record.fallback(function.__name__, lambda v: function(v, axis=axis, keepdims=keepdims), node))
    found = record.place_of_extreme(op, node)
    return Array(found if keepdims else record.reshaped(found, node.shape[:-1]))


# ---- shapes

def reshape(x: Array, shape: int | Sequence[int], *, copy: bool | None = None) -> Array:
    """The elements in another shape, of which one extent may be -1. Raises ValueError where the numbers differ."""
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    wanted = np.broadcast_to(np.empty(()), x.shape).reshape(wanted).shape  # numpy resolves -1 and refuses
    return Array(record.reshaped(x._node, wanted))


def expand_dims(x: Array, /, *, axis: int | tuple[int, ...] = 0) -> Array:
    """The array with an axis of extent 1 at each of these places."""
    return reshape(x, np.expand_dims(np.broadcast_to(np.empty(()), x.shape), axis).shape)


def squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """The array without axes of extent 1. Raises ValueError for another extent."""
    return reshape(x, np.squeeze(np.broadcast_to(np.empty(()), x.shape), axis).shape)


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """The axes in another order."""
    return Array(record.view(x._node, lambda value: value.transpose(axes)))


def matrix_transpose(x: Array, /) -> Array:
    """The last two axes exchanged."""
    return x.mT


def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """The array as numpy broadcasts it to a shape. Raises ValueError where it cannot."""
    return Array(record.view(x._node, lambda value: np.broadcast_to(value, tuple(shape))))


def take(x: Array, indices: Array, /, *, axis: int) -> Array:
    """Slices along an axis by their places. Raises IndexError for places outside, when it is computed."""
    if axis % x.ndim == 0:
        return Array(record.gather(x._node, unpack(indices)[0]))
    return Array(record.fallback("take", lambda value, index: np.take(value, index, axis=axis), *unpack(x, indices)))


# ---- control

def sync(*arrays: Array) -> None:
    """Compute the arrays now, together."""
    record.materialise([array._node for array in arrays])
