"""Kernels as Python on numpy arrays agree with compiled ones."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_dyn.tiers.kernel_source import UnsupportedKernel, kernel_function


def kernels(module):
    legal = relax.transform.LegalizeOps()(module)
    return {name.name_hint: func for name, func in legal.functions_items() if isinstance(func, tvm.tirx.PrimFunc)}


def check(func, inputs, shape, dtype="float32"):
    found, expected = np.zeros(shape, dtype), tvm.runtime.tensor(np.zeros(shape, dtype))
    kernel_function(func)(*inputs, found)
    compiled = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target="llvm")
    compiled["main"](*[tvm.runtime.tensor(array) for array in inputs], expected)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


@I.ir_module
class Operators:
    @R.function
    def main(x: R.Tensor(("n", 6, 8), "float32"), w: R.Tensor((8, 3), "float32")):
        n = T.int64()  # noqa: F841
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.nn.layer_norm(x, R.const(np.ones(8, "float32")), R.const(np.zeros(8, "float32")), axes=[-1])
            c = R.nn.pad(x, [0, 0, 1, 2, 0, 3])
            d = R.max(x, axis=[1])
            e = R.permute_dims(x, [2, 0, 1])
            f = R.strided_slice(x, [2], [1], [7], [2])
            R.output(a, b, c, d, e, f)
        return a, b, c, d, e, f


@pytest.mark.parametrize("n", [1, 5])
def test_operators(n):
    made = kernels(Operators)
    x = normal(n, 6, 8)
    check(made["matmul"], [x, normal(8, 3)], (n, 6, 3))
    check(made["layer_norm"], [x, np.ones(8, "f4"), np.zeros(8, "f4")], (n, 6, 8))
    check(made["pad"], [x], (n, 9, 11))
    check(made["max"], [x], (n, 8))
    check(made["transpose"], [x], (8, n, 6))
    check(made["strided_slice"], [x], (n, 6, 3))


@I.ir_module
class Loops:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((40,), "float32"), y: T.Buffer((40,), "float32")):
        with T.sblock("root"):
            T.reads()
            T.writes()
            last = T.alloc_buffer((1,), "float32")
            last[0] = T.float32(0)
            for i in range(40):
                if x[i] > T.float32(0):
                    last[0] = last[0] * T.float32(0.5) + x[i]
                y[i] = last[0]


def test_loops_whose_steps_follow_each_other():
    x, y = normal(40), np.zeros(40, "f4")
    kernel_function(Loops["main"])(x, y)
    last = np.float32(0)
    for element, found in zip(x, y, strict=True):
        last = last * np.float32(0.5) + element if element > 0 else last
        assert found == last


def test_what_has_no_counterpart_is_refused():
    @T.prim_func(s_tir=True)
    def external(x: T.Buffer((4,), "float32")):
        with T.sblock("root"):
            T.reads()
            T.writes()
            x[0] = T.call_pure_extern("float32", "unknown", x[0])

    with pytest.raises(UnsupportedKernel, match="call_pure_extern"):
        kernel_function(external)
