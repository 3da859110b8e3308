"""ATen operators that move, pick or join elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from tvm_dyn.frontend.extents import INT64_MAX
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.ops.slicing import strided_slice
from tvm_dyn.frontend.torch_registry import TorchContext, aten
from tvm_dyn.frontend.value import Value, constant
from tvm_dyn.symbolic import simplify


@aten("view", "reshape", "_unsafe_view")
def view(t: TorchContext, self: Value, size: Sequence[Any]) -> Value:
    return t.onnx("Reshape", self, t.ints(size), allowzero=1)


@aten("flatten.using_ints")
def flatten(t: TorchContext, self: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    dims = t.shape(self)
    first, last = t.axes(self, [start_dim, end_dim]) if dims else (0, -1)
    return reshape(t.ctx, self, [*dims[:first], product(dims[first : last + 1]), *dims[last + 1 :]])


@aten("unsqueeze")
def unsqueeze(t: TorchContext, self: Value, dim: int) -> Value:
    return t.onnx("Unsqueeze", self, t.ints([dim]))


@aten("squeeze.dim", "squeeze.dims", "squeeze")
def squeeze(t: TorchContext, self: Value, dim: int | Sequence[int] | None = None) -> Value:
    """Torch keeps axes whose extent is not 1; which those are, its own result tells."""
    axes, left = t.axes(self, dim), len(t.results[0].shape)
    drop = [a for a in axes if isinstance(t.shape(self)[a], int) and t.shape(self)[a] == 1]
    if len(t.shape(self)) - len(drop) != left:
        drop = axes
    return t.onnx("Squeeze", self, t.ints(drop)) if drop else self


@aten("permute")
def permute(t: TorchContext, self: Value, dims: Sequence[int]) -> Value:
    return t.onnx("Transpose", self, perm=t.axes(self, dims) if dims else None)


@aten("transpose.int")
def transpose(t: TorchContext, self: Value, dim0: int, dim1: int) -> Value:
    order = list(range(t.ctx.rank(self)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return t.onnx("Transpose", self, perm=order)


@aten("t")
def t_(t: TorchContext, self: Value) -> Value:
    return t.onnx("Transpose", self) if t.ctx.rank(self) == 2 else self


@aten("expand")
def expand(t: TorchContext, self: Value, size: Sequence[Any], implicit: bool = False) -> Value:
    own = t.shape(self)
    added = len(size) - len(own)
    keep = [isinstance(s, int) and s == -1 for s in size]
    return t.ctx.expand(
        self, [own[k - added] if same else s for k, (s, same) in enumerate(zip(size, keep, strict=True))]
    )


@aten("repeat")
def repeat(t: TorchContext, self: Value, repeats: Sequence[Any]) -> Value:
    own = t.shape(self)
    padded = reshape(t.ctx, self, [1] * (len(repeats) - len(own)) + own)
    return t.onnx("Tile", padded, t.ints(repeats))


@aten("repeat_interleave.self_int")
def repeat_interleave(
    t: TorchContext, self: Value, repeats: Any, dim: int | None = None, output_size: Any = None
) -> Value:
    if dim is None:
        self, dim = reshape(t.ctx, self, [product(t.shape(self))]), 0
    own, axis = t.shape(self), t.axes(self, dim)[0]
    apart = reshape(t.ctx, self, [*own[: axis + 1], 1, *own[axis + 1 :]])
    repeated = t.ctx.expand(apart, [*own[: axis + 1], repeats, *own[axis + 1 :]])
    return reshape(t.ctx, repeated, [*own[:axis], product([own[axis], repeats]), *own[axis + 1 :]])


@aten("cat")
def cat(t: TorchContext, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Torch lets tensors of shape (0,) join anything."""
    rank = len(t.results[0].shape)
    values = [t.cast(v, t.dtype) for v in tensors if t.ctx.rank(v) == rank]
    return values[0] if len(values) == 1 else t.onnx("Concat", *values, axis=dim)


