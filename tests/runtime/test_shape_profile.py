"""Shapes seen: right counts, bounded memory, and a file that tuning reads."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from tvm_dyn.errors import InvalidInputError
from tvm_dyn.runtime.shape_profile import ShapeRecorder
from tvm_dyn.tuning.profile import ShapeProfile


def dims(shapes) -> dict[str, int]:
    return {"batch": shapes[0][0], "seq": shapes[0][1]}


def test_every_call_is_counted_where_asked():
    recorder = ShapeRecorder(every=1)
    for seq in (37, 5, 37, 37):
        recorder.note(((1, seq), (seq,)))
    recorder.note(((1, 5), (6,)))  # another shape with the same dims
    assert recorder.entries(dims) == [{"batch": 1, "seq": 37, "count": 3}, {"batch": 1, "seq": 5, "count": 2}]
    recorder.clear()
    assert recorder.entries(dims) == []


def test_samples_stand_for_all_calls():
    recorder = ShapeRecorder(every=16)
    for n in range(40_000):
        recorder.note(((1, 7 if n % 4 else 9),))  # a period that divides 16
    counts = {entry["seq"]: entry["count"] for entry in recorder.entries(dims)}
    assert counts[7] == pytest.approx(30_000, rel=0.1) and counts[9] == pytest.approx(10_000, rel=0.15)


def test_memory_is_bounded_and_the_frequent_stay():
    recorder = ShapeRecorder(every=1, capacity=50)
    generator = np.random.default_rng(0)
    for n in range(20_000):
        recorder.note(((1, n % 5) if n % 2 else (2, int(generator.integers(10_000))),))
    entries = recorder.entries(dims)
    assert len(entries) <= 50
    assert sorted(entry["seq"] for entry in entries[:5]) == [0, 1, 2, 3, 4]
    assert all(entry["batch"] == 1 and entry["count"] == pytest.approx(2000, rel=0.15) for entry in entries[:5])


def test_threads():
    recorder = ShapeRecorder(every=1)
    threads = [threading.Thread(target=lambda: [recorder.note(((1, 3),)) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.entries(dims)[0]["count"] >= 7600


def test_tuning_reads_what_was_saved(tmp_path):
    recorder = ShapeRecorder(every=1)
    for seq in (37, 5, 37, 37):
        recorder.note(((2, seq),))
    path = tmp_path / "shapes.json"
    recorder.save(path, dims)
    profile = ShapeProfile.from_file(path)
    assert dict(zip((p["seq"] for p in profile.points), profile.weights, strict=True)) == {37: 0.75, 5: 0.25}
    assert [file.name for file in tmp_path.iterdir()] == ["shapes.json"]
    ShapeRecorder().save(path, dims)
    assert json.loads(path.read_text()) == []


def test_refusals():
    for arguments in ({"every": 0}, {"capacity": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            ShapeRecorder(**arguments)
    recorder = ShapeRecorder(every=1)
    recorder.note("x")
    with pytest.raises(InvalidInputError, match="called 'count'"):
        recorder.entries(lambda _: {"count": 1})
