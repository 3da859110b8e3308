"""The command line: results on stdout, one clear message and the exit code where something is wrong."""

import json

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

from tvm_dyn.cli import main

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, seq] x, int64[batch, seq] ids) => (float[batch, seq] y) {
    z = Cast<to=1>(ids)  s = Add(x, z)  y = Relu(s) }"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    onnx.save(onnx.parser.parse_model(MODEL), path / "model.onnx")
    return path


@pytest.fixture(scope="module")
def library(folder):
    path = str(folder / "model.so")
    result = call(
        "compile",
        str(folder / "model.onnx"),
        "-o",
        path,
        "--dim",
        "seq=2..512/2",
        "--dim",
        "batch=1..8",
        "--json",
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["library"] == path
    assert report["dims"]["seq"]["divisor"] == 2
    assert report["groups"]
    return path


def call(*arguments):
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})


def test_compile_prints_the_signature(folder):
    result = call("compile", str(folder / "model.onnx"), "-o", str(folder / "plain.so"))
    assert result.exit_code == 0, result.output
    for text in ("plain.so", "fusion groups", "(batch, seq)", "int64"):
        assert text in result.stdout


def test_run_on_random_values(library, tmp_path):
    result = call(
        "run",
        library,
        "--random",
        "--dim",
        "batch=3",
        "--output-dir",
        str(tmp_path),
        "--repeat",
        "2",
        "--json",
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    (output,) = report["outputs"]
    assert output["shape"] == [3, 2] and report["milliseconds"] > 0
    assert np.load(output["file"]).shape == (3, 2)
    table = call("run", library, "--random")
    assert table.exit_code == 0 and "(1, 2)" in table.stdout


def test_run_on_files(library, tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 4)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "ids.npy", np.full((2, 4), -1))
    files = [f"--input=x={tmp_path}/x.npy", f"--input=ids={tmp_path}/ids.npy"]
    result = call("run", library, *files, "--output-dir", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), np.maximum(x - 1, 0))
    partly = call("run", library, files[0], "--random", "--json")
    assert json.loads(partly.stdout)["outputs"][0]["shape"] == [2, 4]


def test_info_of_a_model_and_of_its_library(folder, library):
    for path in (str(folder / "model.onnx"), library):
        result = call("info", path)
        assert result.exit_code == 0, result.output
        for text in ("batch", "int64", "operators", "fusion groups", "relu"):
            assert text in result.stdout
        report = json.loads(call("info", path, "--json").stdout)
        assert [tensor["name"] for tensor in report["inputs"]] == ["x", "ids"]
        assert report["ops"] and report["groups"]


FAILURES = {
    "no such model": (2, ["info", "{}/missing.onnx"], "does not exist"),
    "not a model": (1, ["compile", "{}/text.onnx", "-o", "{}/x.so"], "is not an ONNX model"),
    "suffix": (2, ["compile", "{}/model.onnx", "-o", "{}/x.bin"], "name it *.so"),
    "folder": (1, ["compile", "{}/model.onnx", "-o", "{}/none/x.so"], "No such file"),
    "dim syntax": (2, ["compile", "{}/model.onnx", "-o", "{}/x.so", "--dim", "seq:3"], "write NAME=N"),
    "dim name": (1, ["compile", "{}/model.onnx", "-o", "{}/x.so", "--dim", "tokens=3"], "'tokens'"),
    "not a library": (1, ["run", "{}/text.so"], "no library that TVM can load"),
    "no inputs": (1, ["run", "{}/model.so"], "missing input 'x', 'ids'"),
    "input syntax": (2, ["run", "{}/model.so", "--input", "x"], "write NAME=FILE.npy"),
    "input file": (2, ["run", "{}/model.so", "--input", "x={}/text.onnx"], "cannot read"),
    "pickled input": (2, ["run", "{}/model.so", "--input", "x={}/object.npy"], "allow_pickle=False"),
    "random dim": (1, ["run", "{}/model.so", "--random", "--dim", "seq=3..5"], "needs one extent"),
    "random dim name": (
        1,
        ["run", "{}/model.so", "--random", "--dim", "tokens=3"],
        "no symbolic dim 'tokens'",
    ),
    "out of range": (1, ["run", "{}/model.so", "--random", "--dim", "seq=514"], "above its maximum 512"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failures_are_one_message(failure, folder, library):
    code, arguments, message = FAILURES[failure]
    for name in ("text.onnx", "text.so"):
        (folder / name).write_text("hello")
    np.save(folder / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    result = call(*[argument.replace("{}", str(folder)) for argument in arguments])
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output and result.stdout == ""
    assert result.exception is None or isinstance(result.exception, SystemExit)
