"""LSTM, GRU, RNN: the inputs of all steps are projected by one matrix product, one compiled loop does the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_dyn.errors import InvalidModelError, UnsupportedOperatorError
from tvm_dyn.frontend import recurrent_cell, recurrent_kernel
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.matmul import emit_matmul
from tvm_dyn.frontend.ops.quantize import dynamic_quantize_linear
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULT_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}

# name -> (function of x, alpha, beta; default alpha, default beta), as the operators of the same names define them
_ACTIVATIONS: dict[str, tuple[Callable[..., Any], float | None, float | None]] = {
    "sigmoid": (lambda x, a, b: tirx.sigmoid(x), None, None),
    "tanh": (lambda x, a, b: tirx.tanh(x), None, None),
    "relu": (lambda x, a, b: tirx.max(x, _f32(0)), None, None),
    "softsign": (lambda x, a, b: x / (_f32(1) + tirx.abs(x)), None, None),
    "softplus": (
        lambda x, a, b: tirx.max(x, _f32(0)) + tirx.log(_f32(1) + tirx.exp(-tirx.abs(x))),
        None,
        None,
    ),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: tirx.Select(x < _f32(0), a * x, x), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: tirx.Select(x > a, x, _f32(0)), 1.0, None),
    "elu": (lambda x, a, b: tirx.Select(x < _f32(0), a * (tirx.exp(x) - _f32(1)), x), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * tirx.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: tirx.max(tirx.min(a * x + b, _f32(1)), _f32(0)), 0.2, 0.5),
}


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


@converter("LSTM", "GRU", "RNN", since=7)
def recurrent(ctx: Context, node: Node) -> list[Value]:
    """Inputs X, W, R, B, sequence_lens, initial_h, initial_c, P; outputs Y, Y_h, Y_c."""
    inputs = [node.input(k) for k in range(8)]
    return emit_recurrent(ctx, node, inputs)


@converter("DynamicQuantizeLSTM", domain="com.microsoft")
def dynamic_quantize_lstm(ctx: Context, node: Node) -> list[Value]:
    """LSTM whose input and state are quantized as they come: 8 bits for the whole input and for each step's state.

    Its integer sums times the scales are the sums of the dequantized numbers, which is what runs here.
    W (D, input, 4 * hidden) and R (D, hidden, 4 * hidden) hold 8-bit integers, with scales and zero points at the end.
    """
    x, w, r, b, lengths, h0, c0, p, w_scale, w_zero, r_scale, r_zero = (node.input(k) for k in range(12))
    if x is None or w is None or r is None:
        raise InvalidModelError(f"{node.label} lacks its input or its weights")
    codes, scale, zero = dynamic_quantize_linear(ctx, dataclasses.replace(node, inputs=[x]))
    rounded = ctx.elementwise("dequantized", _dequantized, codes, scale, zero)
    weights = [
        _transposed(ctx, _dequantized_weights(ctx, v, s, z), (0, 2, 1))
        for v, s, z in ((w, w_scale, w_zero), (r, r_scale, r_zero))
    ]
    return emit_recurrent(ctx, node, [rounded, *weights, b, lengths, h0, c0, p], rounded=True)


def _dequantized(code: Any, scale: Any, zero: Any) -> Any:
    return (code.astype("int32") - zero.astype("int32")).astype("float32") * scale


def _dequantized_weights(ctx: Context, weights: Value, scale: Value | None, zero: Value | None) -> Value:
    """(D, depth, gates): scales per direction (D) or per direction and gate column (D, gates)."""
    scales = ctx.const(scale, "the weights' scales").astype("float32")
    zeros = ctx.const(zero, "the weights' zero points").astype("int32")
    codes = ctx.const(weights, "its weights").astype("int32")
    shape = (scales.shape[0], 1, -1)
    return Value(const=((codes - zeros.reshape(shape)) * scales.reshape(shape)).astype("float32"))


def emit_recurrent(ctx: Context, node: Node, inputs: Sequence[Value | None], *, rounded: bool = False) -> list[Value]:
    """The operator on given operands, in the order of LSTM's inputs; `rounded` as in `Cell`."""
    kind = next(k for k in _GATES if k in node.op_type)
    x, w, r, b, lengths, h0, c0, p = inputs
    if x is None or w is None or r is None:
        raise InvalidModelError(f"{node.label} lacks its input or its weights")
    dtype, batch_first = x.dtype, bool(node.attr("layout", 0))
    hidden = ctx.shape(r)[2]
    if not isinstance(hidden, int):
        hidden = ctx.require_equal(hidden, node.attr("hidden_size", 0), "the recurrence weights and hidden_size")
    x, w, r = (_cast(ctx, v, "float32") for v in (x, w, r))
    b, h0, c0, p = (None if v is None else _cast(ctx, v, "float32") for v in (b, h0, c0, p))
    if batch_first:
        x = _transposed(ctx, x, (1, 0, 2))
        h0, c0 = (None if v is None else _transposed(ctx, v, (1, 0, 2)) for v in (h0, c0))
    cell = recurrent_cell.Cell(
        kind,
        hidden,
        *_directions(node, kind),
        clip=node.attr("clip"),
        late_reset=kind == "GRU" and bool(node.attr("linear_before_reset", 0)),
        coupled=bool(node.attr("input_forget", 0)),
        peephole=p is not None,
        has_lengths=lengths is not None,
        has_h0=h0 is not None,
        has_c0=kind == "LSTM" and c0 is not None,
        rounded=rounded,
    )
    weights = _Weights(ctx, cell)
    projected = weights.project(x, w, b)
    time, batch = ctx.shape(projected)[:2]
    operands = [projected, *weights.recurrence(r)]
    operands += [weights.late_bias(b)] if cell.late_reset else []
    operands += [weights.gate_vectors(p, 3)] if p is not None else []
    if lengths is not None:
        ctx.require_equal(ctx.shape(lengths)[0], batch, "the batch of X and of sequence_lens")
        operands.append(_cast(ctx, lengths, "int32"))
    for state in (h0, c0)[: 2 if kind == "LSTM" else 1]:
        if state is not None:
            ctx.require_equal(ctx.shape(state)[1], batch, "the batch of X and of the initial state")
            operands.append(ctx.cast_shape(state, [cell.directions, batch, hidden]))
    results = _call(ctx, cell, operands, time, batch)
    if batch_first:
        results = [_transposed(ctx, v, (2, 0, 1, 3) if k == 0 else (1, 0, 2)) for k, v in enumerate(results)]
    return [_cast(ctx, v, dtype) for v in results]


