"""The tuning database: MetaSchedule's two files under their usual names, and times by shape in a third one.

    database_workload.json         ["<structural hash>", "<the backbone as a module>"]                    MetaSchedule's
    database_tuning_record.json    [workload, [trace, [seconds], target, null]]                           MetaSchedule's
    database_shape_times.json      {"workload": hash, "trace": trace, "seconds": [[{"rows": 37}, 1.2e-5], ...],
                                    "machine": ..., "target": ..., "versions": ..., "threads": 1, ...}    ours

Backbones are found whatever their symbols are called. The line of the third file is written last and stands on its
own: once it is there, nothing of a record is missing. Files are safe against concurrent writers and kills
(see `log_folder`); damaged lines are reported and skipped.
"""

from __future__ import annotations

import io
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm.s_tir.schedule import Trace
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.errors import DamagedRecordWarning, DatabaseError
from tvm_dyn.runtime.files import replace_bytes
from tvm_dyn.tuning.log_folder import Line, LogFolder, dump
from tvm_dyn.tuning.records import Measurement, Record, StoredWorkload, digest, plain, trace_json

WORKLOADS, RECORDS, TIMES = FILES = (
    "database_workload.json",
    "database_tuning_record.json",
    "database_shape_times.json",
)
AnyPath = str | os.PathLike[str]
Keep = Callable[[Record], Record | None]
"""What of a record to keep; None for nothing."""


