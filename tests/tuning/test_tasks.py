"""Tasks: distinct backbones of a model, with the extents of their calls."""

from __future__ import annotations

import pytest
from models import mlp

from tvm_dyn.dims import Dim
from tvm_dyn.embed import with_signature
from tvm_dyn.errors import TuningError
from tvm_dyn.tuning.profile import ShapeProfile
from tvm_dyn.tuning.tasks import POINTS, extract_backbone_tasks


def test_the_same_backbone_is_one_task_with_all_its_calls():
    tasks = extract_backbone_tasks(mlp(layers=3), profile=ShapeProfile.of_counts([({"n": 5}, 1), ({"n": 40}, 3)]))
    assert [len(task.points) for task in tasks] == [2, 2]
    for task in tasks:
        calls = {point.extents["rows"]: point.calls for point in task.points}
        assert calls == {5: pytest.approx(0.75), 40: pytest.approx(2.25)}
    assert {(t.points[0].extents["columns"], t.points[0].extents["depth"]) for t in tasks} == {(160, 96), (96, 160)}


def test_without_a_profile_the_range_of_the_dim_is_covered():
    tasks = extract_backbone_tasks(with_signature(mlp(), {"n": Dim(3, 300)}))
    rows = sorted(point.extents["rows"] for point in tasks[0].points)
    assert rows[0] == 3 and rows[-1] == 300 and 6 <= len(rows) <= POINTS


def test_a_profile_of_other_dims_is_refused():
    with pytest.raises(TuningError, match="lacks n and has unknown dims seq"):
        extract_backbone_tasks(mlp(), profile=ShapeProfile.of_counts([({"seq": 5}, 1)]))


def test_shapes_too_large_to_measure_are_left_out_where_there_are_others():
    profile = ShapeProfile.of_counts([({"n": 8}, 1), ({"n": 10**7}, 1)])
    assert [p.extents["rows"] for p in extract_backbone_tasks(mlp(), profile=profile)[0].points] == [8]
    alone = ShapeProfile.of_counts([({"n": 10**7}, 1)])
    assert [p.extents["rows"] for p in extract_backbone_tasks(mlp(), profile=alone)[0].points] == [10**7]