def _call(ctx: Context, cell: recurrent_cell.Cell, operands: list[Value], time: Any, batch: Any) -> list[Value]:
    state = [cell.directions, batch, cell.hidden]
    types = [relax.TensorType(s, "float32") for s in ([time, *state], state, state)[: 3 if cell.kind == "LSTM" else 2]]
    function = ctx.bb.add_func(recurrent_kernel.build(cell), f"{cell.kind.lower()}_steps")
    result = ctx.bb.emit(relax.call_tir(function, [ctx.tensor(v) for v in operands], out_ty=types))
    return [ctx.emit(relax.TupleGetItem(result, k)) for k in range(len(types))]


# -- attributes ----------------------------------------------------------------------------------------------


def _directions(node: Node, kind: str) -> tuple[tuple[tuple[Any, ...], ...], tuple[bool, ...]]:
    """(activations, reverse), each per direction."""
    reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[
        node.attr("direction", "forward")
    ]
    names = node.attr("activations") or _DEFAULT_ACTIVATIONS[kind] * len(reverse)
    alphas, betas = iter(node.attr("activation_alpha") or ()), iter(node.attr("activation_beta") or ())
    functions = [_activation(node, name, alphas, betas) for name in names]
    count = len(_DEFAULT_ACTIVATIONS[kind])
    if len(functions) != count * len(reverse):
        raise InvalidModelError(f"{node.label} has {len(functions)} activations, needs {count * len(reverse)}")
    return tuple(tuple(functions[k * count : (k + 1) * count]) for k in range(len(reverse))), reverse


def _activation(node: Node, name: str, alphas: Any, betas: Any) -> Callable[[Any], Any]:
    """The function; the attributes hold parameters only for the functions that have some, in order."""
    if name.lower() not in _ACTIVATIONS:
        raise UnsupportedOperatorError(f"{node.label}: activation {name} is not supported")
    function, alpha, beta = _ACTIVATIONS[name.lower()]
    alpha = next(alphas, alpha) if alpha is not None else 0.0
    beta = next(betas, beta) if beta is not None else 0.0
    return lambda x: function(x, _f32(alpha), _f32(beta))


# -- weights -------------------------------------------------------------------------------------------------


