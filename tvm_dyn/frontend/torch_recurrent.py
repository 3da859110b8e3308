"""LSTM, GRU and RNN modules as whole operators, whatever the length of their sequences.

    with whole_recurrent():                                   # torch itself would write out the steps of one length
        program = torch.export.export(model, ...)             # ... = tvm_dyn.lstm(x, [h0, c0], weights, ...)
    library = tvm_dyn.compile(program)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import _VF, Tensor

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.torch_registry import TorchContext, aten
from tvm_dyn.frontend.value import Value, constant

# torch's order of the gates in ONNX's
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}
_ORIGINALS = {kind: getattr(_VF, kind) for kind in _GATES}


@contextmanager
def whole_recurrent() -> Iterator[None]:
    """Within it, recurrent modules of torch export as one operator each; packed sequences are as always."""
    for kind, original in _ORIGINALS.items():
        setattr(_VF, kind, _replacement(kind, original))
    try:
        yield
    finally:
        for kind in _ORIGINALS:
            delattr(_VF, kind)  # which lets torch look it up as before


def _replacement(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    operator = _OPERATORS[kind]

    def call(*args: Any) -> Any:
        if isinstance(args[3], Tensor | list | tuple):  # packed: data, lengths, states, weights
            return original(*args)
        x, states, weights, has_biases, layers, _dropout, _training, both, batch_first = args
        states = list(states) if kind == "lstm" else [states]
        results = operator(x, states, list(weights), has_biases, layers, both, batch_first)
        return tuple(results) if kind == "lstm" else tuple(results[:2])

    return call


def _define(kind: str) -> Any:
    """The operator: (output, last h, last c), the latter a copy of h but for LSTM."""

    def run(
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        has_biases: bool,
        layers: int,
        both: bool,
        batch_first: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        given = tuple(states) if kind == "lstm" else states[0]
        results = _ORIGINALS[kind](x, given, list(weights), has_biases, layers, 0.0, False, both, batch_first)
        return results[0], results[1], results[2] if kind == "lstm" else results[1].clone()

    def shapes(
        x: Tensor, states: Any, weights: Any, has_biases: bool, layers: int, both: bool, batch_first: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        width = states[0].shape[-1] * (2 if both else 1)
        return x.new_empty((*x.shape[:-1], width)), torch.empty_like(states[0]), torch.empty_like(states[-1])

    operator = torch.library.custom_op(f"tvm_dyn::{kind}", run, mutates_args=())
    operator.register_fake(shapes)
    return operator


_OPERATORS = {kind: _define(kind) for kind in _GATES}


@aten(*(f"tvm_dyn.{kind}.default" for kind in _GATES))
def recurrent(
    t: TorchContext,
    x: Value,
    states: Sequence[Value],
    weights: Sequence[Value],
    has_biases: bool,
    layers: int,
    both: bool,
    batch_first: bool,
) -> list[Value]:
    """One ONNX operator a layer; `states` are (layers * directions, batch, hidden)."""
    kind = str(t.node.target).split(".")[1]
    directions, per_direction = 2 if both else 1, 4 if has_biases else 2
    if len(weights) != layers * directions * per_direction or t.ctx.rank(x) != 3:
        raise UnsupportedOperatorError(f"{t.ctx.label}: projections and sequences without a batch are not supported")
    x = t.onnx("Transpose", x, perm=[1, 0, 2]) if batch_first else x
    finals: list[list[Value]] = []
    for layer in range(layers):
        first = layer * directions * per_direction
        own = [
            list(weights[first + d * per_direction : first + (d + 1) * per_direction]) for d in range(directions)
        ]
        starts = [_layer(t, state, layer * directions, directions) for state in states]
        x, *last = _one_layer(t, kind, x, own, starts)
        finals.append(last)
    x = t.onnx("Transpose", x, perm=[1, 0, 2]) if batch_first else x
    joined = [_joined(t, [last[k] for last in finals]) for k in range(len(finals[0]))]
    return [x, joined[0], joined[-1]]


def _layer(t: TorchContext, state: Value, begin: int, count: int) -> Value:
    return t.onnx("Slice", state, *(constant([v], "int64") for v in (begin, begin + count, 0)))


def _joined(t: TorchContext, parts: list[Value]) -> Value:
    return parts[0] if len(parts) == 1 else t.onnx("Concat", *parts, axis=0)


def _one_layer(t: TorchContext, kind: str, x: Value, weights: list[list[Value]], starts: list[Value]) -> list[Value]:
    """The output (time, batch, directions * hidden) and the last states."""
    hidden = t.shape(starts[0])[2]
    w, r = (constant(np.stack([_gates(t, kind, own[k]) for own in weights])) for k in (0, 1))
    b = None
    if len(weights[0]) == 4:
        b = constant(np.stack([np.concatenate([_gates(t, kind, own[k]) for k in (2, 3)]) for own in weights]))
    name = "RNN" if kind.startswith("rnn") else kind.upper()
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional" if len(weights) > 1 else "forward"}
    attrs["linear_before_reset"] = 1 if kind == "gru" else None
    attrs["activations"] = ["Relu"] * len(weights) if kind == "rnn_relu" else None
    results = t.onnx(name, x, w, r, b, None, *starts, outputs=1 + len(starts), **attrs)
    time, _, batch, _ = t.shape(results[0])
    output = t.onnx("Transpose", results[0], perm=[0, 2, 1, 3])
    return [t.onnx("Reshape", output, t.ints([time, batch, len(weights) * hidden])), *results[1:]]


def _gates(t: TorchContext, kind: str, weight: Value) -> np.ndarray:
    """Weights or biases with their gates in ONNX's order."""
    array = t.ctx.const(weight, "the weights of a recurrent module")
    return np.concatenate([np.split(array, len(_GATES[kind]))[gate] for gate in _GATES[kind]])
