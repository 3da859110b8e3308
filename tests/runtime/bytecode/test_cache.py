"""The interpreter's file: one for each target and instruction set, whole or absent."""

import shutil
import subprocess
import sys

import pytest
from tvm.target import Target

from tvm_dyn import hardware
from tvm_dyn.runtime.bytecode import cache, isa

HOST = hardware.host_target()


@pytest.fixture
def folder(tmp_path):
    """A folder with this machine's interpreter in it."""
    cache.interpreter()
    shutil.copy(cache._file(HOST, cache.default_folder()), tmp_path)
    return tmp_path


def test_the_name_tells_target_and_instruction_set(tmp_path, monkeypatch):
    names = {cache._file(target, tmp_path) for target in (HOST, Target({"kind": "llvm", "mcpu": "x86-64-v3"}))}
    monkeypatch.setattr(isa, "version", lambda: "another")
    names.add(cache._file(HOST, tmp_path))
    assert len(names) == 3


def test_a_file_is_loaded_and_not_built(folder, monkeypatch):
    monkeypatch.setattr(cache, "_compile", lambda target: pytest.fail("built again"))
    assert cache.load_interpreter(HOST, folder)[cache.ENTRY]


def test_a_build_that_fails_leaves_no_file(tmp_path, monkeypatch):
    class Unlinkable:
        def export_library(self, path):
            with open(path, "wb") as file:
                file.write(b"half")
            raise RuntimeError("no linker")

        def jit(self):
            return "in memory"

    monkeypatch.setattr(cache, "_compile", lambda target: Unlinkable())
    assert cache.load_interpreter(HOST, tmp_path) == "in memory"
    assert not list(tmp_path.glob("*.so")) and not list(tmp_path.glob(".interpreter*"))


@pytest.mark.slow
def test_processes_that_start_together_build_once(tmp_path):
    code = (
        "import sys, pathlib; from tvm_dyn import hardware; from tvm_dyn.runtime.bytecode import cache\n"
        "build = cache._build\n"
        "cache._build = lambda *args: (print('built'), build(*args))\n"
        "cache.load_interpreter(hardware.host_target(), pathlib.Path(sys.argv[1]))[cache.ENTRY]"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in running]
    assert "".join(outputs).count("built") == 1
    assert all(process.returncode == 0 for process in running)
