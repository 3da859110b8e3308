"""One suite from start to end: build, check that all agree, measure, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tvm_dyn.bench import report
from tvm_dyn.bench.case import Case, Feed, Shape
from tvm_dyn.bench.machine import machine, versions
from tvm_dyn.bench.peak import FmaPeak
from tvm_dyn.bench.peers import OURS, Contestant, contestants
from tvm_dyn.bench.report import Row, shape_name
from tvm_dyn.bench.timing import take_turns
from tvm_dyn.errors import BenchError

_FEEDS = 2
_PEAK_SAMPLES = 5


@dataclass(frozen=True)
class _Measured:
    """A row but for the share of the peak, which the whole run determines."""

    case: Case
    shape: Shape
    flops: float | None
    seconds: dict[str, float]

    def row(self, threads: int, peak: float) -> Row:
        share = None if self.flops is None else self.flops / self.seconds[OURS] / peak
        return Row(self.case.suite, self.case.name, dict(self.shape), threads, self.seconds, share)


class Runner:
    """Measures cases; what it has so far is in ``rows``, also after an interrupt."""

    def __init__(self, threads: int, rounds: int):
        self.threads, self.rounds = threads, rounds
        self.peak = FmaPeak(threads)
        self._measured: list[_Measured] = []

    @property
    def rows(self) -> list[Row]:
        """The figures, with our share of the best peak seen in the whole run."""
        return [measured.row(self.threads, self.peak.best) for measured in self._measured]

    def run(self, cases: Sequence[Case], console: Console) -> None:
        """Measure every shape of ``cases``; progress goes to ``console``.

        Raises `BenchError` where a peer is missing or the contestants disagree.
        """
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=sum(len(case.shapes) for case in cases))
            for case in cases:

                def stage(what: str, case: Case = case) -> None:
                    progress.update(task, description=f"{case.suite} {case.name}: compile {what}")

                everybody = contestants(case, self.threads, stage)
                for shape in case.shapes:
                    progress.update(task, description=f"{case.suite} {case.name} {shape_name(shape)}")
                    self._measured.append(self._measure(case, shape, everybody))
                    progress.advance(task)

    def _measure(self, case: Case, shape: Shape, everybody: Mapping[str, Contestant]) -> _Measured:
        feeds = case.feeds(shape, _FEEDS)
        _check(case, shape, feeds[0], everybody)
        for _ in range(_PEAK_SAMPLES):
            self.peak.sample()
        calls = {name: [contestant.bind(feed) for feed in feeds] for name, contestant in everybody.items()}
        seconds = take_turns(calls, self.threads, self.rounds, case.seconds)
        return _Measured(case, shape, case.flops(shape) if case.flops else None, seconds)


def run_suite(
    cases: Sequence[Case], threads: int, rounds: int, json_file: Path | None, out: Console, err: Console
) -> list[Row]:
    """Measure ``cases``, print tables to ``out`` and progress to ``err``, write ``json_file``.

    An interrupt or an error ends the run, but what was measured by then is printed and written.
    """
    runner = Runner(threads, rounds)
    try:
        runner.run(cases, err)
    finally:
        rows = runner.rows
        if rows:
            report.show(out, rows, runner.peak.best)
        if rows and json_file:
            peak: dict[str, Any] = {"fma_peak_flops": runner.peak.best}
            report.write_json(json_file, {**machine(), **peak}, versions(), rows)
    return rows


def _check(case: Case, shape: Shape, feed: Feed, everybody: Mapping[str, Contestant]) -> None:
    """Every contestant's outputs against ours."""
    outputs = {name: contestant.arrays(contestant.bind(feed)()) for name, contestant in everybody.items()}
    for name, found in outputs.items():
        for ours, theirs in zip(outputs[OURS], found, strict=True):
            error = relative_error(ours, theirs)
            if not error <= case.tolerance:
                raise BenchError(
                    f"{case.suite} {case.name} at {dict(shape)}: {name} and {OURS} differ by {error:.1e} of the "
                    f"largest value, more than {case.tolerance:.0e}"
                )


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest value; inf where the shapes differ."""
    if ours.shape != theirs.shape:
        return float("inf")
    if ours.size == 0:
        return 0.0
    difference = np.abs(ours.astype("float64") - theirs.astype("float64")).max()
    return float(difference / max(np.abs(theirs).max(), 1e-30))
