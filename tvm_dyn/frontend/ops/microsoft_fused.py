"""Fused operators of the domain com.microsoft that exporters and optimizers write: activations, norms, products.

SkipLayerNormalization(x, skip, gamma, beta, bias)  ->  LayerNormalization(x + skip + bias, gamma, beta)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.composition import Operators, composed
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import Value, constant

_DOMAIN = "com.microsoft"


@composed("Gelu", "BiasGelu", domain=_DOMAIN)
def gelu(o: Operators, node: Node) -> Value:
    """Inputs: x, bias or none."""
    return o("Gelu", _biased(o, node.data(0), node.input(1)))


@composed("FastGelu", domain=_DOMAIN)
def fast_gelu(o: Operators, node: Node) -> Value:
    """Inputs: x, bias or none."""
    return o("Gelu", _biased(o, node.data(0), node.input(1)), approximate="tanh")


@composed("QuickGelu", domain=_DOMAIN)
def quick_gelu(o: Operators, node: Node) -> Value:
    """x * sigmoid(alpha * x)."""
    x = node.data(0)
    return o("Mul", x, o("Sigmoid", o("Mul", x, o.number(node.attr("alpha", 1.702), x))))


def _biased(o: Operators, x: Value, bias: Value | None) -> Value:
    return x if bias is None else o("Add", x, bias)


# -- norms ---------------------------------------------------------------------------------------------------


@composed("SkipLayerNormalization", domain=_DOMAIN)
def skip_layer_norm(o: Operators, node: Node) -> list[Value | None]:
    """Inputs: x, skip, gamma, beta or none, bias or none; outputs: result, mean, 1 / deviation, the sum."""
    total = _biased(o, o("Add", node.data(0), node.data(1)), node.input(4))
    operands, epsilon = (total, node.data(2), node.input(3)), node.attr("epsilon", 1e-12)
    if any(node.outputs[1:3]):
        return [*o("LayerNormalization", *operands, outputs=3, epsilon=epsilon), total]
    return [o("LayerNormalization", *operands, epsilon=epsilon), None, None, total]


@composed("SkipSimplifiedLayerNormalization", domain=_DOMAIN)
def skip_rms_norm(o: Operators, node: Node) -> list[Value | None]:
    """Inputs: x, skip, gamma, bias or none; outputs: result, mean, 1 / deviation, the sum."""
    total = _biased(o, o("Add", node.data(0), node.data(1)), node.input(3))
    result = o("RMSNormalization", total, node.data(2), epsilon=node.attr("epsilon", 1e-12))
    return [result, None, None, total]


@composed("SimplifiedLayerNormalization", domain="")
@composed("SimplifiedLayerNormalization", domain=_DOMAIN)
def rms_norm(o: Operators, node: Node) -> list[Value | None]:
    """Inputs: x, gamma; outputs: result, 1 / deviation (which is not supported)."""
    attrs = {"axis": node.attr("axis", -1), "epsilon": node.attr("epsilon", 1e-5)}
    return [o("RMSNormalization", node.data(0), node.data(1), **attrs), None]


@composed("EmbedLayerNormalization", domain=_DOMAIN)
def embed_layer_norm(o: Operators, node: Node) -> list[Value | None]:
    """Inputs: ids, segments or none, three tables (words, positions, segments or none), gamma, beta, mask or none,
    positions or none; outputs: result, tokens per row of the mask, the sum of embeddings.
    """
    ids, segments = node.data(0), node.input(1)
    words, places, kinds = node.data(2), node.data(3), node.input(4)
    batch, length = o.shape(ids)
    positions = node.input(8)
    if positions is None:
        positions = o("Unsqueeze", o.range(length), o.ints([0]))
    total = o("Add", o("Gather", words, ids), o("Gather", places, positions))
    if segments is not None and kinds is not None:
        total = o("Add", total, o("Gather", kinds, segments))
    norm = o("LayerNormalization", total, node.data(5), node.data(6), epsilon=node.attr("epsilon", 1e-12))
    return [norm, _mask_counts(o, node.input(7), batch), total]


def _mask_counts(o: Operators, mask: Value | None, batch: Any) -> Value:
    if mask is None:
        return o("Expand", constant(np.zeros(1), "int32"), o.ints([batch]))
    return o("ReduceSum", o.cast(mask, "int32"), o.ints([1]), keepdims=0)


# -- products ------------------------------------------------------------------------------------------------


@composed("FusedMatMul", "TransposeMatMul", domain=_DOMAIN)
def fused_matmul(o: Operators, node: Node) -> Value:
    """alpha * A' B', with the last two axes of either swapped, or its batch axes moved behind the first one."""
    a, b = (_transposed(o, node.data(k), node.attr(f"trans{s}", 0), node.attr(f"transBatch{s}", 0)) for k, s in _SIDES)
    product = o("MatMul", a, b)
    alpha = node.attr("alpha", 1.0)
    return product if alpha == 1.0 else o("Mul", product, o.number(alpha, product))


_SIDES = ((0, "A"), (1, "B"))


def _transposed(o: Operators, value: Value, swap: int, batch: int) -> Value:
    rank = o.ctx.rank(value)
    order = list(range(rank))
    if batch:  # (n, batch..., m) stands for (batch..., n, m)
        order = [*order[1:-1], 0, rank - 1]
    if swap and rank > 1:
        order[-2:] = order[:-3:-1]
    return value if order == list(range(rank)) else o("Transpose", value, perm=order)


@composed("FusedGemm", domain=_DOMAIN)
def fused_gemm(o: Operators, node: Node) -> Value:
    """Gemm, then an activation."""
    attrs = {name: node.attr(name) for name in ("alpha", "beta", "transA", "transB")}
    result = o("Gemm", node.data(0), node.data(1), node.input(2), **attrs)
    parameters = {"alpha": node.attr("activation_alpha"), "beta": node.attr("activation_beta")}
    return _activated(o, node, result, node.attr("activation"), parameters)


@composed("FusedConv", domain=_DOMAIN)
def fused_conv(o: Operators, node: Node) -> Value:
    """Conv, plus a fourth input where there is one, then an activation."""
    attrs = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    result = _biased(o, o("Conv", node.data(0), node.data(1), node.input(2), **attrs), node.input(3))
    return _activated(o, node, result, node.attr("activation"), _parameters(node))


def _parameters(node: Node) -> dict[str, Any]:
    """What `activation_params` holds, by the activation's attributes in order."""
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max")}
    return dict(zip(names.get(node.attr("activation"), ()), node.attr("activation_params") or (), strict=False))


