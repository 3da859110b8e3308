"""GrowStorage: right at every order of shapes, sizes that only grow, and threads that overtake one another."""

import threading

import numpy as np
import pytest
import tvm
from dataflow import module
from tvm import relax, tirx
from tvm.relax import op, transform

from tvm_dyn import pipeline
from tvm_dyn.passes import GrowStorage, PlanMemory
from tvm_dyn.schedules.common import collect

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
RNG = np.random.default_rng(0)
W = [(RNG.standard_normal((24, 24)) / 5).astype("float32") for _ in range(4)]


def chain(emit, x):
    for w in W:
        x = emit(op.nn.softmax(emit(op.matmul(x, relax.const(w))), -1))
    return op.matmul(x, emit(op.permute_dims(x, [0, 2, 1])))


def expected(x: np.ndarray) -> np.ndarray:
    y = x.astype("float64")
    for w in W:
        y = np.exp(y @ w)
        y /= y.sum(-1, keepdims=True)
    return y @ y.transpose(0, 2, 1)


@pytest.fixture(scope="module")
def executable():
    return pipeline.build(module(chain, (N, M, 24)))


def test_shapes_in_any_order(executable):
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for n, m in [(1, 1), (3, 50), (0, 4), (50, 2), (1, 1), (2, 200), (3, 50)]:
        x = RNG.standard_normal((n, m, 24)).astype("float32")
        found = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(found, expected(x), rtol=1e-4, atol=1e-5)


def test_threads_with_shapes_of_their_own(executable):
    wrong = []

    def serve(seed: int) -> None:
        generator = np.random.default_rng(seed)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        for _ in range(30):
            n, m = generator.integers(1, 40, 2)
            x = generator.standard_normal((n, m, 24)).astype("float32")
            found = machine["main"](tvm.runtime.tensor(x)).numpy()
            if not np.allclose(found, expected(x), rtol=1e-4, atol=1e-5):
                wrong.append((n, m))

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def planned(*shape) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(list(shape), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        y = x
        for _ in range(4):
            y = builder.emit(op.exp(y))
        builder.emit_func_output(y)
    steps = (transform.LegalizeOps(), transform.RemovePurityChecking(), transform.CallTIRRewrite(), PlanMemory())
    return tvm.transform.Sequential([*steps])(builder.get())


def calls(mod: tvm.IRModule, name: str) -> int:
    return sum(getattr(call.op, "name", "") == f"relax.memory.{name}" for call in collect(mod["main"], tvm.ir.Call))


def test_tensors_of_one_storage_and_type_are_one():
    before = planned(N, 8)
    text = before.script()
    after = GrowStorage()(before)
    relax.analysis.well_formed(after)  # raises where it is not
    assert before.script() == text
    assert calls(before, "alloc_storage") == calls(after, "alloc_storage") == calls(after, "alloc_tensor") == 2
    assert calls(before, "alloc_tensor") == 3


def test_constant_sizes_stay():
    after = GrowStorage()(planned(4, 8))
    assert "storage_sizes" not in after.script()
