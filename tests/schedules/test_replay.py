"""Traces: recorded on a backbone, replayed on kernels around it, refused where they do not fit."""

from dataclasses import dataclass

import pytest
from backbones import backbone, conv, dense
from tvm import s_tir, topi

from tvm_dyn.errors import ReplayError
from tvm_dyn.schedules.backbone import NAME, normal_form
from tvm_dyn.schedules.choices import Choice, Choices
from tvm_dyn.schedules.replay import decided, record, replay


@dataclass(frozen=True)
class Blocks:
    rows: int
    widths: tuple[int, ...]


@dataclass(frozen=True)
class Other:
    rows: int


CHOSEN = Blocks(1, (1,))


def test_a_trace_decides_the_same_on_every_kernel_around_the_backbone():
    tile = Blocks(6, (4, 2))
    trace = record(backbone(dense()), tile)
    for func in (dense(), dense("n", epilogue=topi.tanh), dense(prologue=topi.exp), dense(width=24), conv()):
        assert decided(replay(trace, normal_form(func)[0]), CHOSEN) == tile


def test_a_trace_is_an_ordinary_trace():
    trace = record(backbone(dense()), Blocks(6, (4,)))
    assert isinstance(trace, s_tir.schedule.Trace)
    again = s_tir.Schedule(backbone(dense("k")))
    s_tir.schedule.Trace.apply_json_to_schedule(trace.as_json(), again)
    assert decided(again.mod["main"], CHOSEN) == Blocks(6, (4,))


def test_without_a_trace_the_rule_decides():
    assert decided(backbone(dense()), CHOSEN) is CHOSEN
    assert decided(dense(), CHOSEN) is CHOSEN


def test_what_does_not_fit_is_refused_with_a_reason():
    trace = record(backbone(dense()), Other(6))
    with pytest.raises(ReplayError, match="does not apply"):
        replay(trace, dense())  # not in normal form
    replayed = replay(trace, backbone(dense()))
    with pytest.raises(ReplayError, match="decides a Other, the kernel needs a Blocks"):
        decided(replayed, CHOSEN)


def test_a_decision_that_is_missing_is_named():
    sch = s_tir.Schedule(backbone(dense()))
    sch.annotate(sch.get_sblock(NAME), "tvm_dyn.tile", "Blocks")
    sch.annotate(sch.get_sblock(NAME), "tvm_dyn.tile.rows", 3)
    with pytest.raises(ReplayError, match="widths"):
        decided(sch.mod["main"], CHOSEN)


def test_choices_are_found_by_backbone():
    choices = Choices()
    assert choices.get(backbone(dense())) is None
    first, second = (Choice((record(backbone(dense()), Blocks(rows, (4,))),)) for rows in (1, 2))
    choices[backbone(dense("m"))] = first
    assert choices.get(backbone(dense("n"))) is first and choices.get(backbone(dense(width=9))) is None
    choices[backbone(dense("n"))] = second
    assert choices.get(backbone(dense(epilogue=topi.tanh))) is second and len(choices) == 1