def _activated(o: Operators, node: Node, x: Value, name: str | None, parameters: dict[str, Any]) -> Value:
    if not name:
        return x
    if name == "Clip" and {"min", "max"} <= parameters.keys():
        return o("Clip", x, *(o.number(parameters[bound], x) for bound in ("min", "max")))
    if name not in ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Elu"):
        raise UnsupportedOperatorError(f"{node.label}: activation {name} is not supported")
    return o(name, x, **parameters)


@composed("MatMulNBits", domain=_DOMAIN)
def matmul_nbits(o: Operators, node: Node) -> Value:
    """x @ W' with weights of 2, 4 or 8 bits in blocks along K: (N, K / block, bytes), scales and zero points per block.

    The weights are expanded at import.
    """
    if node.input(4) is not None and o.ctx.const(node.input(4), "its group index").size:
        raise UnsupportedOperatorError(f"{node.label}: a group index is not supported")
    depth, columns, block = node.attr("K"), node.attr("N"), node.attr("block_size")
    bits, x = node.attr("bits", 4), node.data(0)
    blocks = -(-depth // block)
    packed = o.ctx.const(node.data(1), "its weights").reshape(columns, -1)
    codes = _unpacked(packed, bits, blocks * block).reshape(columns, blocks, block)
    scales = o.ctx.const(node.data(2), "its scales").reshape(columns, blocks, 1)
    zeros = _zero_points(o, node, bits, (columns, blocks, 1))
    weights = (codes - zeros) * scales.astype("float32")
    matrix = np.ascontiguousarray(weights.reshape(columns, -1)[:, :depth].T)
    return _biased(o, o("MatMul", x, constant(matrix, x.dtype)), node.input(5))


def _zero_points(o: Operators, node: Node, bits: int, shape: tuple[int, int, int]) -> np.ndarray:
    if node.input(3) is None:
        return np.full(shape, 1 << (bits - 1), "float32")
    zeros = o.ctx.const(node.input(3), "its zero points")
    if zeros.dtype == np.uint8:
        zeros = _unpacked(zeros.reshape(shape[0], -1), bits, shape[1])
    return zeros.reshape(shape).astype("float32")


def _unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """(rows, count) codes of (rows, bytes), the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype="uint8")
    codes = packed[..., None] >> shifts & ((1 << bits) - 1)
    return codes.reshape(packed.shape[0], -1)[:, :count].astype("float32")
