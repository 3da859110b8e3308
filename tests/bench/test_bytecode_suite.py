"""The suite of the virtual machine: its figures are of results that agree."""

import json

from click.testing import CliRunner

from tvm_dyn.cli import main


def test_a_figure_from_end_to_end(tmp_path):
    file = tmp_path / "figures.json"
    done = CliRunner().invoke(main, ["bench", "bytecode", "--case", "softmax 1e+04", "--json", str(file)])
    assert done.exit_code == 0, done.output
    rows = json.loads(file.read_text())["rows"]
    assert [row["rival"] for row in rows] == ["compiled", "torch"]
    assert all(row["ours"] > 0 and row["theirs"] > 0 for row in rows)
    assert "softmax 1e+04" in done.output
