"""A stream of distinct shapes: what the first call of a shape costs beside the next ones, and what memory does.

Every shape comes once: a contestant makes a few calls of it, and never sees it again. Before that, all of them have
run the largest shape, so that memory is mapped.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tvm_dyn.bench.case import Case, Shape
from tvm_dyn.bench.machine import machine, versions
from tvm_dyn.bench.peers import OURS, Contestant, contestants
from tvm_dyn.bench.report import geomean, write_file
from tvm_dyn.bench.runner import relative_error
from tvm_dyn.bench.suites import models
from tvm_dyn.bench.timing import clock

MODEL = "minilm"
_LARGEST = {"batch": 4, "sequence": 256}
_LATER_CALLS = 3
_CHECKED_EVERY = 50
"""Shapes between two at which the contestants' outputs are compared."""


@dataclass
class Stream:
    """Of one contestant, shape by shape in seconds: the first call and the best of the next ones; megabytes that the
    process grew by, over all contestants, in the second half of its own stream.
    """

    first: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)
    grown_mb: float = 0.0

    def ratios(self) -> np.ndarray:
        """First call / next ones."""
        return np.divide(self.first, self.steady)


def run_stream(threads: int, count: int, json_file: Path | None, out: Console, err: Console) -> dict[str, Stream]:
    """Let ``count`` shapes pass, print a table to ``out`` and progress to ``err``, write ``json_file``.

    Raises `BenchError` where a peer is missing.
    """
    (case,) = [case for case in models.cases() if case.name == MODEL]
    everybody = contestants(case, threads, lambda what: err.print(f"{MODEL}: compile {what}"))
    shapes = _shapes(case, count)
    found = {name: _pass(name, one, case, shapes, threads, err) for name, one in everybody.items()}
    wrong = _wrong(case, shapes, everybody)
    out.print(_table(found, threads))
    out.print(f"{count} shapes; {wrong} of {len(shapes[::_CHECKED_EVERY])} compared ones differ from onnxruntime.")
    if json_file:
        rows = [{"suite": "stream", "contestant": name, **asdict(stream)} for name, stream in found.items()]
        write_file(json_file, {"machine": machine(), "versions": versions(), "threads": threads, "rows": rows})
    return found


def _shapes(case: Case, count: int) -> list[Shape]:
    """Distinct shapes, their sizes spread evenly over the orders of magnitude, the largest one ahead."""
    generator = np.random.default_rng(0)
    names = list(case.shapes[0])
    shapes: dict[tuple[int, ...], None] = {tuple(_LARGEST.values()): None}
    possible = int(np.prod([*_LARGEST.values()]))
    while len(shapes) < min(count + 1, possible):
        sizes = [int(np.exp(generator.uniform(0, np.log(most + 1)))) for most in _LARGEST.values()]
        shapes[tuple(min(s, most) for s, most in zip(sizes, _LARGEST.values(), strict=True))] = None
    return [dict(zip(names, shape, strict=True)) for shape in shapes]


def _pass(name: str, one: Contestant, case: Case, shapes: list[Shape], threads: int, err: Console) -> Stream:
    largest, *others = shapes
    one.bind(case.feeds(largest, 1)[0])()
    read, found, process = clock(threads), Stream(), psutil.Process()
    half = 0
    gc.disable()
    try:
        for number, shape in enumerate(track(others, name, console=err, transient=True)):
            call = one.bind(case.feeds(shape, 1)[0])
            taken = []
            for _ in range(1 + _LATER_CALLS):
                start = read()
                call()
                taken.append(read() - start)
            found.first.append(taken[0])
            found.steady.append(min(taken[1:]))
            if number == len(others) // 2:
                half = process.memory_info().rss
    finally:
        gc.enable()
    found.grown_mb = (process.memory_info().rss - half) / 2**20
    return found


def _wrong(case: Case, shapes: list[Shape], everybody: Mapping[str, Contestant]) -> int:
    wrong = 0
    for shape in shapes[::_CHECKED_EVERY]:
        feed = case.feeds(shape, 1)[0]
        ours, theirs = (everybody[n].arrays(everybody[n].bind(feed)()) for n in (OURS, "onnxruntime"))
        wrong += any(relative_error(a, b) > case.tolerance for a, b in zip(ours, theirs, strict=True))
    return wrong


def _table(found: Mapping[str, Stream], threads: int) -> Table:
    title = f"stream of shapes: {MODEL}, {threads} thread{'s' if threads > 1 else ''}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    columns = ("first / steady", "median", "p99", "steady us, median", "p99", "MB grown", "ours / theirs")
    for column in ("contestant", *columns):
        table.add_column(column, justify="left" if column == "contestant" else "right")
    ours = found[OURS]
    for name, stream in found.items():
        ratios, steady = stream.ratios(), np.array(stream.steady) * 1e6
        relative = geomean(a / b for a, b in zip(ours.steady, stream.steady, strict=True))
        cells: list[Any] = [f"{geomean(ratios):.3f}", f"{np.median(ratios):.3f}", f"{np.quantile(ratios, 0.99):.2f}"]
        cells += [f"{np.median(steady):.0f}", f"{np.quantile(steady, 0.99):.0f}", f"{stream.grown_mb:.1f}"]
        table.add_row(name, *cells, f"{relative:.3f}")
    return table
