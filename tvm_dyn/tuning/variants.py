"""Tiles as plain data and back: what a trace of a backbone decides."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm_dyn.runtime.variants import Variant
from tvm_dyn.schedules.dispatch import TILES


def variant_of_tile(tile: Any) -> Variant:
    """The decisions of a tile."""
    return Variant(type(tile).__name__, {f.name: getattr(tile, f.name) for f in dataclasses.fields(tile)})


def fits(variant: Variant, kind: type) -> bool:
    """Whether the variant decides just the fields of a kind of tile."""
    return variant.kind == kind.__name__ and set(variant.decisions) == {f.name for f in dataclasses.fields(kind)}


def tile_of_variant(variant: Variant) -> Any:
    """The tile with these decisions; raises KeyError or TypeError where there is no such kind of tile."""
    kind: Any = TILES[variant.kind]
    return kind(**variant.decisions)
