"""PackConstantWeights: what is packed and what is not, and products with packed weights at every extent."""

import numpy as np
import pytest
import tvm
from dataflow import fused, module
from scipy.special import erf
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax import op
from tvm.target import Target

from tvm_dyn import pipeline
from tvm_dyn.hardware import host_target, runs_here
from tvm_dyn.passes import PackConstantWeights, ReplayBackboneSchedule
from tvm_dyn.passes.rewriting import CALL_TIR

M, B = tirx.Var("m", "int64"), tirx.Var("b", "int64")
RNG = np.random.default_rng(0)


def normal(*shape) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def constants(mod: tvm.IRModule, target: Target | None = None) -> list[GenericConst]:
    """The constants of rank 2 and 3 that kernels are called with once their layout is decided."""
    target = target or host_target()
    found: list[GenericConst] = []

    def visit(expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == CALL_TIR:
            found.extend(a for a in expr.args[1].fields if isinstance(a, GenericConst) and len(a.ty.shape.values) > 1)

    packed = PackConstantWeights(target)(ReplayBackboneSchedule(target)(fused(mod, target)))
    relax.analysis.post_order_visit(packed["main"], visit)
    return found


def run(mod: tvm.IRModule, *data: np.ndarray, target: Target | None = None):
    machine = relax.VirtualMachine(pipeline.build(mod, target), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(d) for d in data]).numpy()


def dense(weights: np.ndarray, bias: np.ndarray):
    def graph(emit, x):
        return op.nn.gelu(emit(op.add(emit(op.matmul(x, relax.const(weights))), relax.const(bias))))

    return graph


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def test_panels_hold_the_columns_in_order():
    weights = normal(5, 70)
    (packed,) = constants(module(lambda emit, x: op.matmul(x, relax.const(weights)), (M, 5)))
    panels = packed.value.numpy()
    assert panels.shape[1] == 5
    matrix = panels.transpose(1, 0, 2).reshape(5, -1)
    np.testing.assert_array_equal(matrix[:, :70], weights)
    assert not matrix[:, 70:].any()


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 63, 64, 65, 160])
@pytest.mark.parametrize("depth", [1, 3, 64, 129])
def test_every_number_of_rows(depth, columns):
    weights, bias = normal(depth, columns) / np.sqrt(depth), normal(columns)
    machine = relax.VirtualMachine(pipeline.build(module(dense(weights, bias), (M, depth))), tvm.cpu())
    for rows in (0, 1, 2, 3, 5, 6, 7, 11, 13, 97):
        x = normal(rows, depth)
        found = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(found, gelu(x.astype("float64") @ weights + bias), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3", "znver4"])
def test_every_instruction_set(cpu):
    target = Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})
    if not runs_here(target):
        pytest.skip(f"this machine lacks instructions of {cpu}")
    weights, bias, x = normal(33, 50), normal(50), normal(23, 33)
    found = run(module(dense(weights, bias), (M, 33)), x, target=target)
    np.testing.assert_allclose(found, gelu(x.astype("float64") @ weights + bias), rtol=2e-5, atol=2e-4)


def test_work_enough_for_two_cores():
    weights, bias, x = normal(256, 512) / 16, normal(512), normal(300, 256)
    found = run(module(dense(weights, bias), (M, 256)), x)
    np.testing.assert_allclose(found, gelu(x.astype("float64") @ weights + bias), rtol=2e-5, atol=2e-5)


def test_rows_of_several_axes_and_a_residual():
    weights = normal(24, 40)

    def graph(emit, x, y):
        return op.add(y, emit(op.matmul(x, relax.const(weights))))

    x, y = normal(3, 7, 24), normal(3, 7, 40)
    found = run(module(graph, (B, M, 24), (B, M, 40)), x, y)
    np.testing.assert_allclose(found, y + x.astype("float64") @ weights, rtol=1e-5, atol=1e-4)


def test_transposed_weights_are_packed_without_a_transpose():
    weights = normal(40, 24)

    def graph(emit, x):
        return op.matmul(x, emit(op.permute_dims(relax.const(weights))))

    x = normal(9, 24)
    assert [len(c.ty.shape.values) for c in constants(module(graph, (M, 24)))] == [3]
    np.testing.assert_allclose(run(module(graph, (M, 24)), x), x.astype("float64") @ weights.T, rtol=1e-5, atol=1e-4)


def test_one_constant_is_packed_once():
    weights = relax.const(normal(24, 24))

    def graph(emit, x):
        return op.matmul(emit(op.nn.relu(emit(op.matmul(x, weights)))), weights)

    first, second = constants(module(graph, (M, 24)))
    assert first.value.same_as(second.value)


def test_weights_that_come_in_are_not_packed():
    def graph(emit, x, w):
        return op.matmul(x, w)

    assert constants(module(graph, (M, 24), (24, 40))) == []
    x, w = normal(13, 24), normal(24, 40)
    found = run(module(graph, (M, 24), (24, 40)), x, w)
    np.testing.assert_allclose(found, x.astype("float64") @ w, rtol=1e-5, atol=1e-4)


def test_half_precision_weights():
    weights = normal(24, 40).astype("float16")
    mod = module(lambda emit, x: op.matmul(x, relax.const(weights)), (M, 24), dtype="float16")
    x = normal(9, 24).astype("float16")
    expected = x.astype("float64") @ weights.astype("float64")
    np.testing.assert_allclose(run(mod, x), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize(("depth", "columns"), [(0, 5), (5, 0)])
def test_empty_weights(depth, columns):
    mod = module(lambda emit, x: op.matmul(x, relax.const(normal(depth, columns))), (M, depth))
    np.testing.assert_array_equal(run(mod, normal(3, depth)), np.zeros((3, columns), "float32"))
