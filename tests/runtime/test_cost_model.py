"""The learned cost model: what it learns, that it is the same every time, and that it stays at home."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from tvm.target import Target

from tvm_dyn.errors import CostModelError
from tvm_dyn.runtime.calibration import Sample, calibrated
from tvm_dyn.runtime.cost_model import CostModel
from tvm_dyn.runtime.features import FEATURES, features
from tvm_dyn.runtime.occupancy import Machine, estimate
from tvm_dyn.runtime.occupancy_cpu import CpuMachine
from tvm_dyn.runtime.variants import Variant

CPU = CpuMachine(vector_bytes=64, registers=32, cores=2, cache_bytes=(48 << 10, 1 << 20, 32 << 20))
MACHINE = Machine(CPU)
HERE = "a CPU"


def packed(vectors: int, highest: int) -> Variant:
    heights = tuple(range(1, highest + 1))
    decisions = {"lanes": 16, "vectors": vectors, "heights": heights, "block_rows": 96, "tasks": 1, "panel_major": 1}
    return Variant("PackedTile", decisions)


VARIANTS = [packed(4, 6), packed(3, 8), packed(2, 12), packed(6, 4), packed(1, 14)]
POINTS = [
    {"batch": 1, "rows": rows, "columns": columns, "depth": depth}
    for rows in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
    for columns, depth in ((256, 256), (768, 768), (1024, 512))
]


def truth(variant: Variant, extents) -> float:
    """A machine with another clock, on which narrow panels are a third slower than the closed form knows."""
    slower = 1.33 if variant.decisions["vectors"] in (1, 2) else 1.0
    known = Machine(CPU.with_rates({"clock_hz": 3e9, "third_level_bytes": 15.0}))
    return estimate(variant, extents, known).seconds * slower


SAMPLES = [Sample(v, p, truth(v, p)) for v, p in itertools.product(VARIANTS, POINTS)]


@pytest.fixture(scope="module")
def model() -> CostModel:
    return CostModel.fit(SAMPLES, MACHINE, HERE)


def test_calibration_finds_the_rates():
    exact = [Sample(s.variant, s.extents, truth(s.variant, s.extents)) for s in SAMPLES if s.variant in VARIANTS[:2]]
    rates = calibrated(CPU, exact).rates()
    assert rates["clock_hz"] == pytest.approx(3e9, rel=0.03)
    assert rates["third_level_bytes"] == pytest.approx(15, rel=0.1)
    # nothing here comes from memory, and all ran on one core
    assert rates["memory_bytes"] == pytest.approx(CPU.memory_bytes, rel=0.01)
    assert rates["fork_join_seconds"] == pytest.approx(CPU.fork_join_seconds, rel=0.01)
    assert calibrated(CPU, []) == CPU


def test_the_trees_learn_what_the_closed_form_does_not_know(model):
    held_out = [{"batch": 1, "rows": rows, "columns": 640, "depth": 384} for rows in (1, 4, 17, 70)]
    expected = np.array([[truth(v, p) for v in VARIANTS] for p in held_out])
    errors = np.log(model.seconds(VARIANTS, held_out) / expected)
    assert np.abs(errors).max() < 0.12
    closed = CostModel(model.machine, HERE).seconds(VARIANTS, held_out)
    assert np.abs(errors).mean() < 0.3 * np.abs(np.log(closed / expected)).mean()


def test_the_same_samples_give_the_same_model(model):
    assert CostModel.fit(SAMPLES, MACHINE, HERE).to_plain() == model.to_plain()


def test_few_samples_fit_the_rates_only():
    assert CostModel.fit(SAMPLES[:10], MACHINE, HERE).trees is None
    assert CostModel.fit([], MACHINE, HERE).machine == MACHINE


def test_saved_and_loaded(tmp_path, model):
    path = tmp_path / "model.json"
    model.save(path)
    again = CostModel.load(path, MACHINE, HERE)
    np.testing.assert_array_equal(again.seconds(VARIANTS, POINTS), model.seconds(VARIANTS, POINTS))
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]
    plain = CostModel(MACHINE, HERE)
    plain.save(path)
    assert CostModel.load(path, MACHINE, HERE) == plain


def test_a_model_of_other_hardware_is_refused(tmp_path, model):
    path = tmp_path / "model.json"
    model.save(path)
    with pytest.raises(CostModelError, match="is of 'a CPU', not of 'another CPU'"):
        CostModel.load(path, MACHINE, "another CPU")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 0}, "another version"),
        ({"features": ["rows"]}, "another version"),
        ({"rates": {"clock_hz": 1.0}}, "another version"),
        ({"rates": 3}, "no cost model"),
        ({"trees": {"learner": 1}}, "cannot be read"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, model, change, message):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**model.to_plain(), **change}))
    with pytest.raises(CostModelError, match=message):
        CostModel.load(path, MACHINE, HERE)
    path.write_text("{")
    with pytest.raises(CostModelError, match="cannot read"):
        CostModel.load(path, MACHINE, HERE)
    with pytest.raises(CostModelError, match="cannot read"):
        CostModel.load(tmp_path / "none.json", MACHINE, HERE)


def test_bad_samples_are_refused():
    with pytest.raises(CostModelError, match="times are above 0"):
        CostModel.fit([Sample(VARIANTS[0], POINTS[0], 0.0)], MACHINE, HERE)
    with pytest.raises(CostModelError, match="no closed form for a OtherTile"):
        CostModel.fit([Sample(Variant("OtherTile", {}), POINTS[0], 1.0)], MACHINE, HERE)
    gpu = Machine.for_target(Target({"kind": "cuda", "arch": "sm_90"}, host="llvm"))
    with pytest.raises(CostModelError, match="on CPUs only"):
        CostModel.fit([], gpu, HERE)


def test_features_have_names_and_are_finite():
    convolution = {"images": 2, "height": 7, "width": 7, "filters": 64, "channels": 3, "taps": 9}
    for variant, extents in (
        (VARIANTS[0], {**POINTS[0], "rows": 0}),
        (Variant("PanelTile", {"rows": 6, "vectors": 4, "lanes": 16}), convolution),
        (Variant("SlidingTile", {"pixels": 4, "lanes": 16}), convolution),
    ):
        row = features(variant, extents, estimate(variant, extents, MACHINE, 2), CPU, 2)
        assert row.shape == (len(FEATURES),) and np.isfinite(row).all()
    row = dict(zip(FEATURES, row.tolist(), strict=True))
    assert row["threads"] == 2 and row["height"] == 4 and row["log_rows"] == pytest.approx(np.log2(50))
