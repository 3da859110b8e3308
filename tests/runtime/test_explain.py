"""What a library says of its choices, held against what it does and what the model predicts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console

from tvm_dyn.errors import InvalidInputError
from tvm_dyn.runtime import explain, variant_map
from tvm_dyn.runtime.cost_model import CostModel
from tvm_dyn.runtime.groups import Group
from tvm_dyn.runtime.occupancy import Machine, estimate
from tvm_dyn.runtime.occupancy_cpu import CpuMachine
from tvm_dyn.runtime.selection import Selection
from tvm_dyn.runtime.signature import DimInfo
from tvm_dyn.runtime.table import Table
from tvm_dyn.runtime.variants import Leaf, Split, Variant

MODEL = CostModel(Machine(CpuMachine(64, 32, 2, (48 << 10, 1 << 20, 32 << 20))), "a CPU")


def packed(vectors: int, highest: int, tasks: int) -> Variant:
    decisions = {"lanes": 16, "vectors": vectors, "heights": (1, 2, highest), "block_rows": 96}
    return Variant("PackedTile", {**decisions, "tasks": tasks, "panel_major": 0})


VARIANTS = (packed(4, 6, 1), packed(2, 12, 1), packed(4, 6, 8))
KNOWN = {"batch": "1", "columns": "768", "depth": "768"}
DENSE = Group(
    "dense",
    ("matmul", "add"),
    "product",
    VARIANTS,
    "tuned",
    0,
    ("rows",),
    ({**KNOWN, "rows": "b*seq"}, {**KNOWN, "rows": "b*seq"}, {**KNOWN, "rows": "b"}, {**KNOWN, "rows": "found"}),
)
SINGLE = Group("single", ("matmul",), "product", VARIANTS[:1], calls=({**KNOWN, "rows": "2*seq"},))
PLAIN = Group("softmax", ("softmax",), "rows")
TREE = Split("rows", 8, Leaf(1), Leaf(2))


@pytest.fixture
def selection() -> Selection:
    table = Table.create(TREE, ["rows"], [[0, 1], [1, 1], [0, 8]], 0)
    return Selection((DENSE, SINGLE, PLAIN), {"dense": table})


def test_an_entry_for_each_group_and_extents(selection):
    said = explain.explain(selection, MODEL, {"b": 2, "seq": 37})
    found = [(e["name"], e["calls"], e["extents"] and e["extents"]["rows"]) for e in said["groups"]]
    assert found == [("dense", 2, 74), ("dense", 1, 2), ("dense", 1, None), ("single", 1, 74), ("softmax", 1, None)]
    many, few, unknown, single, plain = said["groups"]
    assert (many["variant"], few["variant"]) == (VARIANTS[2].name, VARIANTS[1].name)
    assert single["variant"] == VARIANTS[0].name and single["runner_up"] is None and single["margin"] is None
    for entry in (unknown, plain):
        assert entry["variant"] is None and entry["predicted_us"] is None and entry["terms_us"] == {}
    assert (plain["ops"], plain["backbone"], many["source"]) == (["softmax"], "rows", "tuned")
    json.dumps(said)


def test_figures_are_those_of_the_model(selection):
    said = explain.explain(selection, MODEL, {"b": 2, "seq": 37}, threads=2)
    entry = said["groups"][0]
    found = [estimate(v, entry["extents"], MODEL.machine, 2).seconds * 1e6 for v in VARIANTS]
    assert entry["predicted_us"] == pytest.approx(found[2], abs=1e-3)
    assert entry["runner_up"] == VARIANTS[int(np.argmin(found[:2]))].name
    assert entry["margin"] == pytest.approx(min(found[:2]) / found[2] - 1, abs=1e-4)
    assert entry["bound_by"] == estimate(VARIANTS[2], entry["extents"], MODEL.machine, 2).bound_by
    assert sum(entry["terms_us"].values()) == pytest.approx(entry["predicted_us"], abs=0.01)
    total = sum(e["predicted_us"] * e["calls"] for e in said["groups"] if e["predicted_us"])
    assert said["predicted_us"] == pytest.approx(total, abs=1e-3)
    assert (said["threads"], said["hardware"], said["dims"]) == (2, "a CPU", {"b": 2, "seq": 37})


def test_a_choice_against_the_model_has_a_margin_below_zero(selection):
    selection.tables["dense"].exchange(Leaf(1))
    entry = explain.explain(selection, MODEL, {"b": 2, "seq": 37})["groups"][0]
    assert entry["variant"] == VARIANTS[1].name
    # narrower panels and the same work are not predicted to be faster
    assert entry["margin"] < 0


def test_measured_times_are_shown_where_known(selection):
    def measured(group, variant, extents):
        return 5e-6 if group.name == "dense" and extents["rows"] == 74 else None

    said = explain.explain(selection, MODEL, {"b": 2, "seq": 37}, measured=measured)
    assert [entry["measured_us"] for entry in said["groups"]] == [5.0, None, None, None, None]


def test_the_text_names_all_that_is_known(selection):
    console = Console(width=250, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(explain.to_text(explain.explain(selection, MODEL, {"b": 2, "seq": 37})))
    text = console.export_text()
    assert "seq = 37" in text and "PackedTile 6x64 block_rows=96 tasks=8" in text and "rows=74" in text
    assert "softmax" not in text


DIMS = {"seq": DimInfo(1, 512, 1, ("tokens",)), "b": DimInfo(0, None, 2)}


def test_dims_go_by_any_of_their_names():
    assert explain.own_extents({"tokens": 5, "b": 4}, DIMS) == {"seq": 5, "b": 4}
    for given, message in (
        ({"seq": 5}, "dim 'b' needs an extent: give b=1"),
        ({"seq": 5, "b": 4, "x": 1}, "there is no dim 'x': the dims are seq, b"),
        ({"seq": 5, "tokens": 6, "b": 4}, "are the same, but are 6 and 5"),
        ({"seq": 513, "b": 4}, "dim 'seq' is 513, above its maximum 512"),
        ({"seq": 5, "b": 3}, "dim 'b' is 3, not a multiple of 2"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            explain.own_extents(given, DIMS)


def test_planes_hold_what_the_tables_decide(selection):
    axes = {"seq": [1, 3, 4, 50], "b": [1, 2]}
    (plane,) = variant_map.planes(selection, axes, {})
    assert plane.group is DENSE
    assert plane.chosen.tolist() == [[1, 1, 1, 2], [1, 1, 2, 2]]
    (plane,) = variant_map.planes(selection, {"seq": [1, 50]}, {"b": 2})
    assert plane.chosen.tolist() == [[1, 2]]
    (plane,) = variant_map.planes(selection, {"seq": [1, 50]}, {})
    assert plane.chosen.tolist() == [[-1, -1]]
    with pytest.raises(InvalidInputError, match="one or two axes"):
        variant_map.planes(selection, {}, {})


def test_maps_are_drawn(tmp_path, selection):
    pytest.importorskip("matplotlib")
    axes = {"seq": variant_map.steps(1, 512), "b": variant_map.steps(1, 8)}
    shown, said = variant_map.planes(selection, axes, {}), explain.explain(selection, MODEL, {"b": 2, "seq": 37})
    for name, start in (("map.png", b"\x89PNG"), ("map.html", b"<!doctype html>")):
        variant_map.write_map(tmp_path / name, shown, axes, said)
        content = (tmp_path / name).read_bytes()
        assert content.startswith(start) and len(content) > 5_000
    assert b"rows=74" in content
    assert sorted(file.name for file in tmp_path.iterdir()) == ["map.html", "map.png"]
    with pytest.raises(InvalidInputError, match=r"name the map \*.png or \*.html"):
        variant_map.write_map(tmp_path / "map.pdf", shown, axes, said)
    with pytest.raises(InvalidInputError, match="nothing to map"):
        variant_map.write_map(tmp_path / "map.png", [], axes, said)


def test_steps_end_where_the_range_does():
    assert variant_map.steps(3, 6) == [3, 4, 5, 6]
    many = variant_map.steps(0, 4096)
    assert (many[0], many[-1]) == (1, 4096) and len(many) <= 64 and many == sorted(set(many))
