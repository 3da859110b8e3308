"""Multi-head attention of projected queries, keys and values [batch, seq, heads * width], masked and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_dyn.bench.case import Case, Feed, Shape, normal, parse_graph

HEADS = [(12, 64), (8, 96)]
LENGTHS = [8, 16, 37, 64, 100, 128, 193, 256, 384, 511, 512]
BATCHED = [(4, 16), (4, 37), (3, 128), (8, 100), (2, 256)]

_MASKED = -1e4  # what exporters add to the score of a key that is not to be seen

_GRAPH = """(float[batch, seq, {hidden}] query, float[batch, seq, {hidden}] key, float[batch, seq, {hidden}] value
{mask_input}) => (float[batch, seq, {hidden}] y) {{
    q4 = Reshape(query, split)   q = Transpose<perm = [0, 2, 1, 3]>(q4)
    k4 = Reshape(key, split)     k = Transpose<perm = [0, 2, 3, 1]>(k4)
    v4 = Reshape(value, split)   v = Transpose<perm = [0, 2, 1, 3]>(v4)
    product = MatMul(q, k)       scores = Mul(product, scale)   {mask_node}
    weights = Softmax<axis = -1>({scores})
    heads = MatMul(weights, v)   merged = Transpose<perm = [0, 2, 1, 3]>(heads)   y = Reshape(merged, join)
}}"""

_FUSED = """(float[batch, seq, {hidden}] query, float[batch, seq, {hidden}] key, float[batch, seq, {hidden}] value
{mask_input}) => (float[batch, seq, {hidden}] y) {{
    y = com.microsoft.MultiHeadAttention<num_heads = {heads}>(query, key, value{bias})
}}"""


def cases() -> list[Case]:
    return [_case(heads, width, masked) for heads, width in HEADS for masked in (False, True)]


def _case(heads: int, width: int, masked: bool) -> Case:
    hidden = heads * width
    text = {
        "hidden": hidden,
        "heads": heads,
        "mask_input": ", float[batch, 1, seq, seq] mask" if masked else "",
        "mask_node": "seen = Add(scores, mask)" if masked else "",
        "scores": "seen" if masked else "scores",
        "bias": ", , , mask" if masked else "",
    }
    constants = {
        "split": np.array([0, 0, heads, width]),
        "join": np.array([0, 0, hidden]),
        "scale": np.float32(width**-0.5),
    }

    def inputs(shape: Shape, generator: np.random.Generator) -> Feed:
        batch, seq = shape["batch"], shape["seq"]
        feed = {name: normal(generator, batch, seq, hidden) for name in ("query", "key", "value")}
        return {**feed, "mask": _causal_and_padded(batch, seq)} if masked else feed

    return Case(
        "attention",
        f"{heads}x{width}{'_masked' if masked else ''}",
        [{"batch": 1, "seq": seq} for seq in LENGTHS] + [{"batch": batch, "seq": seq} for batch, seq in BATCHED],
        lambda: parse_graph(_GRAPH.format(**text), constants),
        inputs,
        lambda: _scaled_dot_product(heads),
        fused=lambda: parse_graph(_FUSED.format(**text), {}),
        flops=lambda shape: 4.0 * shape["batch"] * shape["seq"] ** 2 * hidden,
    )


def _causal_and_padded(batch: int, seq: int) -> np.ndarray:
    """Nobody sees the future, nor the last eighth of the last sentence."""
    hidden = np.triu(np.ones((seq, seq), bool), 1)[None].repeat(batch, 0)
    hidden[-1, :, seq - seq // 8 :] = True
    return np.where(hidden, np.float32(_MASKED), np.float32(0))[:, None]


def _scaled_dot_product(heads: int) -> Callable[..., Any]:
    import torch.nn.functional as F

    def attention(query, key, value, mask=None):
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)

    return attention
