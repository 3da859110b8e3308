"""Attention of the domain com.microsoft: packed or separate projections, masks of four forms, a cache, rotation.

Attention(x, w)  ->  heads of x @ w  ->  softmax(q k' * scale + bias) v  ->  heads joined
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.composition import Operators, composed
from tvm_dyn.frontend.extents import prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import Value, constant

_DOMAIN = "com.microsoft"
LOWEST = float(np.finfo("float32").min)
"""What is added to scores that must not count."""


@composed("Attention", domain=_DOMAIN)
def attention(o: Operators, node: Node) -> list[Value]:
    """Inputs: x, weights of q, k and v side by side, bias or none, mask or none, cache (2, batch, heads, past, size) or
    none, scores to add or none; outputs: result, cache.
    """
    _refuse(node, "do_rotary", "past_present_share_buffer")
    heads = node.attr("num_heads")
    projected = o("MatMul", node.data(0), node.data(1))
    if node.input(2) is not None:
        projected = o("Add", projected, node.data(2))
    total = o.ctx.shape(projected)[-1]
    sizes = node.attr("qkv_hidden_sizes") or [total // 3] * 3
    q, k, v = (split_heads(o, part, heads) for part in o("Split", projected, o.ints(sizes), outputs=3, axis=-1))
    past = node.input(4)
    if past is not None:
        old = [o("Squeeze", part, o.ints([0])) for part in o("Split", past, o.ints([1, 1]), outputs=2, axis=0)]
        k, v = o("Concat", old[0], k, axis=2), o("Concat", old[1], v, axis=2)
    bias = _bias(o, node, q, k, node.input(3), node.input(5))
    result = _attend(o, node, q, k, v, bias)
    present = o("Concat", *(o("Unsqueeze", part, o.ints([0])) for part in (k, v)), axis=0) if node.outputs[1:] else None
    return [join_heads(o, result), present][: len(node.outputs)]


@composed("MultiHeadAttention", domain=_DOMAIN)
def multi_head_attention(o: Operators, node: Node) -> list[Value | None]:
    """Inputs: q (batch, length, heads * size), k and v likewise or in heads, bias of the three or none, mask of keys or
    none, scores to add or none, cached k and v or none; outputs: result, k and v with what was cached.
    """
    heads = node.attr("num_heads")
    q, k, v = (node.input(n) for n in range(3))
    if q is None or k is None or v is None:
        raise UnsupportedOperatorError(f"{node.label}: packed queries, keys and values are not supported")
    if node.input(3) is not None:
        q, k, v = _add_biases(o, (q, k, v), node.data(3))
    q, k, v = (split_heads(o, part, heads) for part in (q, k, v))
    if node.input(6) is not None:
        k, v = o("Concat", node.data(6), k, axis=2), o("Concat", node.data(7), v, axis=2)
    bias = _bias(o, node, q, k, node.input(4), node.input(5))
    return [join_heads(o, _attend(o, node, q, k, v, bias)), k, v]


def _add_biases(o: Operators, parts: tuple[Value, Value, Value], bias: Value) -> list[Value]:
    """Each part plus its piece of the bias; parts that come in heads have none."""
    flat = [part for part in parts if o.ctx.rank(part) == 3]
    sizes = [o.shape(part)[-1] for part in parts if o.ctx.rank(part) == 3]
    pieces = iter(o("Split", bias, o.ints(sizes), outputs=len(flat), axis=0)) if len(flat) > 1 else iter([bias])
    return [o("Add", part, next(pieces)) if o.ctx.rank(part) == 3 else part for part in parts]


def _refuse(node: Node, *attributes: str) -> None:
    for name in attributes:
        if node.attr(name, 0):
            raise UnsupportedOperatorError(f"{node.label}: {name} = {node.attr(name)} is not supported")


def split_heads(o: Operators, x: Value, heads: int) -> Value:
    """(batch, heads, length, size) of (batch, length, heads * size)."""
    if o.ctx.rank(x) == 4:
        return x
    batch, length, width = o.shape(x)
    return o("Transpose", o.reshape(x, [batch, length, heads, width // heads]), perm=[0, 2, 1, 3])


def join_heads(o: Operators, x: Value) -> Value:
    """(batch, length, heads * size) of (batch, heads, length, size)."""
    batch, heads, length, size = o.shape(x)
    return o.reshape(o("Transpose", x, perm=[0, 2, 1, 3]), [batch, length, heads * size])


def _attend(o: Operators, node: Node, q: Value, k: Value, v: Value, bias: Value | None) -> Value:
    scale = node.attr("scale", 0.0) or 1 / math.sqrt(o.shape(q)[-1])
    scores = o("Mul", o("MatMul", q, o("Transpose", k, perm=[0, 1, 3, 2])), o.number(scale, q))
    scores = scores if bias is None else o("Add", scores, bias)
    return o("MatMul", o("Softmax", scores, axis=-1), v)


# -- masks ---------------------------------------------------------------------------------------------------


def _bias(o: Operators, node: Node, q: Value, k: Value, mask: Value | None, added: Value | None) -> Value | None:
    """What is added to the scores (batch, heads, queries, keys), None for nothing."""
    queries, keys = o.shape(q)[2], o.shape(k)[2]
    parts = [] if added is None else [added]
    if mask is not None:
        parts.append(_mask_bias(o, node, mask, o.shape(q)[0], keys))
    if node.attr("unidirectional", 0):
        parts.append(_causal_bias(o, queries, keys))
    if not parts:
        return None
    total = o.cast(parts[0], q.dtype)
    for part in parts[1:]:
        total = o("Add", total, o.cast(part, q.dtype))
    return total


def _mask_bias(o: Operators, node: Node, mask: Value, batch: Any, keys: Any) -> Value:
    """mask_filter_value where a key is masked: from 0 and 1 (batch, keys), (batch, queries, keys) or
    (batch, 1, queries, keys), or from the number of keys of each row (batch).
    """
    rank, value = o.ctx.rank(mask), node.attr("mask_filter_value", -10000.0)
    if rank == 1:
        kept = o("Less", o.range(keys), o("Unsqueeze", o.cast(mask, "int64"), o.ints([1])))
        batch = o.ctx.require_equal(o.shape(mask)[0], batch, "the lengths in a mask and the batch")
        kept = o.reshape(kept, [batch, 1, 1, keys])
    else:
        kept = o.cast(mask, "bool")
        axes = {2: [1, 2], 3: [1], 4: []}[rank]
        kept = o("Unsqueeze", kept, o.ints(axes)) if axes else kept
    return o("Where", kept, constant(0.0, "float32"), constant(value, "float32"))


def _causal_bias(o: Operators, queries: Any, keys: Any) -> Value:
    """(queries, keys): the lowest number for keys after the query, where the last query meets the last key."""

    def causal_bias(extents: list[Any]) -> te.Tensor:
        offset = prim(extents[1]) - prim(extents[0])
        hidden, shown = tirx.const(LOWEST, "float32"), tirx.const(0.0, "float32")
        return te.compute(extents, lambda i, j: tirx.Select(j > i + offset, hidden, shown), name="causal_bias")

    return o.ctx.emit_te(causal_bias, [queries, keys])


@composed("RotaryEmbedding", domain=_DOMAIN)
def rotary_embedding(o: Operators, node: Node) -> Value:
    """Inputs: x, positions, cosines and sines by position; positions may be one offset for a whole batch."""
    _refuse(node, "is_packed_batching")
    x, positions = node.data(0), node.data(1)
    rank = o.ctx.rank(x)
    batch, length = o.shape(x)[0], o.shape(x)[1 if rank == 3 else 2]
    if o.ctx.rank(positions) == 1:
        steps = o("Add", o.range(length), o.cast(positions, "int64"))
        positions = o("Expand", o("Unsqueeze", steps, o.ints([0])), o.ints([batch, length]))
    width = 2 * o.shape(node.data(2))[1]
    heads = node.attr("num_heads", 0) or (o.shape(x)[2] // width if rank == 3 else None)
    attrs = {"interleaved": node.attr("interleaved"), "rotary_embedding_dim": node.attr("rotary_embedding_dim")}
    return o("RotaryEmbedding", x, node.data(2), node.data(3), o.cast(positions, "int64"), num_heads=heads, **attrs)
