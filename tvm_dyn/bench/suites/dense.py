"""x[M, K] times constant weights, plus a bias, GELU: symbolic M, 1 to 1024 rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_dyn.bench.case import Case, normal, parse_graph, weight

SIZES = [(768, 768), (768, 3072), (3072, 768), (384, 1536), (512, 2048), (1024, 1024)]
ROWS = [1, 2, 3, 5, 8, 13, 16, 24, 37, 64, 100, 128, 193, 256, 511, 1024]

# GELU as exporters write it: onnxruntime and OpenVINO both know the pattern.
_GRAPH = """(float[M, {k}] x) => (float[M, {n}] y) {{
    product = MatMul(x, weights)   biased = Add(product, bias)
    scaled = Div(biased, root)     error = Erf(scaled)   sum = Add(error, one)
    gated = Mul(biased, sum)       y = Mul(gated, half)
}}"""
_CONSTANTS = {name: np.float32(value) for name, value in (("root", 2**0.5), ("one", 1.0), ("half", 0.5))}


def cases() -> list[Case]:
    return [_case(k, n) for k, n in SIZES]


def _case(k: int, n: int) -> Case:
    def weights() -> dict[str, np.ndarray]:
        return {"weights": weight("dense", k, n, fan_in=k), "bias": weight("bias", n, fan_in=1)}

    def torch_function() -> Callable[..., Any]:
        import torch
        import torch.nn.functional as F

        tensors = weights()
        matrix = torch.from_numpy(np.ascontiguousarray(tensors["weights"].T))
        bias = torch.from_numpy(tensors["bias"])
        return lambda x: F.gelu(F.linear(x, matrix, bias))

    return Case(
        "dense",
        f"{k}x{n}",
        [{"M": m} for m in ROWS],
        lambda: parse_graph(_GRAPH.format(k=k, n=n), {**weights(), **_CONSTANTS}),
        lambda shape, generator: {"x": normal(generator, shape["M"], k)},
        torch_function,
        flops=lambda shape: 2.0 * shape["M"] * k * n,
    )
