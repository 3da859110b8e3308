"""Calls that take turns: what each costs at its best, under the same conditions."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

Call = Callable[[], object]

_BURST_SECONDS = 1.5e-3
"""A call is timed in bursts of about this length: the clock itself costs a microsecond."""

_WARM_BELOW_SECONDS = 10e-3
"""A shorter call first runs untimed, as the others have used the cache since its last turn."""

_SETTLE_SECONDS = 250e-3
"""Pause before a turn on several threads: the workers of the one before spin for a while, OpenMP's for 0.2 s."""

_MIN_ROUNDS = 3


def clock(threads: int) -> Callable[[], float]:
    """Processor time where one thread works, as others may share the machine; else the time that passes."""
    return time.process_time if threads == 1 else time.perf_counter


@dataclass(frozen=True)
class _Burst:
    """How often to make a call in one turn, untimed and timed."""

    warm: int
    timed: int


def take_turns(calls: Mapping[str, Sequence[Call]], threads: int, rounds: int, seconds: float) -> dict[str, float]:
    """Seconds of each contestant's call in its fastest round.

    calls: by contestant, the same call on several inputs, which rounds go through in turn. rounds: of each
    contestant; fewer (at least 3) once they took ``seconds`` together.
    """
    read = clock(threads)
    bursts = {name: _plan(ways[0], read) for name, ways in calls.items()}
    best = dict.fromkeys(calls, float("inf"))
    names = list(calls)
    deadline = time.perf_counter() + seconds
    with _no_garbage_collection():
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if threads > 1:
                    time.sleep(_SETTLE_SECONDS)
                ways = calls[name]
                best[name] = min(best[name], _run(ways[number % len(ways)], bursts[name], read))
            if number + 1 >= _MIN_ROUNDS and time.perf_counter() > deadline:
                break
    return best


def _plan(call: Call, read: Callable[[], float]) -> _Burst:
    call()
    start = read()
    call()
    took = max(read() - start, 1e-6)
    return _Burst(warm=int(took < _WARM_BELOW_SECONDS), timed=max(1, round(_BURST_SECONDS / took)))


def _run(call: Call, burst: _Burst, read: Callable[[], float]) -> float:
    for _ in range(burst.warm):
        call()
    start = read()
    for _ in range(burst.timed):
        call()
    return (read() - start) / burst.timed


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