class TuningDatabase:
    """The database in a folder, which is made where it is missing; what other processes add is seen at each call.

    damaged: what could not be read, a sentence for each line; it is also told in a DamagedRecordWarning.
    Raises DatabaseError where the folder cannot be made or is a file.
    """

    def __init__(self, path: AnyPath):
        try:
            self._folder = LogFolder(path, FILES)
        except OSError as error:
            raise DatabaseError(f"{path} cannot be a tuning database: {error}; name a folder") from error
        self.path = self._folder.path
        self._forget()
        self.refresh()

    def _forget(self) -> None:
        self.damaged: list[str] = []
        self._workloads: list[StoredWorkload | None] = []
        self._records: dict[tuple[str, str], Record] = {}

    def refresh(self) -> None:
        """Read what was added since the last time."""
        with self._folder.locked():
            lines = self._folder.refresh()
            if lines is None:
                self._forget()
                lines = self._folder.refresh() or {}
            readers = {WORKLOADS: self._read_workload, RECORDS: self._read_record, TIMES: self._read_times}
            for name, read in readers.items():
                for line in lines.get(name, []):
                    self._take(name, line, read)

    def records(self, backbone: PrimFunc | None = None) -> list[Record]:
        """All records, or those of a backbone."""
        self.refresh()
        if backbone is None:
            return [*self._records.values()]
        wanted = StoredWorkload.of(backbone)
        return [record for record in self._records.values() if record.workload.same(wanted)]

    def commit(self, backbone: PrimFunc, trace: Trace, target: Target, measurement: Measurement) -> None:
        """Add what was measured with a trace; it is on disk when this returns.

        Seconds also become a line of MetaSchedule's records, as their mean.
        """
        stored, instructions = StoredWorkload.of(backbone), trace_json(trace)
        with self._folder.locked():
            self.refresh()
            position = self._position(stored)
            if measurement.seconds and not measurement.fault:
                mean = sum(measurement.seconds.values()) / len(measurement.seconds)
                exported = plain(target.export())
                self._folder.append(RECORDS, [position, [instructions, [mean], exported, None]])
            self._folder.append(TIMES, {"workload": stored.key, "trace": instructions, **measurement.to_plain()})
            self.refresh()

    def merge(self, other: AnyPath) -> int:
        """Add the records of another database, a folder or a file that `export` wrote; the number of new lines."""
        if Path(other).is_file():
            return self._merge_archive(Path(other))
        if not Path(other).is_dir():
            raise DatabaseError(f"{other} is neither a database folder nor an exported file; check the path")
        return self._merge(TuningDatabase(other)._records)

    def _merge(self, records: Mapping[Any, Record]) -> int:
        added = 0
        with self._folder.locked():
            self.refresh()
            for record in records.values():
                known = self._records.get(record.key)
                runs = [run for run in record.runs if known is None or run not in known.runs]
                times = [m for m in record.measurements if known is None or m not in known.measurements]
                position = self._position(record.workload) if runs or times else -1
                for run in runs:
                    self._folder.append(RECORDS, [position, _plain_run(record, run)])
                for measurement in times:
                    self._folder.append(TIMES, _plain_times(record, measurement))
                added += len(runs) + len(times)
            self.refresh()
        return added

    def _merge_archive(self, path: Path) -> int:
        with tempfile.TemporaryDirectory() as folder:
            try:
                with zipfile.ZipFile(path) as archive:
                    for name in FILES:
                        (Path(folder) / name).write_bytes(archive.read(name))
            except (zipfile.BadZipFile, KeyError) as error:
                raise DatabaseError(f"{path} is not an exported tuning database: {error}") from error
            return self._merge(TuningDatabase(folder)._records)

    def prune(self, keep: Keep) -> int:
        """Rewrite the files with what ``keep`` returns of each record; the number of lines that are gone.

        Damaged lines, lines that say the same twice and workloads without a record go too.
        """
        with self._folder.locked():
            self.refresh()
            kept = [new for record in self._records.values() if (new := keep(record)) is not None]
            contents = _contents(kept)
            before = sum(self._folder.lines(name) for name in FILES)
            self._folder.rewrite(contents)
            self.refresh()
        return before - sum(map(len, contents.values()))

    def export(self, path: AnyPath, keep: Keep = lambda record: record) -> int:
        """Write what ``keep`` returns of each record to one file, which `merge` reads; the number of records."""
        kept = [new for record in self.records() if (new := keep(record)) is not None]
        contents = _contents(kept)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in FILES:
                archive.writestr(name, "".join(dump(value) for value in contents[name]))
        target = Path(path)
        try:
            replace_bytes(target, packed.getvalue())
        except OSError as error:
            raise DatabaseError(f"cannot write {target}: {error}") from error
        return len(kept)

    def _position(self, stored: StoredWorkload) -> int:
        """The line of a workload, which is added where it is new."""
        for number, known in enumerate(self._workloads):
            if known is not None and known.same(stored):
                return number
        self._folder.append(WORKLOADS, stored.plain)
        self.refresh()
        return len(self._workloads) - 1

    def _take(self, name: str, line: Line, read: Callable[[Any], None]) -> None:
        damage = line.damage
        if damage is None:
            try:
                read(line.value)
                return
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
                damage = f"{type(error).__name__}: {error}"  # whatever another value than ours leads to
        if name == WORKLOADS:
            self._workloads.append(None)  # records count the lines
        message = f"{self.path / name}, line {line.number + 1}, is damaged and skipped: {damage}"
        self.damaged.append(message)
        warnings.warn(message, DamagedRecordWarning, stacklevel=4)

    def _read_workload(self, value: Any) -> None:
        key, module = value
        stored = StoredWorkload([str(key), str(module)])
        if not stored.workload.mod.functions:  # TVM reads the module here
            raise ValueError("the module is empty")
        self._workloads.append(stored)

    def _read_record(self, value: Any) -> None:
        position, (trace, seconds, target, _args) = value
        workload = self._workloads[position] if 0 <= position < len(self._workloads) else None
        if workload is None:
            raise ValueError(f"there is no workload {position}")
        self._record(workload, trace).runs.append(([float(s) for s in seconds or []], target))

    def _read_times(self, value: Any) -> None:
        key = str(value["workload"])
        workload = next((w for w in self._workloads if w is not None and w.key == key), None)
        if workload is None:
            raise ValueError(f"there is no workload {key}")
        self._record(workload, value["trace"]).measurements.append(Measurement.from_plain(value))

    def _record(self, workload: StoredWorkload, trace: list) -> Record:
        return self._records.setdefault((workload.key, digest(trace)), Record(workload, trace))


def _contents(records: Sequence[Record]) -> dict[str, list]:
    """The lines of the three files that hold these records, each line once."""
    workloads: list[StoredWorkload] = []
    lines: list[list] = []
    for record in records:
        position = next((n for n, known in enumerate(workloads) if known.same(record.workload)), len(workloads))
        if position == len(workloads):
            workloads.append(record.workload)
        lines += [[position, _plain_run(record, run)] for run in _distinct(record.runs)]
    times = [_plain_times(record, m) for record in records for m in _distinct(record.measurements)]
    return {WORKLOADS: [stored.plain for stored in workloads], RECORDS: lines, TIMES: times}


def _plain_run(record: Record, run: tuple[list[float], Any]) -> list:
    return [record.trace_json, *run, None]


def _plain_times(record: Record, measurement: Measurement) -> dict[str, Any]:
    return {"workload": record.workload.key, "trace": record.trace_json, **measurement.to_plain()}


def _distinct(values: list) -> list:
    return [value for n, value in enumerate(values) if value not in values[:n]]
