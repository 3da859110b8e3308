"""A folder of append-only files of JSON lines that several processes write and a kill at any instant leaves whole.

    with folder.locked():            # one process at a time; the operating system frees the lock of a dead one
        new = folder.refresh()       # complete lines that were added since the last time, by file
        folder.append(name, value)   # on disk when it returns

A line counts once its newline is there. What a killed writer left behind it is cut off by the next writer and kept in
`<name>.damaged`. A rewrite of several files is staged in a folder of its own and rolled forward once that is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

_STAGING, _COMPLETE = ".rewrite", "complete"


@dataclass(frozen=True)
class Line:
    """One line of a file: its value, or why there is none."""

    number: int
    value: Any
    damage: str | None = None


@dataclass
class _Position:
    inode: int = 0
    offset: int = 0
    lines: int = 0


class LogFolder:
    """The files ``names`` in the folder ``path``, which is made where it is missing."""

    def __init__(self, path: str | os.PathLike[str], names: Sequence[str]):
        self.path, self.names = Path(path), tuple(names)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / ".lock")
        self._read = {name: _Position() for name in self.names}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The folder to oneself; what killed writers left is put right first. May be nested."""
        outermost = not self._lock.is_locked
        with self._lock:
            if outermost:
                self._finish_rewrite()
                for name in self.names:
                    self._mend_tail(self.path / name)
            yield

    def refresh(self) -> dict[str, list[Line]] | None:
        """The lines that were added since the last call, by file; None where files were rewritten, which starts anew:
        the next call tells all lines. Call it in `locked`.
        """
        if any(self._rewritten(name) for name in self.names):
            self._read = {name: _Position() for name in self.names}
            return None
        return {name: self._new_lines(name) for name in self.names}

    def lines(self, name: str) -> int:
        """The number of lines of a file that `refresh` has told."""
        return self._read[name].lines

    def append(self, name: str, value: Any) -> None:
        """Add a line, on disk when this returns. Call it in `locked`."""
        path = self.path / name
        new = not path.exists()
        with path.open("ab") as file:
            file.write(dump(value).encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            _sync_folder(self.path)

    def rewrite(self, contents: Mapping[str, Sequence[Any]]) -> None:
        """Replace the lines of files, all or none of them. Call it in `locked`."""
        staging = self.path / _STAGING
        staging.mkdir()
        for name, values in contents.items():
            text = "".join(dump(value) for value in values)
            _write_synced(staging / name, text.encode())
        _write_synced(staging / _COMPLETE, b"")
        _sync_folder(staging)
        self._finish_rewrite()

    def _finish_rewrite(self) -> None:
        staging = self.path / _STAGING
        if not staging.exists():
            return
        if (staging / _COMPLETE).exists():
            for name in self.names:
                if (staging / name).exists():
                    os.replace(staging / name, self.path / name)
            _sync_folder(self.path)
        shutil.rmtree(staging)

    def _mend_tail(self, path: Path) -> None:
        """End the file with a whole line."""
        if not path.exists():
            return
        with path.open("r+b") as file:
            tail = _unfinished(file)
            if not tail:
                return
            if _parse(tail)[1] is None:  # whole but for its newline: half of an array is no JSON
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
            else:
                with path.with_name(f"{path.name}.damaged").open("ab") as kept:
                    kept.write(tail + b"\n")
                    os.fsync(kept.fileno())
                file.truncate(file.seek(0, os.SEEK_END) - len(tail))
            os.fsync(file.fileno())

    def _rewritten(self, name: str) -> bool:
        position, path = self._read[name], self.path / name
        if not position.offset:
            return False
        if not path.exists():
            return True
        status = path.stat()
        return status.st_ino != position.inode or status.st_size < position.offset

    def _new_lines(self, name: str) -> list[Line]:
        position, path = self._read[name], self.path / name
        if not path.exists():
            return []
        with path.open("rb") as file:
            position.inode = os.fstat(file.fileno()).st_ino
            file.seek(position.offset)
            raw = file.read()
        lines = [Line(position.lines + n, *_parse(text)) for n, text in enumerate(raw.split(b"\n")[:-1])]
        position.offset += len(raw)
        position.lines += len(lines)
        return lines


def dump(value: Any) -> str:
    """The line of a value."""
    return json.dumps(value, separators=(",", ":")) + "\n"


def _parse(text: bytes) -> tuple[Any, str | None]:
    try:
        return json.loads(text), None
    except ValueError as error:  # bad JSON, bad UTF-8
        return None, str(error)


def _unfinished(file: Any) -> bytes:
    """What follows the last newline of a file."""
    end, tail, step = file.seek(0, os.SEEK_END), b"", 1 << 16
    while end > 0:
        start = max(end - step, 0)
        file.seek(start)
        block = file.read(end - start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            return block[newline + 1 :] + tail
        tail, end = block + tail, start
    return tail


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
