"""Design spaces: every sample is a candidate, every candidate can be sampled, and traces replay."""

from __future__ import annotations

import itertools

import pytest
from tvm import te, tirx
from tvm.s_tir.schedule import Schedule

from tvm_dyn.hardware import host_target
from tvm_dyn.schedules import space_of
from tvm_dyn.schedules.backbone import normal_form
from tvm_dyn.schedules.dispatch import variant_of
from tvm_dyn.schedules.replay import replay
from tvm_dyn.schedules.search_space import design_spaces, space_generator
from tvm_dyn.schedules.weight_panels import marked
from tvm_dyn.tuning import records
from tvm_dyn.tuning.variants import variant_of_tile

TARGET = host_target(2)


def backbone(constant: bool, name: str = "m"):
    rows = tirx.Var(name, "int64")
    a, b = te.placeholder((rows, 64), "float32", "A"), te.placeholder((64, 96), "float32", "B")
    k = te.reduce_axis((0, 64), "k")
    func = te.create_prim_func([a, b, te.compute((rows, 96), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")])
    return normal_form(marked(func) if constant else func)[1]


@pytest.mark.parametrize("constant", [True, False])
def test_spaces_hold_the_candidates_and_nothing_else(constant):
    func = backbone(constant)
    candidates = {variant_of_tile(tile) for tile in space_of(func, TARGET).candidates}
    found = set()
    for space in design_spaces(Schedule(func), TARGET):
        samples = [i for i in space.trace.insts if i.kind.name == "SampleCategorical"]
        for decisions in itertools.product(*[range(len(s.attrs[0])) for s in samples]):
            trace = space.trace
            for sample, decision in zip(samples, decisions, strict=True):
                trace = trace.with_decision(sample, decision, False)
            found.add(variant_of(replay(trace, func)))
            if len(found) % 50 == 1:
                assert records.variant_of(records.trace_json(trace)) == variant_of(replay(trace, func))
    assert found == candidates
    assert 10 <= len(candidates) <= 400


def test_metaschedule_takes_it_for_a_generator():
    from tvm import IRModule

    func = backbone(True)
    spaces = space_generator(TARGET).generate_design_space(IRModule({"main": func.with_attr("global_symbol", "main")}))
    assert len(spaces) == len(design_spaces(Schedule(func), TARGET)) > 1
    renamed = backbone(True, name="seq")
    assert variant_of(replay(spaces[0].trace, renamed)).kind == "PackedTile"


def test_nothing_to_decide_has_no_space():
    x = te.placeholder((tirx.Var("n", "int64"),), "float32", "X")
    func = te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + 1.0, "Y")])
    assert design_spaces(Schedule(func), TARGET) == []
