"""Rows of figures, what follows from them (ratios, geometric means), as tables and as a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tvm_dyn.bench.peers import OURS, PEERS
from tvm_dyn.runtime.files import replace_text

FASTEST = "fastest"


@dataclass(frozen=True)
class Row:
    """One shape of one case: seconds of a call by contestant, and our share of the FMA peak (None: not counted)."""

    suite: str
    case: str
    shape: dict[str, int]
    threads: int
    seconds: dict[str, float]
    peak_fraction: float | None

    def ratios(self) -> dict[str, float]:
        """Our time over each peer's and over the fastest one's: below 1 we are faster."""
        ours = self.seconds[OURS]
        found = {peer: ours / self.seconds[peer] for peer in PEERS if peer in self.seconds}
        return {**found, FASTEST: max(found.values())}


@dataclass(frozen=True)
class Summary:
    """Ratios of several rows: the geometric mean for each peer, and the row that is worst against the fastest."""

    means: dict[str, float]
    worst: Row


def geomean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def summarize(rows: Sequence[Row]) -> Summary:
    """Of at least one row; a peer counts over the rows it ran in."""
    ratios = [row.ratios() for row in rows]
    peers = [peer for peer in (*PEERS, FASTEST) if any(peer in found for found in ratios)]
    means = {peer: geomean(found[peer] for found in ratios if peer in found) for peer in peers}
    return Summary(means, max(rows, key=lambda row: row.ratios()[FASTEST]))


def show(console: Console, rows: Sequence[Row], peak: float) -> None:
    """A table per case, then the geometric means. peak: operations a second."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    for case, found in by_case.items():
        console.print(_case_table(case, found))
    table = _summary_table(rows[0].suite, by_case, rows)
    console.print(table)
    threads = f"{rows[0].threads} thread{'s' if rows[0].threads > 1 else ''}"
    console.print(
        f"Ratios: our time / theirs, fastest: the fastest of them. FMA peak on {threads}: {peak / 1e9:.1f} GFLOP/s."
    )


def _case_table(case: str, rows: Sequence[Row]) -> Table:
    peers = [peer for peer in PEERS if peer in rows[0].seconds]
    counted = rows[0].peak_fraction is not None
    share_column = ["peak"] if counted else []
    table = _table(f"{rows[0].suite} {case}", " x ".join(rows[0].shape), "us", *share_column, *peers, FASTEST)
    for row in rows:
        share = [f"{row.peak_fraction:.0%}"] if row.peak_fraction is not None else []
        ratios = row.ratios()
        theirs = [f"{ratios[peer]:.2f}" for peer in peers]
        table.add_row(shape_name(row.shape), _micro(row.seconds[OURS]), *share, *theirs, _marked(ratios[FASTEST]))
    return table


def _summary_table(suite: str, by_case: dict[str, list[Row]], rows: Sequence[Row]) -> Table:
    peers = list(summarize(rows).means)
    table = _table(f"{suite}: geometric means", "case", *peers, "worst", "at")
    for case, found in [*by_case.items(), ("all", list(rows))]:
        summary = summarize(found)
        at = shape_name(summary.worst.shape) if case != "all" else summary.worst.case
        means = [f"{summary.means[peer]:.3f}" if peer in summary.means else "" for peer in peers]
        table.add_row(case, *means, _marked(summary.worst.ratios()[FASTEST]), at, end_section=case == list(by_case)[-1])
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        heading = {"onnxruntime_fused": "fused"}.get(column, column)
        table.add_column(heading, justify="left" if index == 0 or column == "at" else "right")
    table.columns[0].no_wrap = True
    return table


def shape_name(shape: Mapping[str, int]) -> str:
    """`37`, `1 x 64`."""
    return " x ".join(map(str, shape.values()))


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.3g}" if seconds < 1e-3 else f"{seconds * 1e6:.0f}"


def _marked(ratio: float) -> str:
    return f"[red]{ratio:.2f}[/red]" if ratio > 1 else f"[green]{ratio:.2f}[/green]"


def write_json(path: Path, machine: dict[str, Any], versions: dict[str, str], rows: Sequence[Any]) -> None:
    """Write the rows, of any dataclass, with what they were measured on and with."""
    write_file(path, {"machine": machine, "versions": versions, "rows": [asdict(row) for row in rows]})


def write_file(path: Path, content: dict[str, Any]) -> None:
    """Write JSON complete or not at all; an older file is replaced."""
    replace_text(path, json.dumps(content, indent=1) + "\n")
