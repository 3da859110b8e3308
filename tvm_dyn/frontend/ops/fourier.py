"""DFT and STFT as matrix products with cosines and sines.

DFT(x (..., n, parts))   ->  x (..., n * parts) @ table (n * parts, bins * 2)
STFT(x (b, t, parts))    ->  frames (b, frames, n * parts), windowed, @ table

Constant lengths make constant tables, which are packed like weights; an angle is reduced before it is rounded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import extent_of, floor_div, is_symbolic, minimum, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.matmul import emit_matmul
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.ops.slicing import strided_slice
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value, constant


@converter("DFT", since=17)
def dft(ctx: Context, node: Node) -> Value:
    """Inputs: data (..., 1 or 2 parts), length or none, from opset 20 axis or none."""
    data = node.data(0)
    rank = ctx.rank(data)
    axis = node.attr("axis", 1) if node.opset < 20 else -2
    if node.opset >= 20 and node.input(2) is not None:
        axis = int(ctx.const(node.input(2), "its axis").reshape(-1)[0])
    order = [k for k in range(rank - 1) if k != axis % rank]
    order = [*order, axis % rank, rank - 1]
    moved = ctx.emit(relax.op.permute_dims(ctx.tensor(data), order))
    length = None if node.input(1) is None else ctx.scalar(node.data(1), signed=False)
    transform = _Transform(ctx, ctx.shape(moved)[-2:], length, bool(node.attr("inverse", 0)), node.attr("onesided", 0))
    result = transform.apply(moved)
    back = [order.index(k) for k in range(rank)]
    return ctx.emit(relax.op.permute_dims(ctx.tensor(result), back))


class _Transform:
    """One transform along the axis before the last: how many elements enter and leave, and the table between them."""

    def __init__(self, ctx: Context, dims: list[Any], length: Any, inverse: bool, onesided: int):
        self.ctx, self.inverse = ctx, inverse
        given, self.parts = dims
        if not isinstance(self.parts, int):
            self.parts = ctx.require_equal(self.parts, 2, "the parts of complex numbers and 2")
        self.to_real = inverse and bool(onesided)
        self.length = (2 * (given - 1) if self.to_real else given) if length is None else length
        bins = floor_div(ctx.facts, self.length, 2) + 1
        self.entering = minimum(ctx.facts, given, bins if self.to_real else self.length)
        self.leaving = bins if onesided and not inverse else self.length

    def apply(self, data: Value) -> Value:
        ctx, dims = self.ctx, self.ctx.shape(data)
        if not ctx.facts.prove_equal(dims[-2], self.entering):
            data = strided_slice(
                ctx, data, [0] * len(dims), [*dims[:-2], self.entering, dims[-1]], [1] * len(dims)
            )
        rows = reshape(ctx, data, [*dims[:-2], product([self.entering, self.parts])])
        work = "float64" if data.dtype == "float64" else "float32"
        rows = rows if data.dtype == work else ctx.emit(relax.op.astype(ctx.tensor(rows), work))
        results = 1 if self.to_real else 2
        result = emit_matmul(ctx, rows, _table(ctx, self, (self.entering, self.parts, self.leaving, results), work))
        result = reshape(ctx, result, [*dims[:-2], self.leaving, results])
        return result if data.dtype == work else ctx.emit(relax.op.astype(ctx.tensor(result), data.dtype))


def _table(ctx: Context, transform: _Transform, shape: tuple[Any, ...], dtype: str) -> Value:
    """(elements in * their parts, elements out * their parts) of cosines and sines."""
    rows, parts, columns, results = shape
    if not is_symbolic(rows, columns, transform.length):
        index = np.indices(shape)
        whole = _entries(transform, index, transform.length, _Numpy)
        return constant(whole.reshape(rows * parts, columns * results), dtype)

    def fourier(extents: list[Any], length: Any) -> te.Tensor:
        def at(row: Any, column: Any) -> Any:
            index = (row // parts, row % parts, column // results, column % results)
            return _entries(transform, index, prim(length), _Symbolic).astype(dtype)

        return te.compute(extents, at, name="fourier")

    return ctx.emit_te(fourier, [product([rows, parts]), product([columns, results])], transform.length)


class _Numpy:
    where = staticmethod(np.where)
    cos, sin = staticmethod(np.cos), staticmethod(np.sin)

    @staticmethod
    def number(value: Any) -> Any:
        return np.asarray(value, "float64")


class _Symbolic:
    where = staticmethod(tirx.Select)
    cos, sin = staticmethod(tirx.cos), staticmethod(tirx.sin)

    @staticmethod
    def number(value: Any) -> Any:
        return value.astype("float64") if is_symbolic(value) else tirx.const(float(value), "float64")


def _entries(transform: _Transform, index: Any, length: Any, m: Any) -> Any:
    """The factor of part `p` of element `n` in part `q` of result `k`: a rotation by +-2 pi k n / length."""
    n, p, k, q = index
    angle = m.number((k * n) % length) * m.number(2 * math.pi if transform.inverse else -2 * math.pi)
    angle = angle / m.number(length)
    same, crossed = m.cos(angle), m.sin(angle)
    value = m.where(p == q, same, m.where(q == 0, m.number(0) - crossed, crossed))
    if transform.to_real:  # bins between the first and the middle one stand for two
        single = (n == 0) | (2 * n == length) if m is _Numpy else tirx.any(n == 0, 2 * n == length)
        value = value * m.where(single, m.number(1), m.number(2))
    return value / m.number(length) if transform.inverse else value


@converter("STFT", since=17)
def stft(ctx: Context, node: Node) -> Value:
    """Inputs: signal (batch, time, 1 or 2 parts), step, window or none, frame length or none."""
    signal, window = node.data(0), node.input(2)
    batch, time, parts = ctx.shape(signal)
    step = ctx.scalar(node.data(1), signed=False)
    length = time
    if node.input(3) is not None:
        length = ctx.scalar(node.data(3), signed=False)
    if window is not None:
        own = ctx.shape(window)[0]
        length = ctx.require_equal(own, length, "the window and the frames") if node.input(3) is not None else own
    count = floor_div(ctx.facts, extent_of(time - length), step) + 1

    def frames(x: te.Tensor, weights: list[te.Tensor], extents: list[Any], hop: Any) -> te.Tensor:
        def at(b: Any, f: Any, n: Any, p: Any) -> Any:
            sample = x(b, f * prim(hop) + n, p)
            return sample * weights[0](n).astype(x.dtype) if weights else sample

        return te.compute(extents, at, name="frames")

    tensors = [ctx.tensor(signal), [] if window is None else [ctx.tensor(window)]]
    framed = ctx.emit_te(frames, *tensors, [batch, count, length, parts], step)
    return _Transform(ctx, [length, parts], None, False, node.attr("onesided", 1)).apply(framed)