class _Weights:
    """Weights in the order that the kernel reads; constants are rearranged now, others at run time."""

    def __init__(self, ctx: Context, cell: recurrent_cell.Cell):
        self.ctx, self.cell = ctx, cell

    def project(self, x: Value, w: Value, b: Value | None) -> Value:
        """X @ W plus every bias that may be added before the loop: (time, batch, D * gates * width)."""
        ctx, cell = self.ctx, self.cell
        columns = cell.directions * cell.gates * cell.width
        depth = ctx.shape(w)[2]
        split = self._padded(_reshaped(ctx, w, [cell.directions, cell.gates, cell.hidden, depth]), 2)
        matrix = _reshaped(ctx, _transposed(ctx, split, (3, 0, 1, 2)), [depth, columns])
        projected = emit_matmul(ctx, x, matrix)
        if b is None:
            return projected
        bias = self._input_bias(b)
        return ctx.emit(relax.op.add(ctx.tensor(projected), ctx.tensor(_reshaped(ctx, bias, [columns]))))

    def _input_bias(self, b: Value) -> Value:
        cell = self.cell
        parts = self._biases(b)
        own, recurrent = (self._gates(parts, k) for k in range(2))
        if not cell.late_reset:
            return _combined(self.ctx, np.add, relax.op.add, own, recurrent)
        mask = np.ones((1, cell.gates, 1), "float32")
        mask[0, 2] = 0  # this one is multiplied with the reset gate, in the loop
        masked = _combined(self.ctx, np.multiply, relax.op.multiply, recurrent, Value(const=mask))
        return _combined(self.ctx, np.add, relax.op.add, own, masked)

    def _biases(self, b: Value) -> Value:
        cell = self.cell
        return self._padded(_reshaped(self.ctx, b, [cell.directions, 2, cell.gates, cell.hidden]), 3)

    def _gates(self, biases: Value, half: int) -> Value:
        return _picked(self.ctx, biases, 1, half)

    def late_bias(self, b: Value | None) -> Value:
        if b is None:
            return Value(const=np.zeros((self.cell.directions, self.cell.width), "float32"))
        return _picked(self.ctx, self._gates(self._biases(b), 1), 1, 2)

    def recurrence(self, r: Value) -> list[Value]:
        """R per gate group, as panels of columns: (D, panels, hidden, panel width)."""
        ctx, cell = self.ctx, self.cell
        split = self._padded(_reshaped(ctx, r, [cell.directions, cell.gates, cell.hidden, cell.hidden]), 2)
        columns_last = _transposed(ctx, split, (0, 3, 1, 2))
        panels, first = [], 0
        for gates in cell.gate_groups:
            part = _sliced(ctx, columns_last, 2, first, first + gates)
            panel = recurrent_cell.panel_width(gates, cell.width)
            shape = [cell.directions, cell.hidden, gates * cell.width // panel, panel]
            panels.append(_transposed(ctx, _reshaped(ctx, part, shape), (0, 2, 1, 3)))
            first += gates
        return panels

    def gate_vectors(self, value: Value, count: int) -> Value:
        cell = self.cell
        split = self._padded(_reshaped(self.ctx, value, [cell.directions, count, cell.hidden]), 2)
        return _reshaped(self.ctx, split, [cell.directions, count * cell.width])

    def _padded(self, value: Value, axis: int) -> Value:
        """Hidden units along `axis` padded with zeros to whole vectors."""
        extra = self.cell.width - self.cell.hidden
        if not extra:
            return value
        rank = self.ctx.rank(value)
        if value.is_const:
            return Value(const=np.pad(value.array, [(0, extra if k == axis else 0) for k in range(rank)]))
        widths = [extra if k == 2 * axis + 1 else 0 for k in range(2 * rank)]
        return self.ctx.emit(relax.op.nn.pad(self.ctx.tensor(value), widths))


def _reshaped(ctx: Context, value: Value, shape: list[Any]) -> Value:
    if value.is_const:
        return Value(const=value.const.reshape(shape))
    return ctx.emit(relax.op.reshape(ctx.tensor(value), relax.ShapeExpr(shape)))


def _transposed(ctx: Context, value: Value, order: tuple[int, ...]) -> Value:
    if value.is_const:
        return Value(const=np.ascontiguousarray(value.array.transpose(order)))
    return ctx.emit(relax.op.permute_dims(ctx.tensor(value), list(order)))


def _sliced(ctx: Context, value: Value, axis: int, begin: int, end: int) -> Value:
    if value.is_const:
        return Value(const=value.const[(slice(None),) * axis + (slice(begin, end),)])
    return ctx.emit(relax.op.strided_slice(ctx.tensor(value), [axis], [begin], [end]))


def _picked(ctx: Context, value: Value, axis: int, index: int) -> Value:
    part = _sliced(ctx, value, axis, index, index + 1)
    shape = ctx.shape(part)
    return _reshaped(ctx, part, [*shape[:axis], *shape[axis + 1 :]])


def _combined(ctx: Context, on_arrays: Any, on_tensors: Any, a: Value, b: Value) -> Value:
    if a.is_const and b.is_const:
        return Value(const=on_arrays(a.const, b.const))
    return ctx.emit(on_tensors(ctx.tensor(a), ctx.tensor(b)))


def _cast(ctx: Context, value: Value, dtype: str) -> Value:
    if value.dtype == dtype:
        return value
    if value.is_const:
        return Value(const=value.const.astype(dtype))
    return ctx.emit(relax.op.astype(ctx.tensor(value), dtype))
