"""`tvm-dyn explain` on a library: figures, tables, maps, and what it refuses."""

import json

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

import tvm_dyn
from tvm_dyn.cli import main
from tvm_dyn.hardware import host_target

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, seq, 32] x) => (float[batch, seq, 48] y) { z = MatMul(x, w)  s = Softmax(z)  y = Relu(s) }"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    model = onnx.parser.parse_model(MODEL)
    weights = np.random.default_rng(0).standard_normal((32, 48), "float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path_factory.mktemp("explain") / "model.so"
    tvm_dyn.compile(model, host_target(num_cores=2), dims={"seq": tvm_dyn.Dim(1, 512)}).export(path)
    return str(path)


def call(*arguments):
    return CliRunner().invoke(main, ["explain", *arguments], env={"COLUMNS": "250"})


def test_json(library):
    result = call(library, "--dim", "seq=37", "--dim", "batch=2", "--threads", "1", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["dims"] == {"batch": 2, "seq": 37} and said["threads"] == 1
    (entry,) = [e for e in said["groups"] if e["variant"] is not None]
    assert entry["extents"] == {"batch": 1, "rows": 74, "columns": 48, "depth": 32}
    assert entry["predicted_us"] > 0 and entry["bound_by"] in entry["terms_us"] and entry["runner_up"] is not None
    loaded = tvm_dyn.load(library, num_threads=1)
    assert loaded.explain(batch=2, seq=37) == said
    reported = {group["name"]: [v["name"] for v in group["variants"]] for group in loaded.report()["groups"]}
    assert entry["variant"] in reported[entry["name"]] and entry["runner_up"] in reported[entry["name"]]


def test_text(library):
    result = call(library, "--dim", "seq=37", "--dim", "batch=2")
    assert result.exit_code == 0, result.output
    assert "PackedTile" in result.stdout and "rows=74" in result.stdout


def test_map(library, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "map.html"
    result = call(library, "--dim", "seq=1..512", "--dim", "batch=1..64", "--map", str(path))
    assert result.exit_code == 0, result.output
    assert "<img" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dim", "seq=37"], "dim 'batch' needs an extent"),
        (["--dim", "seq=37", "--dim", "batch=2", "--dim", "x=2"], "there is no dim 'x'"),
        (["--dim", "seq=513", "--dim", "batch=2"], "above its maximum 512"),
        (["--dim", "seq=1..9", "--dim", "batch=2"], "is a range"),
        (["--dim", "seq=1..9", "--dim", "batch=2..", "--map", "m.png"], "has no end"),
        (["--dim", "seq=1..9", "--dim", "batch=2", "--map", "m.pdf"], "*.png or *.html"),
    ],
)
def test_refusals(library, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(library, *arguments)
    assert result.exit_code == 1 and message in result.output
    assert [*tmp_path.iterdir()] == []
