"""Relax operators on lazy arrays: those that are fused and run by the virtual machine, and those that are views.

    R.nn.softmax(x, axis=-1)    -->     lazy.softmax(x, axis=-1)

`OPERATORS` gives, for an operator, a function of its call that returns a function of its operands: attributes are
read once, when the model is loaded. What is not here is legalized to TIR, see `kernel_source`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tvm_dyn import lazy
from tvm_dyn.lazy import Array, record
from tvm_dyn.lazy.graph import by_numpy, leaf

Run = Callable[..., Any]
Make = Callable[[Any], Run]


def _plain(function: Run) -> Make:
    return lambda call: function


def _axes(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(int(axis) for axis in value)


def _reduction(function: Run) -> Make:
    def make(call: Any) -> Run:
        axes, keepdims = _axes(call.attrs.axis), bool(call.attrs.keepdims)
        return lambda x: function(x, axis=axes, keepdims=keepdims)

    return make


def _softmax(call: Any) -> Run:
    axis = int(call.attrs.axis)
    return lambda x: lazy.softmax(x, axis=axis)


def _layer_norm(call: Any) -> Run:
    attrs = call.attrs
    epsilon, center, scale = float(attrs.epsilon), bool(attrs.center), bool(attrs.scale)

    def run(x: Array, gain: Array, shift: Array) -> Array:
        if scale and center:
            return lazy.layer_norm(x, gain, shift, epsilon)
        result = lazy.standardize(x, epsilon)
        result = result * gain if scale else result
        return result + shift if center else result

    return run


def _cast(call: Any) -> Run:
    dtype = str(call.attrs.dtype)
    return lambda x: x.astype(dtype)


def _permute(call: Any) -> Run:
    axes = _axes(call.attrs.axes)
    return lambda x: lazy.permute_dims(x, axes if axes is not None else tuple(range(x.ndim))[::-1])


def _expand(call: Any) -> Run:
    axes = _axes(call.attrs.axis) or ()
    return lambda x: lazy.expand_dims(x, axis=axes)


def _squeeze(call: Any) -> Run:
    axes = _axes(call.attrs.axis)
    return lambda x: lazy.squeeze(x, axes if axes is not None else tuple(a for a in range(x.ndim) if x.shape[a] == 1))


def _concat(call: Any) -> Run:
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)

    def run(arrays: Sequence[Array]) -> Array:
        lazy.sync(*arrays)
        return _numpy("concat", np.concatenate, [array.numpy() for array in arrays], axis)

    return run


def _matmul(call: Any) -> Run:
    dtype = str(call.attrs.out_dtype or "")

    def run(a: Array, b: Array) -> Array:
        lazy.sync(a, b)
        product = _numpy("matmul", np.matmul, a.numpy(), b.numpy())
        return product.astype(dtype) if dtype not in ("", "None", "void") else product

    return run


def _take(call: Any) -> Run:
    axis = None if call.attrs.axis is None else int(call.attrs.axis)

    def run(x: Array, index: Array) -> Array:
        return lazy.take(x if axis is not None else lazy.reshape(x, (-1,)), index, axis=axis or 0)

    return run


def _conv(call: Any) -> Run:
    """A convolution in the layout of channels first, as one product of windows and filters."""
    attrs = call.attrs
    rank = len(attrs.strides)
    strides, dilation = [int(s) for s in attrs.strides], [int(d) for d in attrs.dilation]
    before, after = [int(p) for p in attrs.padding[:rank]], [int(p) for p in attrs.padding[rank:]]
    groups = int(attrs.groups)

    def convolve(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        x = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)])
        spans = [(extent - 1) * d + 1 for extent, d in zip(w.shape[2:], dilation, strict=True)]
        windows = sliding_window_view(x, spans, tuple(range(2, 2 + rank)))
        steps = [slice(None, None, s) for s in strides]
        windows = windows[(slice(None), slice(None), *steps, *[slice(None, None, d) for d in dilation])]
        images, _, *spatial = windows.shape[: 2 + rank]
        grouped = np.moveaxis(windows, 1, 1 + rank).reshape(images, *spatial, groups, -1)
        filters = w.reshape(groups, w.shape[0] // groups, -1)
        sums = np.einsum("...gk,gfk->...gf", grouped, filters, optimize=True)
        return np.moveaxis(sums.reshape(images, *spatial, -1), -1, 1)

    return lambda x, w: _numpy("conv", convolve, x.numpy(), w.numpy())


def channels_first(call: Any) -> bool:
    """Whether `_conv` knows the call's layouts."""
    layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout), str(call.attrs.out_layout))
    return layouts in (("NCW", "OIW", "NCW"), ("NCHW", "OIHW", "NCHW"))


