"""Online refinement: a library that serves measures a few of its calls, and exchanges tables that lose.

    one call in `every`      runs on a machine of its own, which stops before each kernel that has a choice:
                             the variant in use and a challenger run in turns on the same inputs, into scratch outputs,
                             each by a table of its own that always takes it; then the call goes on as ever
    now and then             on another thread: the cost model learns from what was measured, which orders the
                             challengers, and every table that lost its pairs is exchanged for one that won them

The table is an ordinary argument of a kernel, so other calls see nothing of this until a table is exchanged. What was
measured is kept in a file (by hardware and group), so that it survives the process.
"""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from filelock import FileLock
from tvm import relax

from .calibration import Sample
from .cost_model import CostModel
from .evidence import Evidence
from .files import replace_text
from .groups import Group
from .occupancy import has_form
from .selection import Selection, extents_at
from .table import LEAVES, Table
from .variants import Variant

FILE = "refinement.json"
_FORMAT = 1
_BURST_SECONDS = 20e-6
"""A kernel is timed over about as long: the clock and the call take a microsecond."""
_TURNS, _FEWEST_TURNS = 3, 2
"""Of a pair: in a single one an interruption would pass for the truth."""
_REFIT_PAIRS = 48
"""New pairs after which tables are looked at again."""
_SAMPLES = 1000
_RAREST = 16


@dataclass(frozen=True)
class Budget:
    """What refinement may cost. every: one call in so many is measured. seconds: that such a call may take longer."""

    every: int = 64
    seconds: float = 4e-3

    def __post_init__(self) -> None:
        if self.every < 1 or not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"every={self.every}, seconds={self.seconds}: measure one call in 1 or more, in some time")


@dataclass
class Progress:
    """What came of it so far."""

    calls_measured: int = 0
    pairs: int = 0
    exchanges: int = 0


@dataclass
class _Watched:
    """A group with a choice: its table, one for each variant that always takes it, and what pairs have shown."""

    group: Group
    table: Table
    fixed: list[tvm.runtime.Tensor]
    evidence: Evidence
    visits: int = 0
    visits_before: int = -1

    def begin_call(self) -> None:
        """The model is run from its start."""
        self.visits_before, self.visits = self.visits, 0

    def next_extents(self, dims: Mapping[str, int]) -> dict[str, int] | None:
        """Those of the call of the group that comes next, None where it is not sure which one that is.

        Calls come in the order of the model, unless branches skip some of them or loops repeat them: then their number
        differs from that in the model.
        """
        number, self.visits = self.visits, self.visits + 1
        known = extents_at(self.group, dims)
        if len(known) != len(self.group.calls):
            return None  # some depend on data
        if all(extents == known[0] for extents in known):
            return known[0]
        return known[number] if self.visits_before == len(known) > number else None


