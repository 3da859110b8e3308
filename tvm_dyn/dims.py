"""What the user knows about a symbolic dim: its range and a divisor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import InvalidDimError

_OPTION = re.compile(r"(?P<min>\d*)(?P<range>\.\.)?(?P<max>\d*)(?:/(?P<divisor>\d+))?")
_SYNTAX = "NAME=N, NAME=MIN..MAX, NAME=MIN.. or NAME=MIN..MAX/DIVISOR"


@dataclass(frozen=True)
class Dim:
    """A symbolic dim takes the extents v with `min <= v <= max` and `v % divisor == 0`; `max=None` is open.

    Raises `InvalidDimError` where no extent satisfies all three.
    """

    min: int = 0
    max: int | None = None
    divisor: int = 1

    def __post_init__(self) -> None:
        if self.min < 0:
            raise InvalidDimError(f"Dim(min={self.min}): an extent is never negative; use min >= 0")
        if self.divisor < 1:
            raise InvalidDimError(f"Dim(divisor={self.divisor}): the divisor must be at least 1")
        if self.max is not None and self._smallest > self.max:
            raise InvalidDimError(
                f"no extent fits {self}: the smallest multiple of {self.divisor} that is at least {self.min} "
                f"is {self._smallest}; raise max or lower min"
            )

    @property
    def _smallest(self) -> int:
        return -(-self.min // self.divisor) * self.divisor

    def __str__(self) -> str:
        multiples = f", multiples of {self.divisor}" if self.divisor > 1 else ""
        if self.max == self.min:
            return f"{self.min}{multiples}"
        return f"{self.min}..{'' if self.max is None else self.max}{multiples}"


def parse_dim_option(option: str) -> tuple[str, Dim]:
    """`"seq=1..512/8"` -> `("seq", Dim(1, 512, 8))`; raises `InvalidDimError` on any other syntax."""
    name, equals, text = option.rpartition("=")
    match = _OPTION.fullmatch(text.strip())
    if not (name.strip() and equals and match and (match["min"] or match["range"])):
        raise InvalidDimError(f"cannot read the dim option {option!r}: write {_SYNTAX}")
    low, high = match["min"], match["max"]
    if not match["range"]:
        if high or match["divisor"]:
            raise InvalidDimError(f"cannot read the dim option {option!r}: write {_SYNTAX}")
        high = low
    return name.strip(), Dim(int(low or 0), int(high) if high else None, int(match["divisor"] or 1))


def parse_dim_options(options: Iterable[str]) -> dict[str, Dim]:
    """Read options like `parse_dim_option` into a dict; raises `InvalidDimError` on a repeated name too."""
    dims: dict[str, Dim] = {}
    for option in options:
        name, dim = parse_dim_option(option)
        if name in dims:
            raise InvalidDimError(f"the dim {name!r} is given twice: {dims[name]} and {dim}; keep one")
        dims[name] = dim
    return dims