@aten("stack")
def stack(t: TorchContext, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % len(t.results[0].shape)
    return t.onnx("Concat", *(unsqueeze(t, t.cast(v, t.dtype), axis) for v in tensors), axis=axis)


# -- parts ---------------------------------------------------------------------------------------------------


def _part(t: TorchContext, value: Value, axis: int, begin: Any, length: Any) -> Value:
    dims = t.shape(value)
    begins, lengths = [0] * len(dims), list(dims)
    begins[axis], lengths[axis] = begin, length
    return strided_slice(t.ctx, value, begins, lengths, [1] * len(dims))


@aten("split.Tensor", "split_with_sizes")
def split(t: TorchContext, self: Value, sizes: Any, dim: int = 0) -> list[Value]:
    axis, count = t.axes(self, dim)[0], len(t.results)
    total = t.shape(self)[axis]
    if not isinstance(sizes, list | tuple):
        begins = [simplify(k * sizes, t.ctx.facts) for k in range(count)]
        sizes = [sizes] * (count - 1) + [simplify(total - begins[-1], t.ctx.facts)]
    parts, begin = [], 0
    for size in sizes:
        parts.append(_part(t, self, axis, begin, size))
        begin = simplify(begin + size, t.ctx.facts)
    return parts


@aten("unbind.int")
def unbind(t: TorchContext, self: Value, dim: int = 0) -> list[Value]:
    return [select(t, self, dim, k) for k in range(len(t.results))]


@aten("slice.Tensor")
def slice_(t: TorchContext, self: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    start, end = 0 if start is None else start, INT64_MAX if end is None else end
    if isinstance(start, int) and isinstance(end, int) and start == 0 and end == INT64_MAX and step == 1:
        return self
    return t.onnx("Slice", self, *(t.ints([item]) for item in (start, end, dim, step)))


@aten("narrow")
def narrow(t: TorchContext, self: Value, dim: int, start: Any, length: Any) -> Value:
    return _part(t, self, t.axes(self, dim)[0], start, length)


@aten("select.int")
def select(t: TorchContext, self: Value, dim: int, index: Any) -> Value:
    return t.onnx("Gather", self, t.value(index, "int64"), axis=dim)


@aten("flip")
def flip(t: TorchContext, self: Value, dims: Sequence[int]) -> Value:
    count = len(dims)
    bounds = ([-1] * count, [-INT64_MAX] * count, list(dims), [-1] * count)
    return t.onnx("Slice", self, *map(t.ints, bounds)) if count else self


# -- indexing ------------------------------------------------------------------------------------------------


@aten("embedding")
def embedding(t: TorchContext, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return t.onnx("Gather", weight, indices, axis=0)


@aten("index_select")
def index_select(t: TorchContext, self: Value, dim: int, index: Value) -> Value:
    return t.onnx("Gather", self, index, axis=dim)


@aten("gather")
def gather(t: TorchContext, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """Along other axes torch takes the front part of `self`, as ONNX does not."""
    picked = self
    for axis, (own, wanted) in enumerate(zip(t.shape(self), t.shape(index), strict=True)):
        if axis != dim % t.ctx.rank(self) and not t.ctx.facts.prove_equal(own, wanted):
            picked = _part(t, picked, axis, 0, wanted)
    return t.onnx("GatherElements", picked, index, axis=dim)


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(t: TorchContext, self: Value, indices: Sequence[Value | None]) -> Value:
    """Numpy's advanced indexing: index tensors broadcast; their dims replace the axes, or lead if apart."""
    by_axis: dict[int, Value] = {}
    axis = 0
    for item in indices:
        positions = _positions(t, item)
        by_axis.update({axis + k: p for k, p in enumerate(positions)})
        axis += max(len(positions), 1)
    axes = sorted(by_axis)
    shape = t.ctx.broadcast_shape(*(t.shape(by_axis[a]) for a in axes))
    aligned = [t.tensor(t.ctx.broadcast_to(by_axis[a], shape)) for a in axes]
    together = axes[-1] - axes[0] == len(axes) - 1
    return _take(t, self, dict(zip(axes, aligned, strict=True)), shape, axes[0] if together else 0)


def _positions(t: TorchContext, item: Value | None) -> list[Value]:
    """An index tensor as integer positions; a mask stands for where it holds, one tensor per axis."""
    if item is None:
        return []
    if item.dtype not in ("bool", "uint8"):
        return [item]
    found = t.onnx("NonZero", item)
    return [t.onnx("Gather", found, constant(k, "int64"), axis=0) for k in range(t.ctx.rank(item))]


def _take(t: TorchContext, value: Value, indices: dict[int, relax.Expr], shape: list[Any], place: int) -> Value:
    dims = t.shape(value)
    rest = [d for axis, d in enumerate(dims) if axis not in indices]
    extents = rest[:place] + shape + rest[place:]

    def take(x: te.Tensor, tensors: list[te.Tensor], extents: list[Any]) -> te.Tensor:
        by_axis = dict(zip(indices, tensors, strict=True))

        def at(*position: Any) -> Any:
            inner = position[place : place + len(shape)]
            others = iter(position[:place] + position[place + len(shape) :])
            picked = [_at(by_axis[a], inner, d) if a in by_axis else next(others) for a, d in enumerate(x.shape)]
            return x(*picked)

        return te.compute(extents, at, name="take")

    return t.ctx.emit_te(take, t.tensor(value), list(indices.values()), extents)


def _at(tensor: te.Tensor, position: Sequence[Any], extent: Any) -> Any:
    """One index: from the end when negative, and clamped, so that no address leaves the tensor."""
    one = [
        tirx.const(0, "int64") if isinstance(d, tirx.IntImm) and d.value == 1 else i
        for d, i in zip(tensor.shape, position[len(position) - len(tensor.shape) :], strict=True)
    ]
    found = tensor(*one).astype("int64")
    found = tirx.Select(found < 0, found + extent, found)
    return tirx.max(tirx.min(found, extent - 1), tirx.const(0, "int64"))


# -- made from extents ---------------------------------------------------------------------------------------


@aten("arange.start_step", "arange.start", "arange")
def arange(t: TorchContext, start: Any, end: Any = None, step: Any = 1, **_: Any) -> Value:
    start, end = (0, start) if end is None else (start, end)
    floating = any(isinstance(item, float) for item in (start, end, step))
    kind = t.dtype if floating else "int64"
    return t.cast(t.onnx("Range", *(t.value(item, kind) for item in (start, end, step))), t.dtype)


@aten("tril", "triu")
def triangle(t: TorchContext, self: Value, diagonal: Any = 0) -> Value:
    upper = "triu" in str(t.node.target)

    def triangle(x: te.Tensor, offset: Any) -> te.Tensor:
        def at(*index: Any) -> Any:
            row, column = index[-2:]
            kept = column - row >= offset if upper else column - row <= offset
            return tirx.Select(kept, x(*index), tirx.const(0, x.dtype))

        return te.compute(x.shape, at, name="triangle")

    return t.ctx.emit_te(triangle, t.tensor(self), diagonal)


@aten("constant_pad_nd", "pad")
def pad(t: TorchContext, self: Value, pad: Sequence[Any], mode: Any = 0, value: Any = 0) -> Value:
    """Torch counts from the last axis; before and after of one axis stand together. Negative pads cut."""
    mode, value = (mode, value or 0) if isinstance(mode, str) else ("constant", mode)
    rank, given = t.ctx.rank(self), len(pad) // 2
    before = [0] * (rank - given) + list(pad[::2])[::-1]
    after = [0] * (rank - given) + list(pad[1::2])[::-1]
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    fill = t.value(value, t.dtype) if mode == "constant" else None
    return t.onnx("Pad", self, t.ints(before + after), fill, mode=names[mode])


@aten("slice_scatter")
def slice_scatter(
    t: TorchContext, self: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """`self` with the slice replaced: what lies before, `src`, what lies behind."""
    if step != 1:
        return NotImplemented
    axis = t.axes(self, dim)[0]
    total, length = t.shape(self)[axis], t.shape(src)[axis]
    begin = 0 if start is None else start
    if not isinstance(begin, int) or begin < 0:
        return NotImplemented
    rest = simplify(total - begin - length, t.ctx.facts)
    parts = [_part(t, self, axis, 0, begin), src, _part(t, self, axis, simplify(begin + length), rest)]
    kept = [p for p in parts if not (isinstance(t.shape(p)[axis], int) and t.shape(p)[axis] == 0)]
    return kept[0] if len(kept) == 1 else t.onnx("Concat", *kept, axis=axis)


@aten("nonzero")
def nonzero(t: TorchContext, self: Value) -> Value:
    return t.onnx("Transpose", t.onnx("NonZero", self))
