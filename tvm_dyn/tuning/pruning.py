"""Which records of a database are worth keeping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm_dyn.tuning.machine import machine_key, versions
from tvm_dyn.tuning.records import Conditions, Measurement, Record


class Fastest:
    """Keeps a record that is among the ``keep`` fastest of its workload at some shape, under the same conditions.

    Records without times by shape compare by MetaSchedule's own. ``foreign``: also drop what was measured elsewhere.
    """

    def __init__(self, records: Sequence[Record], keep: int, foreign: bool):
        self._foreign = foreign
        times: dict[tuple, list[float]] = {}
        for record in records:
            for place, seconds in _times(record).items():
                times.setdefault(place, []).append(seconds)
        self._limits: dict[tuple, float] = {place: sorted(seconds)[:keep][-1] for place, seconds in times.items()}

    def __call__(self, record: Record) -> Record | None:
        """What to keep of a record, None for nothing."""
        if not any(seconds <= self._limits[place] for place, seconds in _times(record).items()):
            return None
        kept = [m for m in record.measurements if not m.fault and not (self._foreign and _is_foreign(m.conditions))]
        if record.measurements and not kept:
            return None
        return replace(record, measurements=_merged(kept))


def _times(record: Record) -> dict[tuple, float]:
    """Least seconds by workload, conditions and shape."""
    found: dict[tuple, float] = {}
    for m in record.measurements:
        for extents, seconds in m.seconds.items():
            place = (record.workload.key, m.conditions, extents)
            found[place] = min(seconds, found.get(place, seconds))
    if not record.measurements:
        for seconds, target in record.runs:
            found[record.workload.key, str(target)] = sum(seconds) / len(seconds) if seconds else float("inf")
    return found


def _is_foreign(conditions: Conditions) -> bool:
    return (conditions.machine, conditions.versions) != (machine_key(), versions())


def _merged(measurements: list[Measurement]) -> list[Measurement]:
    """One measurement for each set of conditions, with the least seconds at each shape."""
    found: dict[Conditions, dict] = {}
    for m in measurements:
        known = found.setdefault(m.conditions, {})
        for extents, seconds in m.seconds.items():
            known[extents] = min(seconds, known.get(extents, seconds))
    return [Measurement(conditions, seconds) for conditions, seconds in found.items()]
