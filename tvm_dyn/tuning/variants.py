"""Tiles as plain data and back: what a trace of a backbone decides."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm_dyn.runtime.variants import Variant
from tvm_dyn.schedules.dispatch import TILES


def variant_of_tile(tile: Any) -> Variant:
    """The decisions of a tile."""
    return Variant(type(tile).__name__, {f.name: getattr(tile, f.name) for f in dataclasses.fields(tile)})


def tile_of_variant(variant: Variant) -> Any:
    """The tile with these decisions; raises KeyError or TypeError where there is no such kind of tile."""
    return TILES[variant.kind](**variant.decisions)
