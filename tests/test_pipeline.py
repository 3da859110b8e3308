"""The pipeline by name, alone, inside tvm.compile, with dumps."""

import math

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_dyn import pipeline
from tvm_dyn.errors import CompileError
from tvm_dyn.hardware import host_target


def module() -> tvm.IRModule:
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.gelu(relax.op.add(x, x)))
        builder.emit_func_output(result)
    return builder.get()


def run(executable: relax.VMExecutable, rows: int) -> tuple[np.ndarray, np.ndarray]:
    data = np.random.default_rng(rows).standard_normal((rows, 8)).astype("float32")
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy(), data


@pytest.mark.parametrize("how", ["named", "inside tvm.compile", "build"])
def test_three_ways_in(how):
    target = host_target()
    if how == "named":
        executable = tvm.compile(
            relax.get_pipeline("tvm_dyn", target=target)(module()), target, relax_pipeline=None
        )
    elif how == "build":
        executable = pipeline.build(module())
    else:
        executable = tvm.compile(module(), target, relax_pipeline=relax.get_pipeline("tvm_dyn"))
    for rows in (0, 1, 7):
        got, data = run(executable, rows)
        doubled = 2.0 * data.astype("float64")
        erf = np.vectorize(math.erf, otypes=["float64"])
        np.testing.assert_allclose(got, doubled * 0.5 * (1 + erf(doubled / np.sqrt(2.0))), atol=1e-5)


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
    assert sorted(p.name for p in (tmp_path / "phases").iterdir()) == [
        f"{k}_{n}.py" for k, n in enumerate(names)
    ]
    assert "R.call_tir" in (tmp_path / "phases" / "1_legalize.py").read_text()


def test_a_failure_names_its_phase(monkeypatch):
    @tvm.transform.module_pass(opt_level=0)
    def fail(mod, ctx):
        raise ValueError("no")

    monkeypatch.setattr(pipeline, "phases", lambda target: [("legalize", [fail])])
    with pytest.raises(CompileError, match=r"'legalize' failed.*no") as caught:
        pipeline.build(module())
    assert caught.value.stage == "compile"
