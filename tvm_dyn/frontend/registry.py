"""The table of converters: one small function per operator and version range.

A converter takes `(ctx, node)` and returns one Value, or a list with one Value (or None) per node output.
It may return NotImplemented for a form that the next source (function body, TVM's own converter) handles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Converter = Callable[..., Any]


@dataclass(frozen=True)
class _Entry:
    since: int
    until: int | None
    convert: Converter


_TABLE: dict[tuple[str, str], list[_Entry]] = defaultdict(list)


def converter(
    *op_types: str, since: int = 1, until: int | None = None, domain: str = ""
) -> Callable[[Converter], Converter]:
    """Register a converter for `op_types` from opset `since` up to and including `until`."""

    def register(convert: Converter) -> Converter:
        for op_type in op_types:
            _TABLE[domain, op_type].append(_Entry(since, until, convert))
        return convert

    return register


def find(op_type: str, opset: int, domain: str = "") -> Converter | None:
    """The converter for an operator at an opset version: the one with the highest `since` that covers it."""
    entries = [e for e in _TABLE[domain, op_type] if e.since <= opset and (e.until is None or opset <= e.until)]
    return max(entries, key=lambda e: e.since).convert if entries else None
