"""What there is to decide about a backbone: the tiles its rule may emit it with, and what their times depend on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tvm.ir import Expr

from tvm_dyn.runtime.variants import FIRST, Tree
from tvm_dyn.schedules.common import as_int

_AT_RUN_TIME = {"at run time": True}


def at_run_time() -> Any:
    """A field of a tile that its kernel takes as a number when it runs: variants that differ in no other share code."""
    return dataclasses.field(metadata=_AT_RUN_TIME)


def run_time_fields(kind: type) -> list[str]:
    """The names of these fields of a tile."""
    return [field.name for field in dataclasses.fields(kind) if field.metadata == _AT_RUN_TIME]


@dataclass(frozen=True)
class Space:
    """The decisions about one backbone.

    candidates: tiles that are legal on every extent, aligned to the registers and caches of the target.
    extents: by name what the time of a tile depends on, in the symbols of the backbone. untuned: the variants to take
    where nothing was measured, and ``tree`` the choice between them.
    """

    candidates: tuple[Any, ...]
    extents: dict[str, Expr]
    untuned: tuple[Any, ...]
    tree: Tree = FIRST

    @property
    def constant(self) -> dict[str, int]:
        """The extents that are the same in every call."""
        return {name: known for name, extent in self.extents.items() if (known := as_int(extent)) is not None}

    @property
    def symbolic(self) -> dict[str, Expr]:
        """The extents that differ from call to call."""
        return {name: extent for name, extent in self.extents.items() if as_int(extent) is None}
