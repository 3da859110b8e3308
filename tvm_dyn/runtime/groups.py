"""What a library knows of its fusion groups: variants, where they are from, and how to see which one a call takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .variants import Variant

GROUPS_FUNCTION = "tvm_dyn_groups"
TABLES_FUNCTION = "tvm_dyn_tables"


@dataclass(frozen=True)
class Group:
    """One fusion group.

    ops: the operators it fuses. backbone: what its schedule is built around ("product", "window", "rows", "map",
    "opaque"). variants: with one there is no decision; none where no tile is decided at all. source: where they are
    from, "default", "database" or "tuned". table: the position of its decision table, None without.
    extents: names of what the table looks at. calls: for every call of the group in the model what each name is
    there (also names that are constant), as expressions in the dims of the model.
    """

    name: str
    ops: tuple[str, ...]
    backbone: str
    variants: tuple[Variant, ...] = ()
    source: str = "default"
    table: int | None = None
    extents: tuple[str, ...] = ()
    calls: tuple[Mapping[str, str], ...] = field(default=())


def to_json(groups: Iterable[Group]) -> str:
    """The groups as JSON text, which `from_json` reads back."""
    return json.dumps([asdict(group) for group in groups])


def from_json(text: str) -> tuple[Group, ...]:
    """Read JSON text; raises `ValueError` where it is no list of groups."""
    try:
        return tuple(_group(entry) for entry in json.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a list of groups: {error}") from error


def _group(entry: Mapping[str, Any]) -> Group:
    return Group(
        str(entry["name"]),
        tuple(map(str, entry["ops"])),
        str(entry["backbone"]),
        tuple(_variant(variant) for variant in entry["variants"]),
        str(entry["source"]),
        entry["table"],
        tuple(map(str, entry["extents"])),
        tuple(dict(call) for call in entry["calls"]),
    )


def _variant(entry: Mapping[str, Any]) -> Variant:
    decisions = {name: tuple(v) if isinstance(v, list) else int(v) for name, v in entry["decisions"].items()}
    return Variant(str(entry["kind"]), decisions)