class Refinement:
    """Refines one library while it serves; `wants` says which calls it measures.

    module, selection: the library's. model: predicts times at first, and learns; what was measured on other hardware
    than its own is left alone. threads: that calls run on. budget: what measuring may cost. folder: where `FILE` lies,
    such as that of a tuning database; None keeps all in memory.
    """

    def __init__(
        self,
        module: tvm.runtime.Module,
        selection: Selection,
        model: CostModel,
        threads: int = 1,
        budget: Budget | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.budget, self.progress = budget or Budget(), Progress()
        self._selection, self._model, self._threads = selection, model, threads
        self._watched = dict(self._watch(group) for group in selection.groups if group.name in selection.tables)
        self._file = None if folder is None else Path(folder) / FILE
        self._machine = relax.VirtualMachine(module, tvm.cpu())
        self._machine.set_instrument(self._before_kernel)
        self._main = self._machine["main"]
        self._calls, self._interval = 0, self.budget.every
        self._next_call = self._interval
        self._measuring = threading.Lock()
        self._fitting: threading.Thread | None = None
        self._samples: list[Sample] = []
        self._predictions: dict[tuple, list[float]] = {}
        self._fresh_pairs = 0
        self._deadline, self._dims = 0.0, {}
        self._visits, self._first_visit, self._challenged = 0, 0, False
        self._random = random.Random(0)
        self._fault: BaseException | None = None
        if self._file is not None:
            self._recall()

    def wants(self) -> bool:
        """Whether to measure this call; costs an addition when it does not."""
        self._calls += 1
        return self._calls >= self._next_call and bool(self._watched)

    def call(self, otherwise: Callable[..., Any], tensors: Sequence[Any], dims: Mapping[str, int]) -> Any:
        """Run one call with measurements, where the dims are these; by ``otherwise`` while another thread measures."""
        if not self._measuring.acquire(blocking=False):
            return otherwise(*tensors)
        self._challenged = False
        try:
            self._dims = dims
            self._deadline = time.perf_counter() + self.budget.seconds
            for watched in self._watched.values():
                watched.begin_call()
            # The time for measurements would else go to the first kernels of the model each time.
            self._first_visit, self._visits = self._random.randrange(max(self._visits, 1)), 0
            self.progress.calls_measured += 1
            result = self._main(*tensors)
        finally:
            # Where there is nothing left to find out, looking for it becomes rare.
            rarer = min(2 * self._interval, _RAREST * self.budget.every)
            self._interval = self.budget.every if self._challenged else rarer
            self._next_call = self._calls + self._interval
            self._measuring.release()
        if self._fresh_pairs >= _REFIT_PAIRS and (self._fitting is None or not self._fitting.is_alive()):
            self._fresh_pairs = 0
            self._fitting = threading.Thread(target=self._refit, name="tvm_dyn refinement", daemon=True)
            self._fitting.start()
        return result

    def measured(self, _group: Group, variant: Variant, extents: Mapping[str, int]) -> float | None:
        """Seconds that a variant took at these extents when it was measured last, None where it was not lately."""
        found = [s.seconds for s in self._samples if s.variant == variant and s.extents == extents]
        return found[-1] if found else None

    def settle(self) -> None:
        """Wait for work in the background, look at all tables once more, and keep what was learned."""
        if self._fitting is not None:
            self._fitting.join()
        self._refit()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def _watch(self, group: Group) -> tuple[int, _Watched]:
        """A group by the address of its table."""
        table = self._selection.tables[group.name]
        fixed = [tvm.runtime.tensor(table.of_variant(n).words) for n in range(len(group.variants))]
        address = table.words.__array_interface__["data"][0]
        return address, _Watched(group, table, fixed, Evidence(len(group.variants)))

    def _before_kernel(self, kernel: Any, _name: str, before: bool, _result: Any, *args: Any) -> int:
        """The machine's instrument: 0 lets it go on. A fault here must not fail the call; it ends the measurements."""
        found = self._table_among(args) if before and self._fault is None else None
        if found is None:
            return 0
        place, watched = found
        extents = watched.next_extents(self._dims)
        self._visits += 1
        if self._visits > self._first_visit and time.perf_counter() < self._deadline and extents is not None:
            try:
                self._explore(kernel, args, place, watched, extents)
            except Exception as error:  # the caller asked for a result, not for a measurement
                self._fault = error
                warnings.warn(f"refinement stops: {error!r}", RuntimeWarning, stacklevel=2)
        return 0

    def _explore(
        self, kernel: Any, args: Sequence[Any], place: int, watched: _Watched, extents: dict[str, int]
    ) -> None:
        """Pair the variant in use with a challenger. place: of the table among the arguments; outputs follow it."""
        point = watched.evidence.point({name: extents[name] for name in watched.group.extents})
        outputs = {n: _like(a) for n, a in enumerate(args) if n > place and isinstance(a, tvm.runtime.Tensor)}
        if point is None or not outputs:
            return
        point.calls += self._interval
        challenger = watched.evidence.challenger(
            point, watched.table.tree(), lambda: self._predicted(watched.group, extents)
        )
        if challenger is None:
            return
        self._challenged = True
        base = watched.table.decide(extents)
        calls = [_call(kernel, args, {**outputs, place: watched.fixed[n]}) for n in (base, challenger)]
        pair = _paired(calls, self._deadline)
        if pair is not None:
            point.add(base, challenger, math.log(pair[1] / pair[0]))
            self._note(watched.group, extents, dict(zip((base, challenger), pair, strict=True)))

    def _table_among(self, args: Sequence[Any]) -> tuple[int, _Watched] | None:
        """Which argument of a kernel is the table of a group, and of which."""
        for n, arg in enumerate(args):
            if isinstance(arg, tvm.runtime.Tensor) and arg.dtype == "int64" and len(arg.shape) == 1:
                watched = self._watched.get(np.from_dlpack(arg).__array_interface__["data"][0])
                if watched is not None:
                    return n, watched
        return None

    def _note(self, group: Group, extents: Mapping[str, int], seconds: Mapping[int, float]) -> None:
        self.progress.pairs += 1
        self._fresh_pairs += 1
        for number, took in seconds.items():
            variant = group.variants[number]
            if has_form(variant, self._model.machine):
                self._samples.append(Sample(variant, extents, took, self._threads))
        del self._samples[:-_SAMPLES]

    def _predicted(self, group: Group, extents: Mapping[str, int]) -> Sequence[float]:
        """Times of all variants of a group: what the model said when it was fitted, else by the closed form."""
        key = (group.name, *extents.values())
        if key not in self._predictions:
            known = has_form(group.variants[0], self._model.machine)
            quick = CostModel(self._model.machine, self._model.hardware)
            seconds = quick.seconds(group.variants, [extents], self._threads)[0].tolist() if known else None
            self._predictions[key] = seconds or [1.0] * len(group.variants)
        return self._predictions[key]

    def _learn(self, samples: Sequence[Sample]) -> None:
        """Fit the model again, and predict anew for the shapes that it learned from."""
        model = CostModel.fit(samples, self._model.machine, self._model.hardware)
        variants = {sample.variant for sample in samples}
        predictions: dict[tuple, list[float]] = {}
        for watched in self._watched.values():
            group = watched.group
            if variants.isdisjoint(group.variants):
                continue
            shapes = {tuple(s.extents.items()) for s in samples if s.variant in group.variants}
            found = model.seconds(group.variants, [dict(shape) for shape in shapes], self._threads)
            for shape, seconds in zip(shapes, found, strict=True):
                predictions[(group.name, *(value for _, value in shape))] = seconds.tolist()
        self._model, self._predictions = model, predictions

    def _refit(self) -> None:
        """Learn from what was measured, and exchange the tables that lost."""
        try:
            with self._measuring:
                samples = list(self._samples)
                trees = [(w.table, w.evidence.better(w.table.tree(), LEAVES)) for w in self._watched.values()]
            for table, tree in trees:
                if tree is not None:
                    table.exchange(tree)
                    self.progress.exchanges += 1
            if samples:
                self._learn(samples)
            if self._file is not None:
                self._remember()
        except Exception as error:  # on a thread of its own: `settle` raises it
            self._fault = error

    def _remember(self) -> None:
        """Write what was measured beside what others know of other groups and hardware."""
        assert self._file is not None
        with FileLock(f"{self._file}.lock"):
            known = _read(self._file)
            mine = known.setdefault(self._model.hardware, {})
            for watched in self._watched.values():
                mine[_fingerprint(watched.group)] = watched.evidence.to_plain()
            replace_text(self._file, json.dumps({"format": _FORMAT, "hardware": known}))

    def _recall(self) -> None:
        """Take up what an earlier process measured, and exchange the tables that lost then."""
        assert self._file is not None
        known = _read(self._file).get(self._model.hardware, {})
        for watched in self._watched.values():
            plain = known.get(_fingerprint(watched.group), [])
            try:
                watched.evidence = Evidence.from_plain(plain, len(watched.group.variants))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                warnings.warn(f"{self._file}: {watched.group.name} is skipped: {error!r}", RuntimeWarning, stacklevel=4)
                continue
            tree = watched.evidence.better(watched.table.tree(), LEAVES)
            if tree is not None:
                watched.table.exchange(tree)
                self.progress.exchanges += 1


def _read(file: Path) -> dict[str, Any]:
    """Measurements by hardware; none where the file is missing or is something else."""
    try:
        plain = json.loads(file.read_text()) if file.exists() else {}
        return dict(plain.get("hardware", {})) if plain.get("format") == _FORMAT else {}
    except (ValueError, TypeError, AttributeError) as error:
        warnings.warn(f"{file} cannot be read and is begun anew: {error!r}", RuntimeWarning, stacklevel=4)
        return {}


def _fingerprint(group: Group) -> str:
    """A group by what was measured: the variants, their order, and the extents that never change."""
    constant = {k: v for k, v in (group.calls[0] if group.calls else {}).items() if k not in group.extents}
    return json.dumps([[v.name for v in group.variants], list(group.extents), sorted(constant.items())])


def _like(tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    return tvm.runtime.empty(tensor.shape, tensor.dtype, tensor.device)


def _call(kernel: Any, args: Sequence[Any], instead: Mapping[int, Any]) -> Callable[[], object]:
    given = [instead.get(n, arg) for n, arg in enumerate(args)]
    return lambda: kernel(*given)


def _paired(calls: Sequence[Callable[[], object]], deadline: float) -> tuple[float, float] | None:
    """Seconds of two calls, in turns, each at its best; None where the time does not suffice for a fair pair."""
    clock = time.perf_counter
    calls[0]()  # brings the operands into the cache
    start = clock()
    calls[1]()
    once = max(clock() - start, 1e-7)
    count = max(1, min(round(_BURST_SECONDS / once), 50))
    best = [math.inf, math.inf]
    turns = 0
    for turn in range(_TURNS):
        if clock() + 2 * count * once > deadline:
            break
        turns += 1
        for n in (0, 1) if turn % 2 else (1, 0):
            start = clock()
            for _ in range(count):
                calls[n]()
            best[n] = min(best[n], (clock() - start) / count)
    return (best[0], best[1]) if turns >= _FEWEST_TURNS else None
