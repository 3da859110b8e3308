"""Regret: its arithmetic on times that are made up, and the whole on a backbone that is small."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console

from tvm_dyn.bench.suites import regret
from tvm_dyn.bench.variant_times import VariantTimes, as_variant, some_tiles
from tvm_dyn.hardware import host_target
from tvm_dyn.runtime.occupancy import Machine, estimate
from tvm_dyn.schedules.matmul_packed import PackedTile
from tvm_dyn.schedules.space import Space
from tvm_dyn.tuning.tasks import TaskPoint

TARGET = host_target(num_cores=1)
TILES = PackedTile.candidates(TARGET, "float32", 768, 768)[::5]


def _times(columns: int, depth: int, slow: int) -> VariantTimes:
    """What the closed form says, but that panels of ``slow`` vectors take half as long again."""
    variants = tuple(map(as_variant, TILES))
    extents = [{"batch": 1, "rows": m, "columns": columns, "depth": depth} for m in (1, 2, 5, 6, 7, 12, 37, 100, 256)]
    machine = Machine.for_target(TARGET)
    seconds = np.array([[estimate(v, e, machine).seconds for v in variants] for e in extents])
    seconds[:, [v.decisions["vectors"] == slow for v in variants]] *= 1.5
    return VariantTimes(variants, tuple(TaskPoint((e["rows"],), e, 1.0) for e in extents), seconds)


def test_choosers_learn_from_the_other_cases():
    measured = {f"dense {k}x{n}": _times(n, k, 4) for k, n in ((768, 768), (512, 768), (768, 1024), (1024, 512))}
    case = regret.RegretCase("dense", "dense 768x768", lambda: None, [])
    rows = [*regret._rows(case, measured, 1)]
    assert len(rows) == 9 * len(regret.CHOOSERS)
    for row in rows:
        assert row.regret == pytest.approx(row.seconds / row.best_seconds - 1) and row.regret >= 0
    figures = {f["chooser"]: f for f in regret._figures(rows) if f["kind"] == "dense"}
    assert figures["oracle"]["worst"] == 0
    # the closed form walks into the trap, the trees have seen it elsewhere
    assert figures["occupancy"]["regret"] > 0.05 > figures["occupancy_xgboost"]["regret"]
    assert figures["occupancy"]["shapes"] == 9


def test_nothing_is_learned_from_the_case_itself():
    measured = {"dense a": _times(768, 768, 4), "dense b": _times(512, 768, 4)}
    case = regret.RegretCase("dense", "dense a", lambda: None, [])
    before = [(r.chooser, r.variant) for r in regret._rows(case, measured, 1) if "xgboost" in r.chooser]
    own = measured["dense a"]
    measured["dense a"] = VariantTimes(own.variants, own.points, own.seconds[:, ::-1].copy())
    assert before == [(r.chooser, r.variant) for r in regret._rows(case, measured, 1) if "xgboost" in r.chooser]


def test_some_tiles_keep_the_usual_ones():
    usual = (TILES[3], TILES[1])
    space = Space(tuple(TILES), {}, usual)
    found = some_tiles(space, 4)
    assert found[:2] == [*usual] and len(found) == len(set(found)) == 4 and set(found) <= set(TILES)
    assert some_tiles(space, 4) == found
    assert some_tiles(space, 1) == [*usual]


def test_there_are_enough_cases():
    by_kind = {}
    for case in regret.cases():
        by_kind.setdefault(case.kind, []).append(case)
    assert {kind: len(found) for kind, found in by_kind.items()} == {"dense": 6, "batched": 6, "conv": 6}
    assert all(len(case.shapes) >= 30 for case in by_kind["dense"])
    for case in by_kind["conv"] + by_kind["batched"][:1]:
        task = regret.backbone_task(case, TARGET)
        # the largest images take too long at the most channels
        assert len(case.shapes) - 1 <= len(task.points) and len(task.space.candidates) > 1


def test_one_case_is_not_enough():
    console = Console(quiet=True)
    with pytest.raises(ValueError, match="it takes two"):
        regret.run(1, "dense 384", None, console, console)


@pytest.mark.slow
def test_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(regret, "DENSE", [(32, 64), (64, 48), (48, 64)])
    monkeypatch.setattr(regret, "ROWS", [1, 6, 7, 37])
    monkeypatch.setattr(regret, "VARIANTS", 4)
    console, path = Console(quiet=True), tmp_path / "regret.json"
    regret.run(1, "dense", path, console, console)
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 3 * 4 * len(regret.CHOOSERS)
    assert {row["chooser"] for row in rows} == set(regret.CHOOSERS)
