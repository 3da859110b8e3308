"""Shape profiles: ranges, files, and what makes them useless."""

from __future__ import annotations

import pytest

from tvm_dyn.dims import Dim
from tvm_dyn.errors import TuningError
from tvm_dyn.tuning.profile import ShapeProfile, check_dims


def test_uniform_spans_the_range_evenly_in_magnitude():
    profile = ShapeProfile.uniform({"seq": Dim(1, 512)}, 12)
    values = sorted(p["seq"] for p in profile.points)
    assert values[0] == 1 and values[-1] == 512
    assert sum(v < 16 for v in values) >= 3 and sum(v > 64 for v in values) >= 3
    assert sum(profile.weights) == pytest.approx(1)


def test_small_ranges_are_taken_whole():
    profile = ShapeProfile.uniform({"seq": Dim(3, 6), "batch": Dim(2, 2)}, 12)
    assert sorted(p["seq"] for p in profile.points) == [3, 4, 5, 6]
    assert {p["batch"] for p in profile.points} == {2}


def test_divisors_hold():
    profile = ShapeProfile.uniform({"w": Dim(30, 1000, 32), "h": Dim(divisor=7)}, 20)
    assert all(p["w"] % 32 == 0 and 32 <= p["w"] <= 992 and p["h"] % 7 == 0 and p["h"] > 0 for p in profile.points)


def test_without_dims_there_is_one_shape():
    assert ShapeProfile.uniform({}, 5).points == ({},)


def test_open_dims_end_somewhere():
    profile = ShapeProfile.uniform({"batch": Dim(), "seq": Dim(1)}, 16)
    assert max(p["batch"] * p["seq"] for p in profile.points) == 4096


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h.csv", "batch,seq,count\n1,37,3\n8,128,1\n"),
        ("h.json", '[{"batch": 1, "seq": 37, "count": 3}, {"batch": 8, "seq": 128}]'),
        ("h.jsonl", '{"batch": 1, "seq": 37, "count": 2}\n{"seq": 37, "batch": 1}\n\n{"batch": 8, "seq": 128}\n'),
    ],
)
def test_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    profile = ShapeProfile.from_file(tmp_path / name)
    assert sorted(zip(profile.weights, [p["seq"] for p in profile.points], strict=True)) == [(0.25, 128), (0.75, 37)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("h.txt", "", "name it"),
        ("h.csv", "seq,count\nmany,1\n", "entry 1.*whole numbers"),
        ("h.csv", "seq,count\n5,-1\n", "negative"),
        ("h.csv", "seq,count\n", "no shapes"),
        ("h.json", "[5]", "no shape"),
        ("h.jsonl", "{half", "cannot read"),
    ],
)
def test_bad_files(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(TuningError, match=message):
        ShapeProfile.from_file(tmp_path / name)


def test_many_shapes_are_summarized():
    profile = ShapeProfile.of_counts(({"seq": n}, 5 if n == 100 else 1) for n in range(1, 400))
    small = profile.summarized(12)
    assert 6 <= len(small.points) <= 12 and {"seq": 100} in small.points
    assert sum(small.weights) == pytest.approx(1)
    assert profile.summarized(500) is profile


def test_dims_are_checked():
    profile = ShapeProfile.of_counts([({"seq": 3}, 1)])
    check_dims(profile, ["seq"])
    with pytest.raises(TuningError, match="lacks batch and has unknown dims seq"):
        check_dims(profile, ["batch"])
