"""ATen operators that write at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_dyn.frontend.torch_registry import TorchContext, aten
from tvm_dyn.frontend.value import Value, constant


@aten("scatter.src", "scatter.value", "scatter_add")
def scatter(t: TorchContext, self: Value, dim: int, index: Value, src: Any) -> Value:
    updates = t.value(src, t.dtype)
    if t.ctx.rank(updates) == 0 and t.ctx.rank(index):
        updates = t.ctx.expand(updates, t.shape(index))
    reduction = "add" if "scatter_add" in str(t.node.target) else None
    return t.onnx("ScatterElements", self, index, updates, axis=dim, reduction=reduction)


@aten("index_add")
def index_add(t: TorchContext, self: Value, dim: int, index: Value, source: Value, alpha: Any = 1) -> Value:
    """Slices of `source` added to those of `self` that `index` names."""
    axis = dim % t.ctx.rank(self)
    shape = [1] * t.ctx.rank(source)
    shape[axis] = t.shape(index)[0]
    places = t.ctx.expand(t.onnx("Reshape", index, t.ints(shape)), t.shape(source))
    added = source if alpha == 1 else t.onnx("Mul", source, t.value(alpha, t.dtype))
    return t.onnx("ScatterElements", self, places, added, axis=axis, reduction="add")


@aten("index_put", "_unsafe_index_put")
def index_put(
    t: TorchContext, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Any:
    """Elements or slices replaced, or added to, where tensors of positions for the first axes say, or a mask."""
    given = [item for item in indices if item is not None]
    if len(given) < len(indices):
        return NotImplemented
    if any(item.dtype == "bool" for item in given):
        return _where(t, self, given, values, accumulate)
    shape = t.ctx.broadcast_shape(*(t.shape(item) for item in given))
    last = constant([-1], "int64")
    columns = [t.onnx("Unsqueeze", t.ctx.broadcast_to(t.cast(i, "int64"), shape), last) for i in given]
    columns = [t.ctx.expand(column, [*shape, 1]) for column in columns]
    places = columns[0] if len(columns) == 1 else t.onnx("Concat", *columns, axis=-1)
    updates = t.ctx.expand(values, [*shape, *t.shape(self)[len(given) :]])
    return t.onnx("ScatterND", self, places, updates, reduction="add" if accumulate else None)


def _where(t: TorchContext, self: Value, masks: Sequence[Value], values: Value, accumulate: bool) -> Any:
    """One number wherever a mask of the whole tensor, or of its first axes, holds."""
    if len(masks) > 1 or accumulate or t.ctx.rank(values):
        return NotImplemented
    mask, missing = masks[0], t.ctx.rank(self) - t.ctx.rank(masks[0])
    if missing:
        mask = t.onnx("Unsqueeze", mask, constant([-1 - k for k in range(missing)], "int64"))
    return t.onnx("Where", mask, values, self)
