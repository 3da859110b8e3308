"""GroupQueryAttention of the domain com.microsoft: causal attention that keeps its keys and values in a buffer.

present[b, :, t] = past[b, :, t] where t < old_b, else key[b, t - old_b]      old_b: what row b holds already
query i of row b sees the keys up to old_b + i
"""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.composition import Operators, composed
from tvm_dyn.frontend.extents import maximum, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.microsoft_attention import LOWEST, join_heads, split_heads
from tvm_dyn.frontend.value import Value


@composed("GroupQueryAttention", domain="com.microsoft")
def group_query_attention(o: Operators, node: Node) -> list[Value]:
    """Inputs: q, k, v (batch, length, heads * size), or all three in the first; cached k and v (batch, heads, room,
    size); keys of each row less one; keys of the longest row; cosines and sines of the rotation; positions or none;
    scores to add or none. Outputs: result, the buffers of k and v.
    """
    if node.attr("smooth_softmax", 0) or node.input(11) is not None:
        raise UnsupportedOperatorError(f"{node.label}: smooth_softmax and head sinks are not supported")
    heads, groups = node.attr("num_heads"), node.attr("kv_num_heads")
    q, k, v = _separated(o, node, heads, groups)
    length = o.shape(q)[1]
    total = o.ctx.scalar(node.data(6), signed=False)
    old = _held(o, node.data(5), length, total)
    if node.attr("do_rotary", 0):
        q, k = (_rotated(o, node, part, old, length, count) for part, count in ((q, heads), (k, groups)))
    q, k, v = (split_heads(o, part, count) for part, count in ((q, heads), (k, groups), (v, groups)))
    k, v = (_stored(o, old, node.data(n), part, total) for n, part in ((3, k), (4, v)))
    return [_attend(o, node, q, (k, v), old), k, v]


def _separated(o: Operators, node: Node, heads: int, groups: int) -> list[Value]:
    if node.input(1) is not None:
        return [node.data(n) for n in range(3)]
    size = o.shape(node.data(0))[2] // (heads + 2 * groups)
    return o("Split", node.data(0), o.ints([heads * size, groups * size, groups * size]), outputs=3, axis=-1)


def _held(o: Operators, lengths: Value, length: Any, total: Any) -> Value:
    """Keys of each row (batch) ahead of this call: none where the call brings all there are."""

    def held(last: te.Tensor, new: Any, longest: Any) -> te.Tensor:
        def at(b: Any) -> Any:
            before = last(b).astype("int64") + 1 - prim(new)
            return tirx.Select(prim(new) == prim(longest), tirx.const(0, "int64"), before)

        return te.compute([last.shape[0]], at, name="held")

    lengths = o("Squeeze", lengths, o.ints([1])) if o.ctx.rank(lengths) == 2 else lengths
    return o.ctx.emit_te(held, o.ctx.tensor(lengths), length, total)


def _rotated(o: Operators, node: Node, x: Value, old: Value, length: Any, heads: int) -> Value:
    positions = node.input(9)
    if positions is None:
        positions = o("Add", o("Unsqueeze", old, o.ints([1])), o.range(length))
    tables = node.data(7), node.data(8)
    width = 2 * o.shape(tables[0])[1]
    size = o.shape(x)[2] // heads
    partial = width if width != size else None
    attrs = {"interleaved": node.attr("rotary_interleaved", 0), "rotary_embedding_dim": partial}
    return o("RotaryEmbedding", x, *tables, o.cast(positions, "int64"), num_heads=heads, **attrs)


def _stored(o: Operators, old: Value, past: Value, new: Value, total: Any) -> Value:
    """The buffer with the new rows behind those that it holds."""
    batch, heads, _, size = o.shape(new)
    room = maximum(o.ctx.facts, o.shape(past)[2], total)

    def stored(held: te.Tensor, before: te.Tensor, rows: te.Tensor, extents: list[Any]) -> te.Tensor:
        def at(b: Any, h: Any, t: Any, d: Any) -> Any:
            place = t - held(b)
            fresh = tirx.if_then_else(
                tirx.all(place >= 0, place < rows.shape[2]), rows(b, h, place, d), tirx.const(0, rows.dtype)
            )
            return tirx.if_then_else(tirx.all(t < held(b), t < before.shape[2]), before(b, h, t, d), fresh)

        return te.compute(extents, at, name="stored")

    tensors = [o.ctx.tensor(v) for v in (old, past, new)]
    return o.ctx.emit_te(stored, *tensors, [batch, heads, room, size])


def _attend(o: Operators, node: Node, q: Value, cache: tuple[Value, Value], old: Value) -> Value:
    _, heads, length, size = o.shape(q)
    groups, room = o.shape(cache[0])[1:3]
    scale = node.attr("scale", 0.0) or 1 / math.sqrt(size)
    k, v = (_repeated(o, part, heads // groups) for part in cache)
    scores = o("Mul", o("MatMul", q, o("Transpose", k, perm=[0, 1, 3, 2])), o.number(scale, q))
    if cap := node.attr("softcap", 0.0):
        scores = o("Mul", o("Tanh", o("Div", scores, o.number(cap, q))), o.number(cap, q))
    if node.input(10) is not None:
        scores = o("Add", scores, node.data(10))
    scores = o("Add", scores, o.cast(_visible(o, old, length, room, node.attr("local_window_size", -1)), q.dtype))
    return join_heads(o, o("MatMul", o("Softmax", scores, axis=-1), v))


def _repeated(o: Operators, x: Value, times: int) -> Value:
    if times == 1:
        return x
    batch, groups, length, size = o.shape(x)
    wide = o("Expand", o("Unsqueeze", x, o.ints([2])), o.ints([batch, groups, times, length, size]))
    return o.reshape(wide, [batch, groups * times, length, size])


def _visible(o: Operators, old: Value, length: Any, room: Any, window: int) -> Value:
    """(batch, 1, queries, keys): the lowest number for keys after the query, and for those before its window."""

    def visible(held: te.Tensor, extents: list[Any]) -> te.Tensor:
        def at(b: Any, _: Any, i: Any, j: Any) -> Any:
            last = held(b) + i
            seen = tirx.all(j <= last, j > last - window) if window > 0 else j <= last
            return tirx.Select(seen, tirx.const(0.0, "float32"), tirx.const(LOWEST, "float32"))

        return te.compute(extents, at, name="visible")

    return o.ctx.emit_te(visible, o.ctx.tensor(old), [o.shape(old)[0], 1, length, room])
