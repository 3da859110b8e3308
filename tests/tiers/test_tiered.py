"""Tier "auto": at once in the virtual machine, then compiled, and clean whatever happens on the way."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_dyn
from tvm_dyn.errors import CompileError
from tvm_dyn.runtime.bytecode import cache


@I.ir_module
class Chain:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32")):
        n = T.int64()  # noqa: F841
        with R.dataflow():
            y = R.nn.softmax(R.nn.gelu(R.add(x, R.const(1.0, "float32"))), axis=-1)
            R.output(y)
        return y


X = np.random.default_rng(0).standard_normal((9, 64)).astype("float32")


@pytest.fixture
def library():
    cache.interpreter()
    library = tvm_dyn.compile(Chain, tier="auto", num_threads=1)
    yield library
    library.stop()


def test_moves_to_compiled_kernels(library, tmp_path):
    first = library(X)[0]
    assert library.tier == "bytecode"
    assert library.wait(240)
    for _ in range(6):
        np.testing.assert_allclose(library(X)[0], first, rtol=1e-5)
    assert library.tier == "llvm" and library.groups
    library.export(tmp_path / "chain.so")
    np.testing.assert_allclose(tvm_dyn.load(tmp_path / "chain.so")(X)[0], first, rtol=1e-5)


def test_stays_where_compiled_kernels_are_slower(library, monkeypatch, tmp_path):
    assert library.wait(240)
    library._receive()
    compiled = library._compiled._main()

    def slow(*tensors):
        time.sleep(0.02)
        return compiled(*tensors)

    monkeypatch.setattr(library._compiled, "_main", lambda: slow)
    for _ in range(6):
        library(X)
    assert library.tier == "bytecode" and library.groups
    library.export(tmp_path / "a.so")  # what was compiled is there all the same


def test_the_compilation_can_be_stopped(library, tmp_path):
    process, folder = library._build._process, library._build._folder.name
    library.stop()
    assert process.poll() is not None and not os.path.exists(folder)
    library(X)
    with pytest.raises(CompileError, match="stopped"):
        library.export(tmp_path / "a.so")


def test_a_failed_compilation_leaves_the_first_tier(library):
    library._build._process.kill()
    library.wait(30)
    with pytest.warns(RuntimeWarning, match="stays in tier 'bytecode'"):
        library(X)
    library(X)
    assert library.tier == "bytecode"


_SCRIPT = """
import os, sys
sys.path[:0] = {path!r}
from test_tiered import Chain, X
import tvm_dyn
library = tvm_dyn.compile(Chain, tier="auto", num_threads=1)
library(X)
print(library._build._process.pid, library._build._folder.name, flush=True)
{then}
"""


@pytest.mark.parametrize(
    "then",
    ["", "raise SystemExit(0)", "pid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse:\n    library(X); sys.exit(0)"],
)
def test_nothing_is_left_at_exit(then):
    cache.interpreter()
    path = [os.path.dirname(__file__), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(path=path, then=then)], capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pid, folder = done.stdout.split()[:2]
    assert not os.path.exists(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
