"""Which variant each group takes over a plane of shapes, as a picture: PNG, or HTML that holds it.

Needs matplotlib: `pip install tvm-dyn[report]`.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_dyn.errors import InvalidInputError

from .explain import short_name
from .files import replace_bytes
from .groups import Group
from .selection import Selection, extents_at

_SHOWN = 12
"""Groups in a picture; of more those with the most variants in use."""
_STEPS = 64


@dataclass(frozen=True)
class Plane:
    """The variant (its position) that the first call of a group takes at ``across`` x ``down``; -1: not known."""

    group: Group
    chosen: NDArray[np.int64]


def steps(low: int, high: int) -> list[int]:
    """Extents from ``low`` to ``high``: all of a few, else evenly over their orders of magnitude."""
    if high - low < _STEPS:
        return list(range(low, high + 1))
    return [int(v) for v in np.unique(np.geomspace(max(low, 1), high, _STEPS).round().astype("int64"))]


def planes(
    selection: Selection,
    axes: Mapping[str, Sequence[int]],
    fixed: Mapping[str, int],
) -> list[Plane]:
    """A plane for each group that has a choice. axes: one or two dims with their extents, the first one across;
    fixed: the extents of all others.
    """
    if not 1 <= len(axes) <= 2:
        raise InvalidInputError(f"a map has one or two axes, not {len(axes)}: fix the other dims to one extent")
    (across, columns), *rest = axes.items()
    down, rows = rest[0] if rest else ("", [0])
    found = []
    for group in selection.groups:
        if group.name not in selection.tables:
            continue
        chosen = np.full((len(rows), len(columns)), -1)
        for r, row in enumerate(rows):
            for c, column in enumerate(columns):
                dims = {**fixed, across: column, **({down: row} if down else {})}
                for extents in extents_at(group, dims)[:1]:
                    chosen[r, c] = selection.decide(group, extents)
        found.append(Plane(group, chosen))
    return found


def write_map(
    path: Path, shown: Sequence[Plane], axes: Mapping[str, Sequence[int]], explained: Mapping[str, Any]
) -> None:
    """Draw the planes into ``path`` (.png or .html, the latter with ``explained`` as a table), complete or not at all.

    Raises InvalidInputError for another suffix, where no group has a choice, and where matplotlib is missing.
    """
    if path.suffix not in (".png", ".html"):
        raise InvalidInputError(f"{str(path)!r}: name the map *.png or *.html by its format")
    if not shown:
        raise InvalidInputError("no group of the library has more than one variant: there is nothing to map")
    picture = _png(sorted(shown, key=lambda plane: -len(np.unique(plane.chosen)))[:_SHOWN], axes)
    replace_bytes(path, picture if path.suffix == ".png" else _html(picture, explained).encode())


def _png(shown: Sequence[Plane], axes: Mapping[str, Sequence[int]]) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInputError("a map needs matplotlib: pip install 'tvm-dyn[report]'") from error
    figure = Figure(figsize=(11, 2.6 * len(shown) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, plane in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True):
        _draw(axis, plane, axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _draw(axis: Any, plane: Plane, axes: Mapping[str, Sequence[int]]) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    colors = np.array([*colormaps["tab10"].colors, (0.8, 0.8, 0.8)])  # the last one: not known
    axis.imshow(colors[plane.chosen], aspect="auto", origin="lower", interpolation="nearest")
    (across, columns), *rest = axes.items()
    _ticks(axis.set_xticks, columns)
    axis.set_xlabel(across)
    if rest:
        _ticks(axis.set_yticks, rest[0][1])
        axis.set_ylabel(rest[0][0])
    else:
        axis.set_yticks([])
    axis.set_title(plane.group.name, fontsize=9, loc="left")
    used = [int(n) for n in np.unique(plane.chosen)]
    names = ["not known" if n < 0 else short_name(plane.group.variants[n]) for n in used]
    patches = [Patch(color=colors[n], label=name) for n, name in zip(used, names, strict=True)]
    axis.legend(handles=patches, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _ticks(place: Any, extents: Sequence[int]) -> None:
    at = np.unique(np.linspace(0, len(extents) - 1, min(len(extents), 9)).round().astype(int))
    place(at, [str(extents[n]) for n in at])


def _html(picture: bytes, explained: Mapping[str, Any]) -> str:
    columns = ("name", "extents", "variant", "calls", "predicted_us", "measured_us", "bound_by", "runner_up", "margin")
    rows = [[entry[column] for column in columns] for entry in explained["groups"] if entry["variant"] is not None]
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(_cell(v))}</td>" for v in row) + "</tr>" for row in rows)
    title = html.escape(", ".join(f"{name} = {extent}" for name, extent in explained["dims"].items()) or "variants")
    image = base64.b64encode(picture).decode()
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title>"
        "<style>body{font:14px sans-serif}td,th{padding:2px 8px;text-align:left;vertical-align:top}</style>"
        f"<h1>{title}</h1><table><tr>{head}</tr>{body}</table>"
        f'<img alt="variants over shapes" src="data:image/png;base64,{image}">\n'
    )


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={extent}" for name, extent in value.items())
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
