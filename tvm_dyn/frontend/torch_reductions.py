"""ATen reductions, scans and searches along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import tirx

from tvm_dyn.frontend.ops.shape import product
from tvm_dyn.frontend.torch_registry import TorchContext, aten
from tvm_dyn.frontend.value import Value, constant

Dims = int | Sequence[int] | None


def reduce(t: TorchContext, op_type: str, value: Value, dim: Dims, keepdim: bool) -> Value:
    """An ONNX reduction over some axes, or all for None and []; a scalar stays as it is."""
    axes = t.axes(value, dim)
    return t.onnx(op_type, value, t.ints(axes), keepdims=int(keepdim)) if axes else value


@aten("sum.dim_IntList", "mean.dim", "prod.dim_int")
def reduce_along(t: TorchContext, self: Value, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Value:
    op_type = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}[str(t.node.target).split(".")[1]]
    return reduce(t, op_type, t.cast(self, t.dtype), dim, keepdim)


@aten("sum", "mean", "prod")
def reduce_all(t: TorchContext, self: Value, dtype: Any = None) -> Value:
    return reduce_along(t, self)


@aten("amax", "amin")
def extremum(t: TorchContext, self: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    return reduce(t, "ReduceMax" if "amax" in str(t.node.target) else "ReduceMin", self, dim, keepdim)


@aten("max", "min")
def extremum_of_all(t: TorchContext, self: Value) -> Value:
    return reduce(t, "ReduceMax" if "max" in str(t.node.target) else "ReduceMin", self, None, False)


@aten("max.dim", "min.dim")
def extremum_with_index(t: TorchContext, self: Value, dim: int, keepdim: bool = False) -> list[Value]:
    kind = "Max" if "max" in str(t.node.target) else "Min"
    index = t.onnx(f"Arg{kind}", self, axis=dim, keepdims=int(keepdim))
    return [reduce(t, f"Reduce{kind}", self, dim, keepdim), index]


@aten("argmax", "argmin")
def arg_extremum(t: TorchContext, self: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        if keepdim:
            return NotImplemented
        self, dim = t.onnx("Reshape", self, t.ints([-1])), 0
    return t.onnx("ArgMax" if "argmax" in str(t.node.target) else "ArgMin", self, axis=dim, keepdims=int(keepdim))


@aten("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def any_all(t: TorchContext, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    op_type = "ReduceMax" if ".any" in str(t.node.target) else "ReduceMin"
    flags = t.cast(t.cast(self, "bool"), "int32")
    return t.cast(reduce(t, op_type, flags, dim, keepdim), t.dtype)


@aten("var.correction", "std.correction")
def variance(t: TorchContext, self: Value, dim: Dims = None, correction: Any = 1, keepdim: bool = False) -> Value:
    """Sum of squared deviations over n - correction."""
    centred = t.onnx("Sub", self, reduce(t, "ReduceMean", self, dim, True))
    total = reduce(t, "ReduceSum", t.onnx("Mul", centred, centred), dim, keepdim)
    count = product([t.shape(self)[axis] for axis in t.axes(self, dim)])
    freedom = t.onnx("Max", t.onnx("Sub", t.value(count, t.dtype), t.value(correction, t.dtype)), t.value(0, t.dtype))
    result = t.onnx("Div", total, freedom)
    return t.onnx("Sqrt", result) if "std" in str(t.node.target) else result


@aten("var_mean.correction")
def variance_and_mean(t: TorchContext, self: Value, dim: Dims = None, **options: Any) -> list[Value]:
    mean = reduce(t, "ReduceMean", self, dim, options.get("keepdim", False))
    return [variance(t, self, dim, **options), mean]


@aten("linalg_vector_norm")
def vector_norm(
    t: TorchContext, self: Value, ord: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    if ord not in (1, 2):
        return NotImplemented
    return reduce(t, f"ReduceL{int(ord)}", t.cast(self, t.dtype), dim, keepdim)


@aten("cumsum")
def cumsum(t: TorchContext, self: Value, dim: int, dtype: Any = None) -> Value:
    value = t.cast(self, t.dtype)
    return t.onnx("CumSum", value, constant(dim, "int64")) if t.ctx.rank(self) else value


def _softmax(op_type: str) -> Callable[..., Value]:
    def convert(t: TorchContext, self: Value, dim: int, *_: Any, **__: Any) -> Value:
        return t.onnx(op_type, t.cast(self, t.dtype), axis=dim)

    return convert


aten("softmax.int", "_softmax")(_softmax("Softmax"))
aten("log_softmax.int", "_log_softmax")(_softmax("LogSoftmax"))


@aten("topk")
def topk(t: TorchContext, self: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Value]:
    return t.onnx("TopK", self, t.ints([k]), axis=dim, largest=int(largest), sorted=int(sorted), outputs=2)


@aten("sort", "sort.stable")
def sort(t: TorchContext, self: Value, dim: int = -1, descending: bool = False, stable: bool = False) -> list[Value]:
    extent = t.shape(self)[dim]
    return t.onnx("TopK", self, t.ints([extent]), axis=dim, largest=int(descending), sorted=1, outputs=2)


@aten("argsort")
def argsort(t: TorchContext, self: Value, dim: int = -1, descending: bool = False) -> Value:
    return sort(t, self, dim, descending)[1]


@aten("isfinite")
def isfinite(t: TorchContext, self: Value) -> Value:
    limit = tirx.const(np.inf, self.dtype)
    return t.ctx.elementwise("isfinite", lambda x: tirx.all(x < limit, x > -limit), self)
