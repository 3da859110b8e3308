"""A library tells what it is, survives a file and a fresh process, and fails with words."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tvm
from modules import aligned, compile_outputs, param
from tvm import relax

import tvm_dyn
from tvm_dyn.errors import CallError, InvalidLibraryError
from tvm_dyn.runtime import executable, memory
from tvm_dyn.runtime.signature import DimInfo, TensorInfo


@pytest.fixture(scope="module")
def exported(pair, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "pair.so"
    pair.export(path)
    return path


def in_fresh_process(code: str, *args: object) -> str:
    """Run code away from the checkout, so that only what it imports itself is there."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_tells_what_it_takes_and_gives(pair):
    assert pair.inputs == (TensorInfo("x", "float32", ("n", 16)), TensorInfo("y", "float32", ("n", 16)))
    assert [(info.name, info.shape) for info in pair.outputs] == [
        ("output_0", ("n", 16)),
        ("output_1", ("n", 16)),
    ]
    assert pair.dims == {"n": DimInfo(0, 2048)}
    assert pair.ops == {"add": 1, "exp": 1}
    assert pair.num_threads == 1
    assert 1 <= len(pair.groups) <= 2
    assert "x: float32(n, 16)" in repr(pair)


def test_a_loaded_library_is_the_same(pair, exported):
    loaded = tvm_dyn.load(exported, num_threads=1)
    for attribute in ("inputs", "outputs", "dims", "ops", "groups"):
        assert getattr(loaded, attribute) == getattr(pair, attribute)
    x, y = aligned((5, 16)), aligned((5, 16), offset=4)
    for ours, theirs in zip(loaded(x, y), pair(x, y), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_export_and_load_print_nothing(tmp_path, capfd):
    weights = relax.const(np.ones((4, 4), "float32"))
    library = compile_outputs(lambda x: [relax.op.matmul(x, weights)], param("x", "float32", "n", 4))
    capfd.readouterr()
    library.export(tmp_path / "quiet.so")
    tvm_dyn.load(tmp_path / "quiet.so")
    assert capfd.readouterr() == ("", "")


def test_a_loaded_library_exports_again(exported, tmp_path):
    tvm_dyn.load(exported).export(tmp_path / "again.so")
    assert tvm_dyn.load(tmp_path / "again.so").groups


def test_it_runs_in_a_fresh_process(exported):
    code = """
        import sys, numpy as np
        sys.path.insert(0, sys.argv[2])
        import tvm_dyn
        total, power = tvm_dyn.load(sys.argv[1])(np.ones((7, 16), "float32"), y=np.ones((7, 16), "float32"))
        print(total.shape, total.min(), total.max(), "onnx" in sys.modules)
    """
    root = os.path.dirname(os.path.dirname(tvm_dyn.__file__))
    assert in_fresh_process(code, exported, root).split("\n")[0] == "(7, 16) 2.0 2.0 False"


def test_it_runs_on_the_bare_tvm_runtime(exported):
    code = """
        import sys, numpy as np, tvm
        from tvm import relax
        machine = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
        for rows in (0, 1, 7, 64):
            ones = tvm.runtime.tensor(np.ones((rows, 16), "float32"))
            total, power = machine["main"](ones, ones)
            assert total.numpy().shape == (rows, 16) and (total.numpy() == 2).all()
        assert not any(name.startswith("tvm_dyn") for name in sys.modules)
        print("ran")
    """
    assert in_fresh_process(code, exported) == "ran\n"


def test_export_is_atomic(pair, tmp_path, monkeypatch):
    path = tmp_path / "lib.so"
    path.write_text("the old library")
    monkeypatch.setattr(executable.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        pair.export(path)
    assert path.read_text() == "the old library"
    assert os.listdir(tmp_path) == ["lib.so"]


def test_export_wants_the_suffix_so(pair, tmp_path):
    with pytest.raises(ValueError, match=r"name it \*\.so"):
        pair.export(tmp_path / "lib.bin")
    with pytest.raises(OSError):
        pair.export(tmp_path / "no such folder" / "lib.so")


def test_load_refuses_other_files(tmp_path, exported):
    cut = tmp_path / "cut.so"
    cut.write_bytes(exported.read_bytes()[:500])
    text = tmp_path / "text.so"
    text.write_text("hello")
    for path in (cut, text, tmp_path / "missing.so", tmp_path):
        with pytest.raises(InvalidLibraryError) as caught:
            tvm_dyn.load(path)
        assert caught.value.stage == "import"


def test_load_refuses_a_library_without_signature(tmp_path):
    builder = relax.BlockBuilder()
    x = param("x", "float32", "n")
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(x + x))
    tvm.compile(builder.get(), tvm.target.Target("llvm")).export_library(str(tmp_path / "stock.so"))
    with pytest.raises(InvalidLibraryError, match="not compiled by tvm_dyn"):
        tvm_dyn.load(tmp_path / "stock.so")


def test_a_failure_inside_tells_the_dims():
    """The check is in the compiled code, where the signature cannot see it."""
    builder = relax.BlockBuilder()
    x = param("x", "float32", "n")
    n = x.ty.shape.values[0]
    with builder.function("main", [x]):
        check = relax.op.assert_op(
            relax.prim_value(n < 5), [relax.prim_value(n)], format="n is too large: {}"
        )
        builder.emit(check)
        builder.emit_func_output(builder.emit(x + x))
    module = builder.get()
    module["main"] = impure(module["main"])
    library = tvm_dyn.compile(module, num_threads=1)
    np.testing.assert_array_equal(library(np.ones(4, "float32"))[0], np.full(4, 2))
    with pytest.raises(
        CallError, match=r"failed on inputs x \(6,\) \(where n = 6\): .*n is too large"
    ) as caught:
        library(np.ones(6, "float32"))
    assert caught.value.stage == "call"
    np.testing.assert_array_equal(library(np.ones(3, "float32"))[0], np.full(3, 2))


def impure(function: relax.Function) -> relax.Function:
    return relax.Function(
        function.params, function.body, function.ret_ty, is_pure=False, attrs=function.attrs
    )


def test_a_model_without_inputs():
    library = compile_outputs(lambda: [relax.op.add(relax.const(1.0), relax.const(2.0))])
    assert library()[0] == 3


def test_the_memory_of_past_shapes_is_given_back(monkeypatch):
    library = compile_outputs(lambda x: [relax.op.sum(x + x)], param("x", "float32", "n"))
    monkeypatch.setattr(memory, "GROWTH_BYTES", 64 << 20)
    rss = memory._process.memory_info
    before = rss().rss
    for rows in range(1 << 20, (1 << 20) + 200 * 1024, 1024):
        library(np.zeros(rows, "float32"))
    assert rss().rss - before < 256 << 20
