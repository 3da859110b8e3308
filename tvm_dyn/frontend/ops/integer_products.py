"""Products of 8-bit integers, exact in int32, and what the quantized operators make of them.

    MatMulInteger(x, w)  ->  int32(matmul(float32(x - x_zero), float32(w - w_zero)))

Where the CPU in scope multiplies 8-bit integers, constant matrices meet uint8 codes in a kernel of their own. Else:
sums of whole numbers are exact in float32, in any order, as long as none of their parts can reach 2**24: then the
kernels for float32 compute them. Where constant weights are too large for that, w = 16 * high + low gives two such
products. Other sums are computed in int32 itself.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax
from tvm.target import Target

from tvm_dyn.frontend import integer_kernel
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import is_one, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.conv import add_bias, conv
from tvm_dyn.frontend.ops.matmul import emit_matmul
from tvm_dyn.frontend.ops.quantize import requantized
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value, constant

op = relax.op

_EXACT = 1 << 24
_STEP = 16
_NARROW = ("uint8", "int8")

_Product = Callable[[Value, Value], Value]


@converter("MatMulInteger")
def matmul_integer(ctx: Context, node: Node) -> Value:
    return emit_matmul_integer(ctx, node.data(0), node.data(1), node.input(2), node.input(3))


@converter("ConvInteger")
def conv_integer(ctx: Context, node: Node) -> Value:
    return emit_conv_integer(ctx, node, [node.data(0), node.data(1), node.input(2), node.input(3)])


def emit_matmul_integer(ctx: Context, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """(a - its zero point) @ (b - its zero point) in int32; zero points per row of a, per column of b."""

    def multiply(x: Value, w: Value) -> Value:
        return emit_matmul(ctx, x, w)

    x, w = _Codes(a, a_zero, -2), _Codes(b, b_zero, -1)
    narrow = _narrow_matrix(ctx, x, w)
    if narrow is not None:
        return _emit_narrow(ctx, x, narrow)
    return _exact(ctx, x, w, (max(ctx.rank(b) - 2, 0),), multiply)


@dataclasses.dataclass(frozen=True)
class _NarrowMatrix:
    """Weights as int8 and what they lack per column: the operand is `weights - rest`, `rest` None for zeros."""

    weights: np.ndarray
    rest: np.ndarray | None


def _narrow_matrix(ctx: Context, x: _Codes, w: _Codes) -> _NarrowMatrix | None:
    """The weights for the target's kernel of codes and weights, None where it has none for these."""
    constant_weights = w.value.is_const and (w.zero is None or w.zero.is_const)
    single_zero = x.zero is None or all(is_one(d) for d in ctx.shape(x.zero))
    if not constant_weights or not single_zero or x.value.is_const or x.value.dtype != "uint8":
        return None
    if ctx.rank(w.value) != 2 or not integer_kernel.supports(Target.current(allow_none=True), ctx.shape(w.value)[0]):
        return None
    weights = _centred_array(w)
    if weights.min(initial=0) >= -128 and weights.max(initial=0) <= 127:
        return _NarrowMatrix(weights.astype("int8"), None)
    middle = 128 if w.value.dtype == "uint8" else 0
    codes = (w.value.array.astype("int32") - middle).astype("int8")
    return _NarrowMatrix(codes, (codes - weights)[:1].astype("int32"))


def _emit_narrow(ctx: Context, x: _Codes, matrix: _NarrowMatrix) -> Value:
    dims = ctx.shape(x.value)
    depth, columns = matrix.weights.shape
    ctx.require_equal(dims[-1], depth, "the contraction dims")
    rows = product(dims[:-1])
    codes = reshape(ctx, x.value, [rows, depth])
    zero = constant(0, "uint8") if x.zero is None else x.zero
    packed, sums = integer_kernel.pack(matrix.weights)
    kernel = integer_kernel.build(depth, columns, Target.current())
    function = ctx.bb.add_func(kernel, "integer_matmul")
    operands = [codes, reshape(ctx, zero, [1]), constant(packed), constant(sums)]
    call = relax.call_tir(
        function, [ctx.tensor(v) for v in operands], out_ty=relax.TensorType([prim(rows), columns], "int32")
    )
    total = ctx.emit(call)
    if matrix.rest is not None:
        total = _less_rest(ctx, total, _Codes(codes, zero, -2), matrix.rest)
    return reshape(ctx, total, [*dims[:-1], columns])


def _less_rest(ctx: Context, total: Value, x: _Codes, rest: np.ndarray) -> Value:
    """total - x @ rest, whose rows are all the same: the sums of x's rows times one of them."""
    sums = op.sum(ctx.tensor(_centred(ctx, x, "int32")), axis=[-1], keepdims=True)
    return ctx.emit(op.subtract(ctx.tensor(total), op.multiply(sums, relax.const(rest, "int32"))))


