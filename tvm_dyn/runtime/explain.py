"""Why a library takes the variants it takes: for given dims, each group's decision, its time and the next best one.

explain(library.selection, model, {"seq": 37})
--->
{"dims": {"seq": 37}, "threads": 1, "hardware": "...", "predicted_us": 812.3,
 "groups": [{"name": "fused_matmul_add", "variant": "PackedTile(...)", "predicted_us": 81.2, "measured_us": None,
             "runner_up": "PackedTile(...)", "margin": 0.08, "bound_by": "compute", "terms_us": {...}, ...}]}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rich.table import Table as TextTable

from tvm_dyn.errors import InvalidInputError

from .groups import Group
from .occupancy import estimate, has_form
from .selection import Selection, extents_at
from .shapes import misfit
from .signature import DimInfo
from .variants import Variant

if TYPE_CHECKING:
    from .cost_model import CostModel

T = TypeVar("T")
Measured = Callable[[Group, Variant, Mapping[str, int]], float | None]
"""Seconds that a variant of a group was measured to take at these extents, None where it was not."""


def explain(
    selection: Selection,
    model: CostModel,
    dims: Mapping[str, int],
    threads: int = 1,
    measured: Measured | None = None,
) -> dict[str, Any]:
    """The decisions of a library at ``dims``, by its own names for them; JSON can hold what it returns.

    An entry for each group and each set of extents that it is called with; ``calls`` says how often. Groups without
    a tile, and calls whose extents depend on values of tensors, have None for what is not known.

    predicted_us, measured_us, terms_us: microseconds of one call. margin: how much longer the runner-up (the best of
    the others by the model) is predicted to take, as a share; below 0 where the model would take the other.
    """
    asking = _Asking(selection, model, threads, measured)
    entries = [
        asking.entry(group, extents, calls) for group in selection.groups for extents, calls in _distinct(group, dims)
    ]
    known = [entry["predicted_us"] * entry["calls"] for entry in entries if entry["predicted_us"] is not None]
    return {
        "dims": dict(dims),
        "threads": threads,
        "hardware": model.hardware,
        "predicted_us": round(sum(known), 3),
        "groups": entries,
    }


def _distinct(group: Group, dims: Mapping[str, int]) -> list[tuple[dict[str, int] | None, int]]:
    """The extents that a group is called with at these dims, and how often; None for those that are not known."""
    known = extents_at(group, dims) if group.variants else []
    counted = Counter(tuple(extents.items()) for extents in known)
    found: list[tuple[dict[str, int] | None, int]] = [(dict(extents), calls) for extents, calls in counted.items()]
    unknown = max(len(group.calls), 1) - len(known)
    return [*found, (None, unknown)] if unknown else found


@dataclass(frozen=True)
class _Asking:
    """What entries are made from."""

    selection: Selection
    model: CostModel
    threads: int
    measured: Measured | None

    def entry(self, group: Group, extents: dict[str, int] | None, calls: int) -> dict[str, Any]:
        """What is known of a group at some extents."""
        entry: dict[str, Any] = {
            "name": group.name,
            "ops": list(group.ops),
            "backbone": group.backbone,
            "source": group.source,
            "calls": calls,
            "extents": extents,
            **dict.fromkeys(("variant", "tile", "predicted_us", "measured_us", "bound_by")),
            **dict.fromkeys(("runner_up", "runner_up_tile", "margin")),
            "terms_us": {},
        }
        if extents is None or not group.variants:
            return entry
        chosen = self.selection.decide(group, extents)
        variant = group.variants[chosen]
        entry |= {"variant": variant.name, "tile": plain_tile(variant)}
        known = self.measured(group, variant, extents) if self.measured else None
        entry["measured_us"] = None if known is None else _micro(known)
        if has_form(variant, self.model.machine):
            entry |= self._predicted(group, extents, chosen)
        return entry

    def _predicted(self, group: Group, extents: dict[str, int], chosen: int) -> dict[str, Any]:
        seconds = self.model.seconds(group.variants, [extents], self.threads)[0]
        found = estimate(group.variants[chosen], extents, self.model.machine, self.threads)
        scale = seconds[chosen] / found.seconds if found.seconds else 0.0
        said: dict[str, Any] = {
            "predicted_us": _micro(seconds[chosen]),
            "bound_by": found.bound_by,
            "terms_us": {name: _micro(term * scale) for name, term in found.terms.items()},
        }
        others = [n for n in range(len(seconds)) if n != chosen]
        if others:
            second = min(others, key=lambda n: seconds[n])
            margin = round(float(seconds[second] / seconds[chosen] - 1), 4)
            tile = plain_tile(group.variants[second])
            said |= {"runner_up": group.variants[second].name, "runner_up_tile": tile, "margin": margin}
        return said


def _micro(seconds: float) -> float:
    return round(float(seconds) * 1e6, 3)


def short_name(variant: Variant) -> str:
    """A variant in a few words: `PackedTile 6x64 block_rows=170 tasks=8`."""
    tile = dict(variant.decisions)
    heights = tile.pop("heights", None) or tile.pop("rows", None) or tile.pop("pixels", None) or 1
    height = max(heights) if isinstance(heights, tuple) else heights
    vectors, lanes = tile.pop("vectors", 1), tile.pop("lanes", 1)
    assert isinstance(vectors, int) and isinstance(lanes, int)
    rest = [f"{name}={value}" for name, value in tile.items() if isinstance(value, int)]
    return " ".join([variant.kind, f"{height}x{vectors * lanes}", *rest])


def plain_tile(variant: Variant) -> dict[str, Any]:
    """The tile as JSON has it: its kind and its decisions."""
    decisions = {name: list(v) if isinstance(v, tuple) else v for name, v in variant.decisions.items()}
    return {"kind": variant.kind, **decisions}


def own_dims(given: Mapping[str, T], dims: Mapping[str, DimInfo]) -> dict[str, T]:
    """What is ``given`` for every one of a library's ``dims``, by its own names instead of the model's.

    Raises InvalidInputError for a dim that is missing, is not there, or is given twice with different values.
    """
    canonical = {alias: name for name, info in dims.items() for alias in (name, *info.aliases)}
    found: dict[str, T] = {}
    for alias, value in given.items():
        if alias not in canonical:
            raise InvalidInputError(f"there is no dim {alias!r}: the dims are {', '.join(dims) or 'none'}")
        name = canonical[alias]
        if found.setdefault(name, value) != value:
            raise InvalidInputError(f"dims {alias!r} and {name!r} are the same, but are {value} and {found[name]}")
    missing = [name for name in dims if name not in found]
    if missing:
        example = ", ".join(f"{name}={max(dims[name].min, 1)}" for name in missing)
        raise InvalidInputError(f"dim {missing[0]!r} needs an extent: give {example}")
    return found


def own_extents(given: Mapping[str, int], dims: Mapping[str, DimInfo]) -> dict[str, int]:
    """The same for extents; raises InvalidInputError also for one that does not fit what is known of its dim."""
    found = own_dims(given, dims)
    for name, extent in found.items():
        problem = misfit(dims[name], extent)
        if problem is not None:
            raise InvalidInputError(f"dim {name!r} is {extent}, {problem[0]}; {problem[1]}")
    return found


def to_text(explained: Mapping[str, Any]) -> TextTable:
    """What `explain` returns as a table for the terminal; groups without a tile are left out."""
    dims = ", ".join(f"{name} = {extent}" for name, extent in explained["dims"].items()) or "no dims"
    title = f"{dims}; {explained['threads']} thread{'s' if explained['threads'] > 1 else ''}, {explained['hardware']}"
    table = TextTable(title=title, title_justify="left")
    for column in ("group", "extents", "variant"):
        table.add_column(column, overflow="fold")
    for column in ("calls", "predicted", "measured"):
        table.add_column(column, justify="right")
    for column in ("bound by", "runner-up", "margin"):
        table.add_column(column, overflow="fold")
    for entry in explained["groups"]:
        if entry["variant"] is None:
            continue
        extents = " ".join(f"{name}={value}" for name, value in entry["extents"].items())
        times = [_time(entry["predicted_us"]), _time(entry["measured_us"])]
        margin = "" if entry["margin"] is None else f"{entry['margin']:+.1%}"
        tile, other = (_in_few_words(entry[key]) for key in ("tile", "runner_up_tile"))
        why = entry["bound_by"] or ""
        table.add_row(entry["name"], extents, tile, str(entry["calls"]), *times, why, other, margin)
    return table


def _in_few_words(tile: Mapping[str, Any] | None) -> str:
    if tile is None:
        return ""
    decisions = {name: tuple(v) if isinstance(v, list) else v for name, v in tile.items() if name != "kind"}
    return short_name(Variant(tile["kind"], decisions))


def _time(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds:.1f} us"
