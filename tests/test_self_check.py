"""The self-check: passes on right kernels, names wrong ones, skips what cannot run alone and says so."""

import json
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import tvm
from click.testing import CliRunner
from tvm import relax, te, tirx
from tvm.relax import op
from tvm.target import Target

import tvm_dyn
from tvm_dyn import pipeline, schedules
from tvm_dyn.cli import main
from tvm_dyn.errors import CompileError
from tvm_dyn.hardware import host_target, runs_here
from tvm_dyn.kernel_cases import NotAlone, random_arrays, tensors
from tvm_dyn.schedules import emit
from tvm_dyn.self_check import SelfCheck, _difference

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, 16] x, int64[batch] ids, float[5, 16] table) => (float[batch, 16] y, float[rest, 2] z) {
    row = Gather(table, ids)  s = Add(x, row)  y = Softmax<axis=-1>(s)
    some = NonZero(ids)  at = Transpose(some)  first = Cast<to=1>(at)  z = Concat<axis=1>(first, first) }"""


def module(inputs, graph) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(graph(*params)))
        builder.emit_func_output(result)
    return builder.get()


def check(mod: tvm.IRModule, target: Target | None = None) -> SelfCheck:
    checker = SelfCheck(target or host_target(), lambda phase: None)
    pipeline.build(mod, target, check=checker)
    return checker


N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


@pytest.mark.parametrize(
    "inputs, graph",
    [
        ([((N, M), "float32"), ((M, 24), "float32")], lambda x, w: op.nn.relu(op.matmul(x, w))),
        ([((N, M), "float32")], lambda x: op.sqrt(op.sum(x, axis=-1))),
        ([((N, 3), "int32"), ((N, 1), "int32")], lambda x, y: op.floor_divide(x, y)),
        ([((N, 8), "float16")], lambda x: op.nn.softmax(x)),
        ([((N, 4, 5), "float32")], lambda x: op.tile(x, (6, 4, 2))),
        ([((N, M), "float32")], lambda x: op.astype(op.round(op.multiply(x, x)), "int8")),
        ([((N, M), "float32")], lambda x: op.argmax(x, axis=1)),
        ([((1, 3, N, M), "float32"), ((4, 3, 8, 8), "float32")], lambda x, w: op.nn.conv2d(x, w, strides=8)),
    ],
)
def test_right_kernels_pass(inputs, graph):
    summary = check(module(inputs, graph)).summary
    assert summary.runs and all(runs >= 4 for runs in summary.runs.values())
    assert not summary.skipped


def test_a_model_with_what_cannot_run_alone():
    phases = []
    library = tvm_dyn.compile(onnx.parser.parse_model(MODEL), self_check=True, progress=phases.append)
    assert any(phase.startswith("self-check 1/") for phase in phases)
    assert library.self_check.runs
    assert "kernels right in" in str(library.self_check)
    for name, reason in library.self_check.skipped.items():
        assert f"{name}: {reason}" in str(library.self_check)


def test_reads_of_what_is_not_there():
    """The first column of a tensor that may have none: a model has to check that, and its kernel is not run so."""
    whole = te.placeholder((N, M), name="whole")
    kernel = te.create_prim_func([whole, te.compute((N, 1), lambda i, j: whole[i, j])])
    rows, columns = tensors(kernel)[0].ty.shape
    extents: Any = {rows: 3, columns: 2}
    assert [a.shape for a in random_arrays(kernel, extents, np.random.default_rng(), False)] == [(3, 2), (3, 1)]
    extents = {rows: 3, columns: 0}
    with pytest.raises(NotAlone, match="reads element"):
        random_arrays(kernel, extents, np.random.default_rng(), False)


def one_row_short(func, _target):
    """A rule that forgets the last element of what it can read as one row."""
    source, *_, result = func.params
    return emit.kernel(
        func, emit.serial(source.ty.shape[0] - 1, lambda i: emit.store(result, emit.load(source, i) * 2.0, i))
    )


def test_a_wrong_schedule_is_named(monkeypatch):
    monkeypatch.setattr(schedules, "RULES", (one_row_short,))
    with pytest.raises(CompileError, match=r"kernel add \(T_add\) .* at n=\d+: 1 of \d+ elements .*mcpu"):
        check(module([((N,), "float32")], lambda x: op.add(x, x)))


def test_targets_of_other_machines():
    other = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu" if runs_here(Target("llvm")) else "x86_64-linux"})
    with pytest.raises(CompileError, match="cannot run code for"):
        tvm_dyn.compile(module([((N,), "float32")], lambda x: x), other, self_check=True)


def test_differences():
    right = np.array([1.0, np.nan, -np.inf, 3.0], "float32")
    assert _difference(right.copy(), right, 0.0) is None
    for place, wrong in ((0, 2.0), (1, 1.0), (2, np.inf), (3, np.nan)):
        found = right.copy()
        found[place] = wrong
        assert f"at [{place}], which is {wrong} instead of {right[place]}" in str(_difference(found, right, 0.0))
        assert _difference(found, right, 0.25) is None
    assert "by 1 at [0]" in str(_difference(np.array([3]), np.array([2]), 0.0))
    assert _difference(np.zeros((0, 2)), np.zeros((0, 2)), 0.0) is None


def test_command_line(tmp_path):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    arguments = ["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.so"), "--self-check"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "self-check: " in result.stdout
    report = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert set(report["self_check"]) == {"runs", "skipped", "partly"}
