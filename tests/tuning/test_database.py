"""The tuning database: what is committed is found again by anybody, whatever happens to writers and files."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import time
import warnings

import pytest
from tuning_cases import HERE, TARGET, product, times, trace_of
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord

from tvm_dyn.errors import DamagedRecordWarning, DatabaseError
from tvm_dyn.schedules.replay import replay
from tvm_dyn.tuning.database import FILES, RECORDS, TIMES, WORKLOADS, TuningDatabase


def test_a_record_is_found_by_a_backbone_with_other_names(tmp_path):
    TuningDatabase(tmp_path).commit(product(), trace_of(product(), block_rows=96), TARGET, times(r1=1e-6, r37=2e-5))
    (found,) = TuningDatabase(tmp_path).records(product(name="seq"))
    assert found.seconds(HERE) == {(("rows", 1),): 1e-6, (("rows", 37),): 2e-5}
    assert found.variant.kind == "MatmulTile" and found.variant.decisions["block_rows"] == 96
    annotations = str(replay(found.trace, product(name="seq")))
    assert '"tvm_dyn.tile.block_rows": 96' in annotations


def test_other_backbones_have_no_record(tmp_path):
    database = TuningDatabase(tmp_path)
    database.commit(product(), trace_of(product()), TARGET, times(r1=1e-6))
    assert database.records(product(depth=32)) == []


@pytest.mark.parametrize("field", ["machine", "target", "versions", "threads"])
def test_times_of_other_conditions_are_not_taken(tmp_path, field):
    elsewhere = dataclasses.replace(HERE, **{field: 7 if field == "threads" else "another"})
    database = TuningDatabase(tmp_path)
    database.commit(product(), trace_of(product()), TARGET, times(elsewhere, r1=1e-6))
    (record,) = database.records(product())
    assert record.seconds(HERE) == {} and record.seconds(elsewhere)


def test_of_several_measurements_of_a_shape_the_least_counts(tmp_path):
    database = TuningDatabase(tmp_path)
    for seconds in (3e-6, 1e-6, 2e-6):
        database.commit(product(), trace_of(product()), TARGET, times(r1=seconds))
    (record,) = database.records()
    assert record.seconds(HERE) == {(("rows", 1),): 1e-6}


def test_faults_are_kept_and_are_no_record_of_metaschedule(tmp_path):
    database = TuningDatabase(tmp_path)
    fault = dataclasses.replace(times(), fault="wrong result")
    database.commit(product(), trace_of(product()), TARGET, fault)
    (record,) = TuningDatabase(tmp_path).records()
    assert record.fault(HERE) == "wrong result"
    assert len(JSONDatabase(work_dir=str(tmp_path)).get_all_tuning_records()) == 0


def test_stock_metaschedule_opens_ours(tmp_path):
    database = TuningDatabase(tmp_path)
    for rows in (32, 64):
        database.commit(product(), trace_of(product(), block_rows=rows), TARGET, times(r1=rows * 1e-6))
    stock = JSONDatabase(work_dir=str(tmp_path))
    workload = database.records()[0].workload.workload
    assert stock.has_workload(workload.mod)
    best = stock.query_tuning_record(workload.mod, TARGET, "main")
    assert [float(s) for s in best.run_secs] == [32e-6]


def test_we_open_a_stock_database(tmp_path):
    stock = JSONDatabase(work_dir=str(tmp_path))
    backbone = product()
    module = __import__("tvm").IRModule({"main": backbone.with_attr("global_symbol", "main")})
    workload = stock.commit_workload(module)
    stock.commit_tuning_record(TuningRecord(trace_of(backbone), workload, [5e-6], TARGET, None))
    (record,) = TuningDatabase(tmp_path).records(product(name="n"))
    assert [run[0] for run in record.runs] == [[5e-6]] and record.measurements == []
    assert record.variant.kind == "MatmulTile"


def test_an_open_database_sees_what_others_add(tmp_path):
    mine, theirs = TuningDatabase(tmp_path), TuningDatabase(tmp_path)
    theirs.commit(product(), trace_of(product()), TARGET, times(r1=1e-6))
    assert len(mine.records()) == 1
    mine.prune(lambda record: None)
    assert theirs.records() == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["{half", "null", '[3, "x"]', "\x00\x01", '{"workload": 5}', '["1", "bm8="]'])
def test_a_damaged_line_is_reported_and_skipped(tmp_path, name, damage):
    database = TuningDatabase(tmp_path)
    database.commit(product(), trace_of(product()), TARGET, times(r1=1e-6))
    with open(tmp_path / name, "a") as file:
        file.write(damage + "\n")
    with pytest.warns(DamagedRecordWarning, match=f"{name}, line 2"):
        again = TuningDatabase(tmp_path)
    again.commit(product(depth=32), trace_of(product(depth=32)), TARGET, times(r1=1e-6))
    assert len(again.damaged) == 1 and len(again.records()) == 2
    assert again.prune(lambda record: record) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(TuningDatabase(tmp_path).records()) == 2
    assert len(JSONDatabase(work_dir=str(tmp_path)).get_all_tuning_records()) == 2


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_torn_tail_is_cut_off_and_kept_aside(tmp_path, name, share):
    database = TuningDatabase(tmp_path)
    for depth in (32, 64):
        database.commit(product(depth), trace_of(product(depth)), TARGET, times(r1=1e-6))
    whole = (tmp_path / name).read_bytes()
    first, second = whole.splitlines(keepends=True)
    torn = second[: max(int(len(second) * share), 1)]
    (tmp_path / name).write_bytes(first + torn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedRecordWarning)
        again = TuningDatabase(tmp_path)
        again.commit(product(64), trace_of(product(64)), TARGET, times(r1=1e-6))
    assert (tmp_path / f"{name}.damaged").read_bytes() == torn + b"\n"
    assert len(again.records(product(64))) == 1 and len(again.records(product(32))) == 1
    assert all(json.loads(line) for line in (tmp_path / name).read_text().splitlines())


def test_a_last_line_without_its_newline_counts(tmp_path):
    database = TuningDatabase(tmp_path)
    database.commit(product(), trace_of(product()), TARGET, times(r1=1e-6))
    for name in FILES:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes().rstrip(b"\n"))
    database.commit(product(), trace_of(product(), block_rows=32), TARGET, times(r1=2e-6))
    assert len(TuningDatabase(tmp_path).records()) == 2


@pytest.mark.parametrize("complete", [True, False])
def test_a_rewrite_that_was_killed_is_finished_or_forgotten(tmp_path, complete):
    database = TuningDatabase(tmp_path)
    database.commit(product(), trace_of(product()), TARGET, times(r1=1e-6))
    staging = tmp_path / ".rewrite"
    staging.mkdir()
    for name in FILES[1:]:  # the first one is in its place already
        (staging / name).write_text("")
    if complete:
        (staging / "complete").write_text("")
    assert len(TuningDatabase(tmp_path).records()) == (0 if complete else 1)
    assert not staging.exists()


def test_merge_is_a_union(tmp_path):
    left, right = TuningDatabase(tmp_path / "left"), TuningDatabase(tmp_path / "right")
    right.commit(product(16), trace_of(product(16)), TARGET, times(r1=1e-6))
    left.commit(product(32), trace_of(product(32)), TARGET, times(r1=1e-6))
    right.commit(product(32), trace_of(product(32)), TARGET, times(r1=1e-6))
    right.commit(product(32), trace_of(product(32)), TARGET, times(r37=2e-6))
    assert left.merge(tmp_path / "right") == 4
    assert left.merge(tmp_path / "right") == 0
    (record,) = left.records(product(32))
    assert len(record.seconds(HERE)) == 2
    stock = JSONDatabase(work_dir=str(tmp_path / "left"))
    assert len(stock.get_all_tuning_records()) == 3
    assert {int(r.workload.mod["main"].params[0].ty.shape[1]) for r in stock.get_all_tuning_records()} == {16, 32}


def test_export_and_import(tmp_path):
    database = TuningDatabase(tmp_path / "db")
    for depth in (16, 32):
        database.commit(product(depth), trace_of(product(depth)), TARGET, times(r1=1e-6))
    wanted = database.records(product(32))[0].key
    assert database.export(tmp_path / "one.zip", lambda r: r if r.key == wanted else None) == 1
    other = TuningDatabase(tmp_path / "other")
    assert other.merge(tmp_path / "one.zip") == 2
    assert [r.key for r in other.records()] == [wanted]
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["one.zip"]


def test_paths_that_are_no_database(tmp_path):
    (tmp_path / "file").write_text("no zip")
    with pytest.raises(DatabaseError, match="name a folder"):
        TuningDatabase(tmp_path / "file")
    database = TuningDatabase(tmp_path / "db")
    with pytest.raises(DatabaseError, match="not an exported"):
        database.merge(tmp_path / "file")
    with pytest.raises(DatabaseError, match="check the path"):
        database.merge(tmp_path / "nowhere")


def _write(folder, number, count, started):
    database = TuningDatabase(folder)
    started.set()
    for i in range(count):
        depth = 16 * (1 + i % 3)
        trace = trace_of(product(depth), block_rows=1000 * number + i)
        database.commit(product(depth), trace, TARGET, times(r1=1e-6))


def test_two_writers_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, n, 10, context.Event())) for n in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [w.exitcode for w in writers] == [0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        database = TuningDatabase(tmp_path)
    assert len(database.records()) == 20
    assert sum(len(r.runs) for r in database.records()) == 20
    assert len((tmp_path / WORKLOADS).read_text().splitlines()) == 3


def test_a_killed_writer_loses_nothing_committed(tmp_path):
    context = multiprocessing.get_context("fork")
    written = 0
    for turn in range(8):
        started = context.Event()
        writer = context.Process(target=_write, args=(tmp_path, turn, 10_000, started))
        writer.start()
        assert started.wait(60)
        time.sleep(0.1 + 0.013 * turn)
        before = len((tmp_path / TIMES).read_bytes().splitlines()) if (tmp_path / TIMES).exists() else 0
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(60)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            database = TuningDatabase(tmp_path)
        found = sum(len(record.measurements) for record in database.records())
        assert found >= max(before - 1, written)
        written = found
        for name in (WORKLOADS, RECORDS, TIMES):
            assert all(json.loads(line) for line in (tmp_path / name).read_text().splitlines())
    assert written > 8
    JSONDatabase(work_dir=str(tmp_path))
