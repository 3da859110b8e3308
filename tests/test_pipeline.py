"""The pipeline by name, alone, inside tvm.compile, with dumps."""

import math

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_dyn import pipeline, schedules
from tvm_dyn.errors import CompileError, KernelFallbackWarning
from tvm_dyn.hardware import host_target
from tvm_dyn.schedules import emit


def module() -> tvm.IRModule:
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.gelu(relax.op.add(x, x)))
        builder.emit_func_output(result)
    return builder.get()


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=["float64"])(x / np.sqrt(2.0)))


def run(executable: relax.VMExecutable, rows: int) -> tuple[np.ndarray, np.ndarray]:
    data = np.random.default_rng(rows).standard_normal((rows, 8)).astype("float32")
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy(), data


@pytest.mark.parametrize("how", ["named", "inside tvm.compile", "build"])
def test_three_ways_in(how):
    target = host_target()
    if how == "named":
        executable = tvm.compile(relax.get_pipeline("tvm_dyn", target=target)(module()), target, relax_pipeline=None)
    elif how == "build":
        executable = pipeline.build(module())
    else:
        executable = tvm.compile(module(), target, relax_pipeline=relax.get_pipeline("tvm_dyn"))
    for rows in (0, 1, 7):
        got, data = run(executable, rows)
        doubled = 2.0 * data.astype("float64")
        np.testing.assert_allclose(got, gelu(doubled), atol=1e-5)


def test_passes_run_alone_in_order():
    target = host_target()
    with target:
        for _, steps in pipeline.phases(target):
            for step in steps:
                assert isinstance(step, tvm.transform.Pass)


def test_dumps_and_progress(tmp_path):
    seen = []
    pipeline.build(module(), dump=tmp_path / "phases", progress=seen.append)
    names = [name for name, _ in pipeline.phases(host_target())]
    assert seen == [*names, "code generation"]
    assert sorted(p.name for p in (tmp_path / "phases").iterdir()) == [f"{k}_{n}.py" for k, n in enumerate(names)]
    assert "R.call_tir" in (tmp_path / "phases" / "1_legalize.py").read_text()


def test_a_failure_names_its_phase(monkeypatch):
    @tvm.transform.module_pass(opt_level=0)
    def fail(mod, ctx):
        raise ValueError("no")

    monkeypatch.setattr(pipeline, "phases", lambda *_: [("legalize", [fail])])
    with pytest.raises(CompileError, match=r"'legalize' failed.*no") as caught:
        pipeline.build(module())
    assert caught.value.stage == "compile"


def _broken_code(func, target):
    unknown = tirx.call_intrin("float32", "tirx.tvm_bmma_sync", 0)
    return emit.kernel(func, emit.store(func.params[-1], unknown, 0, 0))


def _broken_rule(func, target):
    raise ValueError("a fault of the rule")


@pytest.mark.parametrize("rule", [_broken_code, _broken_rule])
def test_kernels_whose_schedule_fails_go_without_and_say_so(monkeypatch, rule):
    monkeypatch.setattr(schedules, "RULES", (rule,))
    with pytest.warns(KernelFallbackWarning, match="add"):
        executable = pipeline.build(module())
    for rows in (0, 1, 7):
        got, data = run(executable, rows)
        np.testing.assert_allclose(got, gelu(2 * data), atol=1e-5)
