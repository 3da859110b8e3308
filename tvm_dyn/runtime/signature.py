"""What a compiled model takes and gives: names, dtypes, symbolic shapes and the facts about their dims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. `shape` holds extents and expressions over dim names; None where the rank is open.

    `shared` marks an output that may be one of the library's own constants, which nobody may write to.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    shared: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{'[...]' if self.shape is None else shape_text(self.shape)}"


@dataclass(frozen=True)
class DimInfo:
    """A symbolic dim: `min <= extent <= max` (None: open), a multiple of `divisor`.

    `aliases` are its names as the model writes them; `why` says, a sentence each, what tied them together.
    """

    min: int = 0
    max: int | None = None
    divisor: int = 1
    aliases: tuple[str, ...] = ()
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs in graph order, facts per dim name, and how often each operator occurs."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    dims: Mapping[str, DimInfo] = field(default_factory=dict)
    ops: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """The signature as JSON text, which `from_json` reads back."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Signature:
        """Read JSON text; raises `ValueError` where it is no signature."""
        try:
            data = json.loads(text)
            return Signature(
                tuple(_tensor(entry) for entry in data["inputs"]),
                tuple(_tensor(entry) for entry in data["outputs"]),
                {name: _dim(entry) for name, entry in data.get("dims", {}).items()},
                {str(name): int(count) for name, count in data.get("ops", {}).items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a signature: {error}") from error


def shape_text(shape: tuple[int | str, ...]) -> str:
    """`(n, 16)` for `("n", 16)`: a shape without the quotes."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _tensor(entry: Mapping[str, Any]) -> TensorInfo:
    shape = entry["shape"]
    if shape is not None:
        shape = tuple(extent if isinstance(extent, int) else str(extent) for extent in shape)
    return TensorInfo(str(entry["name"]), str(entry["dtype"]), shape, bool(entry.get("shared", False)))


def _dim(entry: Mapping[str, Any]) -> DimInfo:
    maximum = entry.get("max")
    return DimInfo(
        int(entry.get("min", 0)),
        None if maximum is None else int(maximum),
        int(entry.get("divisor", 1)),
        tuple(map(str, entry.get("aliases", ()))),
        tuple(map(str, entry.get("why", ()))),
    )
