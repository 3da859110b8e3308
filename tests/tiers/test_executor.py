"""Relax functions by the virtual machine: control flow, recursion, kernels, shapes, errors."""

import math

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_dyn
from tvm_dyn.errors import CallError, CompileError
from tvm_dyn.runtime.bytecode import cache


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@I.ir_module
class Choice:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor(("n", 16), "float32")):
        n = T.int64()
        if c:
            with R.dataflow():
                a = R.nn.softmax(x, axis=-1)
                y1: R.Tensor((n, 16), "float32") = R.multiply(a, R.const(2.0, "float32"))
                R.output(y1)
            y = y1
        else:
            with R.dataflow():
                y2: R.Tensor((n, 16), "float32") = R.nn.gelu(x)
                R.output(y2)
            y = y2
        return y


@I.ir_module
class Halving:
    """Halves until all is below a limit: a recursion whose depth depends on the data."""

    @R.function
    def main(x: R.Tensor(("n",), "float32"), limit: R.Tensor((), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()  # noqa: F841
        largest: R.Tensor((), "float32") = R.max(R.abs(x))
        done: R.Tensor((), "bool") = R.less(largest, limit)
        if done:
            y = x
        else:
            half = R.multiply(x, R.const(0.5, "float32"))
            y = Halving.main(half, limit)
        return y


@I.ir_module
class Block:
    @R.function
    def main(
        x: R.Tensor(("batch", "n", 8), "float32"), w: R.Tensor((8, 24), "float32"), b: R.Tensor((24,), "float32")
    ):
        batch, n = T.int64(), T.int64()
        with R.dataflow():
            h = R.nn.gelu(R.add(R.matmul(x, w), b))
            s = R.nn.softmax(R.reshape(h, R.shape([batch * n, 24])), axis=-1)
            m = R.mean(s, axis=[0])
            t = R.cumsum(s, axis=1)
            R.output(m, t)
        return m, t


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_a_branch_is_chosen_by_a_value():
    library = tvm_dyn.compile(Choice, tier="bytecode")
    x = normal(7, 16)
    np.testing.assert_allclose(library(np.array(True), x)[0], 2 * softmax(x), rtol=1e-5)
    gelu = x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
    np.testing.assert_allclose(library(np.array(False), x)[0], gelu, rtol=1e-5, atol=1e-6)
    assert library.fallbacks == {}


@pytest.mark.parametrize("n", [1, 5, 2000])
def test_a_recursion_ends_by_a_value(n):
    x = normal(n) * 1000
    found = tvm_dyn.compile(Halving, tier="bytecode")(x, np.float32(1))[0]
    depth = max(0, int(np.floor(np.log2(abs(x).max()))) + 1)
    np.testing.assert_array_equal(found, x / np.float32(2) ** depth)


@pytest.mark.parametrize("batch, n", [(1, 1), (3, 5), (2, 65)])
def test_agrees_with_the_compiled_tier_and_names_fallbacks(batch, n):
    inputs = [normal(batch, n, 8), normal(8, 24, seed=1), normal(24, seed=2)]
    library = tvm_dyn.compile(Block, tier="bytecode")
    for found, expected in zip(library(*inputs), tvm_dyn.compile(Block)(*inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
    assert library.fallbacks["matmul"] == "numpy"
    assert set(library.fallbacks) > {"matmul"}, "cumsum has no opcode"


def test_no_code_is_generated(monkeypatch):
    cache.interpreter()
    monkeypatch.setattr("tvm.compile", lambda *args, **options: pytest.fail("LLVM was asked"))
    library = tvm_dyn.compile(Choice, tier="bytecode")
    library(np.array(True), normal(3, 16))


def test_wrong_shapes_are_refused_as_in_the_compiled_tier():
    library = tvm_dyn.compile(Choice, tier="bytecode")
    with pytest.raises(CallError, match="16"):
        library(np.array(True), normal(3, 15))


def test_nothing_to_export(tmp_path):
    with pytest.raises(CompileError, match="llvm"):
        tvm_dyn.compile(Choice, tier="bytecode").export(tmp_path / "a.so")


def test_a_tier_by_another_name_is_refused():
    with pytest.raises(ValueError, match="'llvm', 'bytecode' or 'auto'"):
        tvm_dyn.compile(Choice, tier="fast")
