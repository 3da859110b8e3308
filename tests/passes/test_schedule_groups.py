"""ScheduleGroups: every PrimFunc of a module is scheduled, and still computes the same."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_dyn.hardware import host_target
from tvm_dyn.passes import ScheduleGroups


def legalized() -> tvm.IRModule:
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 37), "float32"))
    w = relax.const(np.random.default_rng(0).standard_normal((37, 5)).astype("float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.matmul(x, w))))
            result = builder.emit_output(relax.op.sum(relax.op.exp(y), axis=0))
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def prim_funcs(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    return [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]


def test_marks_every_prim_func_and_leaves_its_input_alone():
    before = legalized()
    text = before.script(show_meta=False)
    after = ScheduleGroups(host_target())(before)
    assert before.script(show_meta=False) == text
    assert all(f.attrs.get("tirx.is_scheduled") for f in prim_funcs(after))


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 13])
def test_same_results(rows):
    target = host_target()
    machine = relax.VirtualMachine(tvm.compile(ScheduleGroups(target)(legalized()), target), tvm.cpu())
    plain = relax.VirtualMachine(tvm.compile(legalized(), target), tvm.cpu())
    data = np.random.default_rng(rows).standard_normal((rows, 37)).astype("float32")
    got, want = (m["main"](tvm.runtime.tensor(data)).numpy() for m in (machine, plain))
    np.testing.assert_allclose(got, want if rows else np.zeros(5, "float32"), rtol=1e-5)
