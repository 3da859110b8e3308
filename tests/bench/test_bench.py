"""The benchmark command: its arithmetic, its file, and one tiny case from end to end."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from tvm_dyn import bench
from tvm_dyn.bench import peers, report, runner, timing
from tvm_dyn.bench.case import Case, aligned, normal, parse_graph
from tvm_dyn.bench.report import FASTEST, Row, geomean, summarize
from tvm_dyn.cli import main
from tvm_dyn.errors import BenchError


def tiny(**changes):
    def torch_function():
        import torch

        return torch.relu

    given = {
        "suite": "tiny",
        "name": "relu",
        "shapes": [{"n": 3}, {"n": 17}],
        "model": lambda: parse_graph("(float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }", {}),
        "inputs": lambda shape, generator: {"x": normal(generator, shape["n"], 4)},
        "torch": torch_function,
        "flops": lambda shape: 4.0 * shape["n"],
    }
    return Case(**{**given, **changes})


def row(ours, ort, torch, case="a", **others):
    seconds = {"tvm_dyn": ours, "onnxruntime": ort, "torch": torch, **others}
    return Row("tiny", case, {"n": 3}, 1, seconds, None)


def test_ratios_are_ours_over_theirs():
    ratios = row(2.0, 4.0, 1.0).ratios()
    assert ratios == {"onnxruntime": 0.5, "torch": 2.0, FASTEST: 2.0}


def test_geomean():
    assert math.isclose(geomean([0.5, 2.0, 8.0]), 2.0)
    assert math.isclose(geomean([0.9]), 0.9)


def test_summary_counts_a_peer_over_the_rows_it_ran_in():
    rows = [row(1.0, 2.0, 4.0, openvino=0.5), row(1.0, 8.0, 1.0, case="b")]
    summary = summarize(rows)
    assert math.isclose(summary.means["onnxruntime"], 0.25)
    assert math.isclose(summary.means["torch"], 0.5)
    assert math.isclose(summary.means["openvino"], 2.0)
    assert math.isclose(summary.means[FASTEST], math.sqrt(2.0))
    assert summary.worst is rows[0]


def test_json_replaces_the_file_whole(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text("old")
    report.write_json(path, {"cores": 2}, {"torch": "1"}, [row(1.0, 2.0, 3.0)])
    found = json.loads(path.read_text())
    assert found["machine"] == {"cores": 2} and found["versions"] == {"torch": "1"}
    assert set(found["rows"][0]) == {"suite", "case", "shape", "threads", "seconds", "peak_fraction"}
    with pytest.raises(TypeError):
        report.write_json(path, {"cores": object()}, {}, [])
    assert json.loads(path.read_text()) == found
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suite", bench.SUITES)
def test_suites_have_distinct_cases_and_fresh_inputs(suite):
    cases = bench.SUITES[suite]()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.suite == suite and len({tuple(shape.items()) for shape in case.shapes}) == len(case.shapes) >= 4
        smallest = min(case.shapes, key=lambda shape: math.prod(shape.values()))
        one, two = case.feeds(smallest, 2)
        assert all(array.ctypes.data % 64 == 0 for array in one.values())
        assert any(not np.array_equal(one[name], two[name]) for name in one)


def test_aligned_copies_empty_and_strided_arrays():
    assert aligned(np.empty((0, 3), "float32")).shape == (0, 3)
    np.testing.assert_array_equal(aligned(np.arange(6).reshape(2, 3).T), np.arange(6).reshape(2, 3).T)


def test_turns_cover_everybody_and_every_input():
    made = []
    calls = {name: [lambda mark=(name, way): made.append(mark) for way in range(2)] for name in "ab"}
    best = timing.take_turns(calls, threads=1, rounds=3, seconds=60.0)
    assert set(made) == {(name, way) for name in "ab" for way in range(2)}
    assert all(0 < seconds < 60 for seconds in best.values())


def test_one_case_from_end_to_end(tmp_path, monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.setitem(bench.SUITES, "dense", lambda: [tiny(), tiny(name="other")])
    path = tmp_path / "figures.json"
    result = CliRunner().invoke(main, ["bench", "dense", "--case", "relu", "--rounds", "1", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "geometric means" in result.stdout and "GFLOP/s" in result.stdout
    found = json.loads(path.read_text())
    assert [r["shape"] for r in found["rows"]] == [{"n": 3}, {"n": 17}]
    for r in found["rows"]:
        assert (r["suite"], r["case"], r["threads"]) == ("tiny", "relu", 1)
        assert set(r["seconds"]) == {"tvm_dyn", "onnxruntime", "openvino", "torch"}
        assert all(seconds > 0 for seconds in r["seconds"].values()) and 0 < r["peak_fraction"] < 1
    assert found["machine"]["fma_peak_flops"] > 1e9 and found["versions"]["onnxruntime"]
    result = CliRunner().invoke(main, ["bench", "dense", "--case", "nothing"])
    assert result.exit_code == 2 and "nothing" in result.stderr


class Numpy:
    """A contestant that answers with a constant function of the input."""

    def __init__(self, function):
        self.function = function

    def bind(self, feed):
        return lambda: self.function(feed["x"])

    def arrays(self, result):
        return [result]


def run(monkeypatch, functions, path):
    made = {name: Numpy(function) for name, function in functions.items()}
    monkeypatch.setattr(runner, "contestants", lambda *_: made)
    quiet = Console(quiet=True)
    return runner.run_suite([tiny()], 1, 1, path, quiet, quiet)


def test_contestants_that_disagree_are_an_error(monkeypatch, tmp_path):
    with pytest.raises(BenchError, match="torch and tvm_dyn differ"):
        run(monkeypatch, {"tvm_dyn": np.abs, "torch": lambda x: x}, None)
    with pytest.raises(BenchError, match="inf"):
        run(monkeypatch, {"tvm_dyn": np.abs, "torch": lambda x: np.abs(x[1:])}, None)


def test_an_interrupt_keeps_what_was_measured(monkeypatch, tmp_path):
    def interrupted(x):
        if len(x) == 17:
            raise KeyboardInterrupt
        return x

    path = tmp_path / "figures.json"
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, {"tvm_dyn": interrupted, "torch": interrupted}, path)
    assert [r["shape"] for r in json.loads(path.read_text())["rows"]] == [{"n": 3}]


def test_a_missing_peer_names_the_extra(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(peers.importlib, "import_module", missing)
    with pytest.raises(BenchError, match=r"tvm-dyn\[bench\]"):
        peers.contestants(tiny(), 1, lambda _: None)
