"""The same rules on other CPUs: right on those this machine can run, compiling on those it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import tvm
from harness import Compiled, dim, fused, prim_funcs, random
from tvm.relax import op
from tvm.relax.op import nn
from tvm.target import Target
from windows import conv

from tvm_dyn.hardware import runs_here
from tvm_dyn.schedules import schedule_prim_func

M, N, K = dim("m"), dim("n"), dim("k")
CPUS = ["x86-64", "x86-64-v3", "znver4"]
NEON = {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": 4}
_erf = np.vectorize(math.erf, otypes=["float64"])


@dataclass(frozen=True)
class Case:
    """A kernel: its inputs, its graph, its float64 reference and extents of (m, n, k)."""

    inputs: Sequence[tuple]
    graph: Callable
    reference: Callable
    extents: Sequence[tuple]


def _dense(bb, x, w, b):
    return bb.emit(op.tanh(bb.emit(op.add(bb.emit(op.matmul(x, w)), b))))


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def _layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def _conv(strides: int, groups: int) -> tuple[Callable, Callable]:
    def graph(bb, x, w):
        return bb.emit(nn.relu(bb.emit(nn.conv2d(x, w, strides=strides, padding=1, groups=groups))))

    return graph, lambda x, w: np.maximum(conv(x, w, (strides,) * 2, (1,) * 4, (1, 1), groups), 0)


SIZES = [(1, 5, 3), (7, 17, 64), (50, 130, 33), (0, 4, 4)]
MAPS = [(1, 1, 1), (2, 7, 9), (1, 33, 47), (0, 5, 5)]
MATRIX = ((M, N), "float32")
CASES = {
    "matmul": Case(
        [((M, K), "float32"), ((K, N), "float32"), ((N,), "float32")],
        _dense,
        lambda x, w, b: np.tanh(x @ w + b),
        SIZES,
    ),
    "softmax": Case([MATRIX], lambda bb, x: bb.emit(nn.softmax(x)), _softmax, SIZES),
    "layer norm": Case(
        [MATRIX, ((N,), "float32"), ((N,), "float32")],
        lambda bb, x, s, b: bb.emit(nn.layer_norm(x, s, b, axes=[-1])),
        _layer_norm,
        SIZES,
    ),
    "elementwise": Case(
        [MATRIX, ((N,), "float32")],
        lambda bb, x, y: bb.emit(nn.gelu(bb.emit(op.multiply(bb.emit(op.exp(x)), y)))),
        lambda x, y: (z := np.exp(x) * y) * 0.5 * (1 + _erf(z / np.sqrt(2))),
        SIZES,
    ),
    "tile": Case(
        [((M, 8, 12), "float32")],
        lambda bb, x: bb.emit(op.tile(x, (3, 4, 2))),
        lambda x: np.tile(x, (3, 4, 2)),
        SIZES,
    ),
    "convolution": Case([((M, 5, N, K), "float32"), ((20, 5, 3, 3), "float32")], *_conv(1, 1), MAPS),
    "strided convolution": Case([((M, 5, N, K), "float32"), ((20, 5, 3, 3), "float32")], *_conv(2, 1), MAPS),
    "depthwise convolution": Case([((M, 6, N, K), "float32"), ((6, 1, 3, 3), "float32")], *_conv(1, 6), MAPS),
}


def _target(cpu: str, cores: int = 2) -> Target:
    target = Target({"kind": "llvm", "mcpu": cpu, "num-cores": cores})
    if not runs_here(target):
        pytest.skip(f"this machine lacks instructions of {cpu}")
    return target


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", CASES)
def test_results(name, cpu):
    case = CASES[name]
    kernel = Compiled(case.inputs, case.graph, _target(cpu))
    for seed, extents in enumerate(case.extents):
        values = dict(zip(("m", "n", "k"), extents, strict=True))
        shapes = [[e if isinstance(e, int) else values[e.name] for e in shape] for shape, _ in case.inputs]
        arrays = [random(shape, seed=10 * seed + i) for i, shape in enumerate(shapes)]
        result = kernel(*arrays)
        if 0 in shapes[0]:
            assert result.shape[0] == 0
            continue
        expected = case.reference(*[a.astype("float64") for a in arrays])
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("name", CASES)
def test_code_for_neon(name):
    target = Target({"kind": "llvm", **NEON})
    instructions = ""
    for func in prim_funcs(fused(CASES[name].inputs, CASES[name].graph)):
        scheduled = schedule_prim_func(func, target).with_attr("global_symbol", "main")
        instructions += tvm.compile(tvm.IRModule({"main": scheduled}), target=target).mod.inspect_source("asm")
    assert "v0.4s" in instructions or "q0" in instructions
    if name in ("matmul", "convolution"):
        assert "fmla" in instructions