def _numpy(name: str, function: Run, *args: Any) -> Array:
    return Array(leaf(np.asarray(by_numpy(name, function, *args))))


def _where(condition: Array, x: Array, y: Array) -> Array:
    return lazy.where(condition, x, y)


def _reshape(x: Array, shape: Sequence[int]) -> Array:
    return Array(record.reshaped(x._node, tuple(shape)))


_UNARY = {
    "negative": lazy.negative, "abs": lazy.abs, "sqrt": lazy.sqrt, "rsqrt": lazy.rsqrt, "exp": lazy.exp,
    "log": lazy.log, "tanh": lazy.tanh, "erf": lazy.erf, "sigmoid": lazy.sigmoid, "floor": lazy.floor,
    "ceil": lazy.ceil, "trunc": lazy.trunc, "round": lazy.round, "sign": lazy.sign, "square": lazy.square,
    "logical_not": lazy.logical_not, "nn.relu": lazy.relu, "nn.gelu": lazy.gelu, "nn.silu": lazy.silu,
    "isnan": lazy.isnan,
}  # fmt: skip
_BINARY = {
    "add": lazy.add, "subtract": lazy.subtract, "multiply": lazy.multiply, "maximum": lazy.maximum,
    "minimum": lazy.minimum, "equal": lazy.equal, "not_equal": lazy.not_equal, "less": lazy.less,
    "less_equal": lazy.less_equal, "greater": lazy.greater, "greater_equal": lazy.greater_equal,
    "logical_and": lazy.logical_and, "logical_or": lazy.logical_or, "logical_xor": lazy.logical_xor,
}  # fmt: skip
_FLOAT_ONLY = frozenset({"divide", "rsqrt", "erf", "sigmoid", "nn.relu", "nn.gelu", "nn.silu", "exp", "log", "tanh"})

OPERATORS: dict[str, Make] = {
    **{f"relax.{name}": _plain(function) for name, function in {**_UNARY, **_BINARY}.items()},
    "relax.divide": _plain(lazy.divide),
    "relax.where": _plain(_where),
    "relax.sum": _reduction(lazy.sum),
    "relax.max": _reduction(lazy.max),
    "relax.min": _reduction(lazy.min),
    "relax.mean": _reduction(lazy.mean),
    "relax.nn.softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.astype": _cast,
    "relax.permute_dims": _permute,
    "relax.expand_dims": _expand,
    "relax.squeeze": _squeeze,
    "relax.reshape": _plain(_reshape),
    "relax.broadcast_to": _plain(lazy.broadcast_to),
    "relax.concat": _concat,
    "relax.matmul": _matmul,
    "relax.take": _take,
    "relax.nn.conv1d": _conv,
    "relax.nn.conv2d": _conv,
}

NUMPY = {"relax.concat": "concat", "relax.matmul": "matmul", "relax.nn.conv1d": "conv", "relax.nn.conv2d": "conv"}
"""Operators that numpy computes, by the name that `lazy.fallbacks` counts them under."""

_REAL = frozenset({"float32"})


def supports(call: Any) -> bool:
    """Whether the call is in the table, with operands of dtypes that its function gives Relax's results for."""
    name = call.op.name
    if name not in OPERATORS:
        return False
    if name.startswith("relax.nn.conv"):
        return channels_first(call)
    if name == "relax.nn.layer_norm":
        last = call.args[0].ty.ndim - 1
        return str(call.ty.dtype) in _REAL and [int(axis) for axis in call.attrs.axes] in ([-1], [last])
    if name.removeprefix("relax.") in _FLOAT_ONLY:
        return str(call.ty.dtype) in _REAL
    if name in ("relax.sum", "relax.mean"):  # numpy's are wider than Relax's
        dtype = str(call.ty.dtype)
        return dtype in ("float32", "float64", "int64") and dtype == str(call.args[0].ty.dtype)
    return True
