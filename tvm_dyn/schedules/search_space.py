"""The decisions about a backbone as a search space of MetaSchedule: sampling instructions over aligned candidates only.

    b0 = sch.get_sblock("backbone")
    sch.annotate(b0, "tvm_dyn.tile.vectors", 4)                            # one space for each way to write the code
    v1 = sch.sample_categorical([96, 170], [0.5, 0.5])                     # what is free to vary within it
    sch.annotate(b0, "tvm_dyn.tile.block_rows", v1)

Every point is a candidate of `space_of` and thus legal on all extents. Traces are ordinary ones: `replay` takes them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tvm.s_tir.meta_schedule.space_generator import ScheduleFn
from tvm.s_tir.schedule import Schedule
from tvm.target import Target

from tvm_dyn.schedules import space_of
from tvm_dyn.schedules.backbone import NAME
from tvm_dyn.schedules.replay import TILE


def space_generator(target: Target) -> ScheduleFn:
    """MetaSchedule's generator of the design spaces of a backbone, for symbolic extents too; it has no postprocessors,
    which know static loops only.
    """
    return ScheduleFn(lambda sch: design_spaces(sch, target), sch_rules=[], postprocs=[], mutator_probs={})


def design_spaces(sch: Schedule, target: Target) -> list[Schedule]:
    """A schedule for each group of candidates that differ in independent numbers only, with a sample of each of these.

    sch: of a backbone on its own. There is none for a function that nothing is to be decided about.
    """
    space = space_of(sch.mod["main"], target)
    if space is None:
        return []
    free = _independent(space.candidates)
    return [_sampled(sch.copy(), group, free) for group in _groups(space.candidates, free)]


def _independent(candidates: Sequence[Any]) -> list[str]:
    """Numbers of a tile whose values may be combined at will, whatever its other fields are."""
    found: list[str] = []
    for field in dataclasses.fields(candidates[0]):
        tried = [*found, field.name]
        if isinstance(getattr(candidates[0], field.name), int) and all(
            len(group) == math.prod(len(_values(group, name)) for name in tried)
            for group in _groups(candidates, tried)
        ):
            found = tried
    return found


def _groups(candidates: Sequence[Any], free: Sequence[str]) -> list[list[Any]]:
    """Candidates that are alike but for the fields that are ``free``."""
    groups: dict[tuple, list[Any]] = {}
    for tile in candidates:
        fixed = tuple(getattr(tile, f.name) for f in dataclasses.fields(tile) if f.name not in free)
        groups.setdefault((type(tile), fixed), []).append(tile)
    return list(groups.values())


def _values(group: Sequence[Any], name: str) -> list[int]:
    return list(dict.fromkeys(getattr(tile, name) for tile in group))


def _sampled(sch: Schedule, group: Sequence[Any], free: Sequence[str]) -> Schedule:
    block = sch.get_sblock(NAME)
    sch.annotate(block, TILE, type(group[0]).__name__)
    for field in dataclasses.fields(group[0]):
        value, values = getattr(group[0], field.name), _values(group, field.name)
        if field.name in free and len(values) > 1:
            value = sch.sample_categorical(values, [1 / len(values)] * len(values))
        sch.annotate(block, f"{TILE}.{field.name}", list(value) if isinstance(value, tuple) else value)
    return sch
