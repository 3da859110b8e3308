"""Choices: the variants that kernels around a backbone are compiled for, and which of them is for which extents."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm.s_tir.schedule import Trace
from tvm.tirx import PrimFunc

from tvm_dyn.runtime.variants import FIRST, Tree
from tvm_dyn.schedules.replay import record
from tvm_dyn.schedules.space import Space


@dataclass(frozen=True)
class Choice:
    """traces: one for each variant. tree: which of them to take. source: "default", "database", "model" or "tuned"."""

    traces: tuple[Trace, ...]
    tree: Tree = FIRST
    source: str = "default"

    @staticmethod
    def untuned(backbone: PrimFunc, space: Space) -> Choice:
        """What the rule of the backbone takes where nothing was measured."""
        return Choice(tuple(record(backbone, tile) for tile in space.untuned), space.tree)


class Choices:
    """Choices by backbone; backbones are the same where they differ in names of symbols only."""

    def __init__(self) -> None:
        self._found: dict[int, list[tuple[PrimFunc, Choice]]] = {}

    def prepare(self, mod: tvm.IRModule) -> None:
        """Called with the module after fusion, before choices are asked for; there is nothing to do here."""

    def get(self, backbone: PrimFunc) -> Choice | None:
        """The choice for a backbone, None where there is none."""
        known = self._found.get(_key(backbone), [])
        return next((c for b, c in known if tvm_ffi.structural_equal(b, backbone, map_free_vars=True)), None)

    def __setitem__(self, backbone: PrimFunc, choice: Choice) -> None:
        kept = self._found.setdefault(_key(backbone), [])
        kept[:] = [(b, c) for b, c in kept if not tvm_ffi.structural_equal(b, backbone, map_free_vars=True)]
        kept.append((backbone, choice))

    def __len__(self) -> int:
        return sum(len(kept) for kept in self._found.values())


def _key(backbone: PrimFunc) -> int:
    return tvm_ffi.structural_hash(backbone, map_free_vars=True)
