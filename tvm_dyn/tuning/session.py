"""One run of the tuner on a model, from its Relax module to a report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm.target import Target

from tvm_dyn import hardware
from tvm_dyn.errors import TuningError
from tvm_dyn.tuning.choose import choose
from tvm_dyn.tuning.database import TuningDatabase
from tvm_dyn.tuning.pool import LocalPool, TrackedPool
from tvm_dyn.tuning.profile import ShapeProfile
from tvm_dyn.tuning.search import TaskSearch
from tvm_dyn.tuning.tasks import extract_backbone_tasks
from tvm_dyn.tuning.tuner import Status, Tuner

_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class TaskReport:
    """What tuning did for a backbone.

    kernels: those around it. trials: candidates that were looked at, ``restored`` of them in earlier runs. seconds: of
    all its calls in one call of the model, on average over the profile and on one thread, untuned and tuned; inf
    where nothing was measured. gflops: at its best shape. variants, regret: what is chosen, and how much slower that is
    expected to be than the best candidate for each shape. faults: candidates that did not build or were wrong.
    """

    name: str
    kernels: tuple[str, ...]
    trials: int
    restored: int
    untuned_seconds: float
    seconds: float
    gflops: float
    variants: int
    regret: float
    faults: tuple[str, ...]


@dataclass(frozen=True)
class TuningReport:
    """tasks: by backbone. measured: candidates in this run. seconds: it took. interrupted: whether Ctrl-C ended it."""

    tasks: tuple[TaskReport, ...]
    measured: int
    seconds: float
    interrupted: bool


def tune_module(
    module: tvm.IRModule,
    target: Target,
    database: TuningDatabase,
    profile: ShapeProfile | None,
    trials: int,
    budget: float | None,
    progress: Callable[[Status], None],
    tracker: tuple[str, str] | None = None,
) -> TuningReport:
    """Tune the backbones of an imported model; arguments as in `tvm_dyn.tune`, ``budget`` in seconds, ``tracker`` an
    address and a key.
    """
    if tracker is None and not hardware.runs_here(target):
        raise TuningError(f"candidates are run, and this machine cannot run code for {target}: tune on such a machine")
    if trials < 1:
        raise TuningError(f"trials={trials}: measure at least one candidate of each backbone")
    start = time.monotonic()
    with LocalPool(target) if tracker is None else TrackedPool(target, *tracker) as pool:
        tasks = extract_backbone_tasks(module, target, profile)
        spent = time.monotonic() - start
        left = None if budget is None else budget - spent
        machine = None if tracker is None else f"servers for the key {tracker[1]!r}"
        tuner = Tuner(tasks, target, database, trials, left, progress, machine)
        tuner.run(pool)
    reports = tuple(_report(search, tuner) for search in tuner.searches)
    return TuningReport(reports, tuner.measured, time.monotonic() - start, tuner.interrupted)


def _report(search: TaskSearch, tuner: Tuner) -> TaskReport:
    chosen = choose(search, tuner.predictor, hardware.cores(tuner.target), "tuned")
    return TaskReport(
        search.task.name,
        search.task.kernels,
        search.trials,
        search.restored,
        search.untuned_seconds,
        search.expected_seconds,
        search.gflops,
        len(chosen.candidates) if chosen else 0,
        chosen.regret if chosen else 0.0,
        tuple(f"{c.variant}: {c.fault}" for c in search.candidates if c.fault),
    )


def parse_budget(text: str | float | None) -> float | None:
    """Seconds of "90s", "5min", "10m", "1.5h" or a number of seconds. Raises TuningError."""
    if text is None or isinstance(text, int | float):
        seconds = text
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
        if match is None or (match[2] or "s") not in _UNITS:
            raise TuningError(f"cannot read the budget {text!r}: write 90s, 5min or 1h")
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if seconds is not None and not seconds > 0:
        raise TuningError(f"the budget {text!r} leaves no time: give more than 0 seconds")
    return seconds