def emit_conv_integer(ctx: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    """Conv of x - x_zero with w - w_zero in int32 (inputs: x, w, x_zero, w_zero); pads are x_zero, so 0."""
    x, w, x_zero, w_zero = inputs
    if x is None or w is None:
        raise ValueError(f"{node.label} lacks its input or its weights")

    def multiply(data: Value, weight: Value) -> Value:
        return conv(ctx, dataclasses.replace(node, inputs=[data, weight]))

    return _exact(ctx, _Codes(x, x_zero, 1), _Codes(w, w_zero, 0), tuple(range(1, ctx.rank(w))), multiply)


@dataclasses.dataclass(frozen=True)
class _Codes:
    """An operand with its zero point, which belongs to `axis` where it has several elements."""

    value: Value
    zero: Value | None
    axis: int


def _exact(ctx: Context, x: _Codes, w: _Codes, summed: tuple[int, ...], multiply: _Product) -> Value:
    """multiply(x, w) in int32; `summed` are the axes of w that it sums over."""
    parts = None
    if w.value.is_const and (w.zero is None or w.zero.is_const) and x.value.dtype in _NARROW:
        parts = _exact_parts(_centred_array(w), summed)
    if parts is None:
        return multiply(_centred(ctx, x, "int32"), _centred(ctx, w, "int32"))
    data = _centred(ctx, x, "float32")
    terms = []
    for factor, part in parts:
        term = op.astype(ctx.tensor(multiply(data, constant(part, "float32"))), "int32")
        terms.append(term if factor == 1 else op.multiply(term, relax.const(factor, "int32")))
    return ctx.emit(functools.reduce(op.add, terms))


def _exact_parts(w: np.ndarray, summed: tuple[int, ...]) -> list[tuple[int, np.ndarray]] | None:
    """(factor, part) with w = sum of factor * part and every product of a part with codes exact, None if there is no
    such sum.
    """
    low = (w + _STEP // 2) % _STEP - _STEP // 2
    for parts in ([(1, w)], [(_STEP, (w - low) // _STEP), (1, low)]):
        if all(255 * np.abs(part).sum(axis=summed, dtype="int64").max(initial=0) < _EXACT for _, part in parts):
            return parts
    return None


def _centred(ctx: Context, codes: _Codes, dtype: str) -> Value:
    """value - zero point."""
    value, zero = codes.value, codes.zero
    if value.is_const and (zero is None or zero.is_const):
        return constant(_centred_array(codes), dtype)
    if zero is None or (zero.is_const and not zero.array.any()):
        return ctx.emit(op.astype(ctx.tensor(value), dtype))
    table = aligned(ctx, zero, ctx.rank(value), codes.axis)
    return ctx.elementwise("centred", lambda v, z: (v.astype("int32") - z.astype("int32")).astype(dtype), value, table)


def _centred_array(codes: _Codes) -> np.ndarray:
    array = codes.value.array.astype("int32")
    if codes.zero is None:
        return array
    return array - _along(codes.zero.array, array.ndim, codes.axis).astype("int32")


def _along(table: np.ndarray, rank: int, axis: int) -> np.ndarray:
    if table.size == 1:
        return table.reshape(())
    return table.reshape([-1 if k == axis % rank else 1 for k in range(rank)]) if table.ndim == 1 else table


def aligned(ctx: Context, table: Value, rank: int, axis: int) -> Value:
    """A vector of scales or zero points, shaped so that it broadcasts along `axis`."""
    dims = ctx.shape(table)
    if len(dims) != 1:
        return table
    shape = [dims[0] if k == axis % rank else 1 for k in range(rank)]
    if table.is_const:
        return constant(table.array.reshape(shape))
    return ctx.emit(op.reshape(ctx.tensor(table), relax.ShapeExpr(shape)))


@converter("QLinearMatMul")
def qlinear_matmul(ctx: Context, node: Node) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.data(k) for k in range(8))
    total = emit_matmul_integer(ctx, a, b, a_zero, b_zero)
    rank = ctx.rank(total)
    scales = [aligned(ctx, a_scale, rank, -2), aligned(ctx, b_scale, rank, -1), aligned(ctx, y_scale, rank, -2)]
    return requantized(ctx, total, scales, aligned(ctx, y_zero, rank, -2))


@converter("QLinearConv")
def qlinear_conv(ctx: Context, node: Node) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.data(k) for k in range(8))
    total = add_bias(ctx, emit_conv_integer(ctx, node, [x, w, x_zero, w_zero]), node.input(8))
    return requantized(ctx, total, [x_scale, aligned(ctx, w_scale, ctx.rank(total), 1), y_scale], y_zero)
