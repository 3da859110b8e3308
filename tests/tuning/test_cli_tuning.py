"""The commands around tuning databases."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tuning_cases import HERE, TARGET, product, times, trace_of

from tvm_dyn.cli import main
from tvm_dyn.tuning.database import TuningDatabase


@pytest.fixture
def database(tmp_path):
    database = TuningDatabase(tmp_path / "db")
    for rows in (32, 64, 96, 128):
        database.commit(product(), trace_of(product(), block_rows=rows), TARGET, times(r1=rows * 1e-6, r37=1e-3 / rows))
    return database


def run(*arguments: object):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_ls_and_show(database):
    (row,) = json.loads(run("db", "ls", database.path, "--json"))["workloads"]
    assert (row["records"], row["measured"], row["shapes"]) == (4, 4, 2)
    assert "4" in run("db", "ls", database.path)
    shown = json.loads(run("db", "show", database.path, row["workload"][:6], "--json"))
    assert [r["variant"]["decisions"]["block_rows"] for r in shown] == [32, 64, 96, 128]
    assert "MatmulTile" in run("db", "show", database.path, row["workload"], "--tir")


def test_show_of_nothing_says_what_to_do(database):
    result = CliRunner().invoke(main, ["db", "show", str(database.path), "no"])
    assert result.exit_code != 0 and "db ls" in result.output


def test_prune_keeps_the_fastest_at_each_shape(database):
    run("db", "prune", database.path, "--keep", 1)
    kept = [record.variant.decisions["block_rows"] for record in database.records()]
    assert kept == [32, 128]


def test_prune_drops_what_others_measured(database):
    import dataclasses

    other = dataclasses.replace(HERE, machine="another")
    database.commit(product(32), trace_of(product(32)), TARGET, times(other, r1=1e-6))
    run("db", "prune", database.path, "--keep", 9)
    assert len(database.records()) == 5
    run("db", "prune", database.path, "--keep", 9, "--foreign")
    assert len(database.records()) == 4


def test_export_and_merge(database, tmp_path):
    run("db", "export", database.path, tmp_path / "all.zip")
    other = TuningDatabase(tmp_path / "other")
    assert "8 new lines" in run("db", "merge", other.path, tmp_path / "all.zip")
    assert "0 new lines" in run("db", "merge", other.path, database.path)


def test_damage_is_told(database):
    with open(database.path / "database_shape_times.json", "a") as file:
        file.write("{nonsense\n")
    result = CliRunner().invoke(main, ["db", "ls", str(database.path)])
    assert result.exit_code == 0 and "line 5, is damaged" in " ".join(result.output.split())


def test_tune_options_are_checked(tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"no model")
    result = CliRunner().invoke(main, ["tune", str(model), "--database", str(tmp_path / "db"), "--budget", "soon"])
    assert result.exit_code == 1 and "write 90s" in result.output
