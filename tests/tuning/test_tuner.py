"""The tuner on invented times: budgets, faults, interrupts, resumption, and that what is best is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from models import Clock, InventedTimes, mlp
from tuning_cases import HERE, TARGET

import tvm_dyn
from tvm_dyn.dims import Dim
from tvm_dyn.embed import with_signature
from tvm_dyn.errors import TuningError
from tvm_dyn.pipeline import fused
from tvm_dyn.runtime.variants import decide
from tvm_dyn.tuning import tuner as tuner_module
from tvm_dyn.tuning.choose import choose
from tvm_dyn.tuning.database import TuningDatabase
from tvm_dyn.tuning.reuse import DatabaseChoices
from tvm_dyn.tuning.session import parse_budget
from tvm_dyn.tuning.tasks import extract_backbone_tasks
from tvm_dyn.tuning.tuner import Tuner
from tvm_dyn.tuning.variants import variant_of_tile


@pytest.fixture(scope="module")
def module():
    return with_signature(mlp(), {"n": Dim(1, 256)})


@pytest.fixture(scope="module")
def tasks(module):
    return extract_backbone_tasks(module, TARGET)


def test_trials_are_a_limit_and_every_backbone_gets_some(tasks, tmp_path):
    tuner = Tuner(tasks, TARGET, TuningDatabase(tmp_path), trials=12)
    tuner.run(InventedTimes())
    assert [search.trials for search in tuner.searches] == [12, 12]
    assert len(tuner.database.records()) == 24 and not tuner.interrupted


def test_the_best_candidates_are_found(tasks, tmp_path):
    tuner = Tuner(tasks[:1], TARGET, TuningDatabase(tmp_path), trials=32)
    tuner.run(InventedTimes())
    (search,) = tuner.searches
    variants = [variant_of_tile(tile) for tile in search.task.space.candidates]
    ideal = [min(InventedTimes.seconds(v, p.extents["rows"]) for v in variants) for p in search.task.points]
    assert np.all(search.best <= 1.05 * np.array(ideal))
    assert search.expected_seconds <= search.untuned_seconds


def test_candidates_of_no_worth_are_not_measured(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(tuner_module, "_WORTHWHILE", 0.02)
    tuner = Tuner(tasks[:1], TARGET, TuningDatabase(tmp_path), trials=10_000)
    tuner.run(InventedTimes())
    assert tuner.measured < len(tuner.searches[0].candidates)


def test_a_budget_ends_the_search(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(tuner_module.time, "monotonic", Clock())
    tuner = Tuner(tasks, TARGET, TuningDatabase(tmp_path), budget=30.0)
    tuner.run(InventedTimes())
    assert 0 < tuner.measured < 30 and tuner.seconds_left == 0.0


def test_an_interrupt_keeps_what_was_measured_and_a_later_run_goes_on(tasks, tmp_path):
    first = Tuner(tasks, TARGET, TuningDatabase(tmp_path), trials=10)
    first.run(InventedTimes(stop_after=5))
    assert first.interrupted and len(TuningDatabase(tmp_path).records()) == 5
    second, pool = Tuner(tasks, TARGET, TuningDatabase(tmp_path), trials=10), InventedTimes()
    assert sum(search.restored for search in second.searches) == 5
    second.run(pool)
    assert pool.evaluated == 15 and [search.trials for search in second.searches] == [10, 10]


def test_times_of_another_machine_are_measured_again(tasks, tmp_path, monkeypatch):
    Tuner(tasks[:1], TARGET, TuningDatabase(tmp_path), trials=4).run(InventedTimes())
    monkeypatch.setattr("tvm_dyn.tuning.records.machine_key", lambda: "another machine")
    other = Tuner(tasks[:1], TARGET, TuningDatabase(tmp_path), trials=4)
    assert other.searches[0].restored == 0


def test_faulty_candidates_are_not_chosen_nor_tried_again(tasks, tmp_path):
    tuner = Tuner(tasks[:1], TARGET, TuningDatabase(tmp_path), trials=40)
    tuner.run(InventedTimes(faulty=2))
    (search,) = tuner.searches
    faulty = [c for c in search.candidates if c.fault]
    assert faulty and all(c.variant.decisions["vectors"] == 2 for c in faulty)
    chosen = choose(search, tuner.predictor, 1, "tuned")
    assert all(c.variant.decisions["vectors"] != 2 for c in chosen.candidates)
    again = Tuner(tasks[:1], TARGET, TuningDatabase(tmp_path), trials=40)
    assert again.searches[0].restored == search.trials


def test_the_choice_has_little_regret_and_one_layout(tasks, tmp_path):
    tuner = Tuner(tasks[:1], TARGET, TuningDatabase(tmp_path), trials=40)
    tuner.run(InventedTimes())
    (search,) = tuner.searches
    chosen = choose(search, tuner.predictor, 1, "tuned")
    assert chosen.regret < 0.35 and 1 <= len(chosen.choice.traces) <= 10
    assert len({c.tile.width for c in chosen.candidates}) == 1
    for place in search.task.points:
        assert 0 <= decide(chosen.choice.tree, place.extents) < len(chosen.choice.traces)


def test_a_database_decides_for_another_model_of_the_same_backbones(tasks, tmp_path, monkeypatch):
    database = TuningDatabase(tmp_path)
    Tuner(tasks, TARGET, database, trials=12).run(InventedTimes())
    choices = DatabaseChoices(database, TARGET)
    choices.prepare(fused(with_signature(mlp(name="seq", layers=2), {"seq": Dim(1, 99)}), TARGET))
    assert [reuse.source for reuse in choices.reused] == ["database", "database"] and len(choices) == 2
    known = {record.key[1] for record in database.records()}
    assert all(set(reuse.records) <= known and reuse.records for reuse in choices.reused)


def test_other_backbones_are_chosen_for_by_what_was_learned(tasks, tmp_path):
    database = TuningDatabase(tmp_path)
    Tuner(tasks, TARGET, database, trials=12).run(InventedTimes())
    choices = DatabaseChoices(database, TARGET)
    choices.prepare(fused(with_signature(mlp(64, 192), {}), TARGET))
    assert [(reuse.source, reuse.records) for reuse in choices.reused] == [("model", ())] * 2
    empty = DatabaseChoices(TuningDatabase(tmp_path / "empty"), TARGET)
    empty.prepare(fused(with_signature(mlp(64, 192), {}), TARGET))
    assert [reuse.source for reuse in empty.reused] == ["default", "default"] and len(empty) == 0


def test_tune_then_compile(tmp_path):
    model = mlp(80, 96)
    report = tvm_dyn.tune(model, dims={"n": Dim(1, 64)}, database=tmp_path, trials=3)
    assert report.measured == 6 and all(not task.faults for task in report.tasks)
    assert tvm_dyn.tune(model, dims={"n": Dim(1, 64)}, database=tmp_path, trials=3).measured == 0
    library, plain = tvm_dyn.compile(model, database=tmp_path), tvm_dyn.compile(model)
    assert [reuse.source for reuse in library.reused] == ["database", "database"] and plain.reused == ()
    for rows in (0, 1, 5, 6, 7, 13, 64, 101):
        x = np.random.default_rng().standard_normal((rows, 80)).astype("float32")
        np.testing.assert_allclose(library(x)[0], plain(x)[0], rtol=1e-4, atol=1e-5)
    (record, *_) = TuningDatabase(tmp_path).records()
    assert record.measurements[0].conditions == HERE


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5min", 300), ("10m", 600), ("1.5h", 5400), ("7", 7), (3, 3), (None, None)]
)
def test_budgets(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["soon", "5 days", "0s", -1, 0, "-3s"])
def test_bad_budgets(text):
    with pytest.raises(TuningError, match="budget"):
        parse_budget(text)
