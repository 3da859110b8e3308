"""What a cost model says of one variant at one shape: seconds, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SHARPNESS = 6
"""Of `overlapped`: two equal demands take 12 % more than one of them, one twice as large as the other hides it."""


@dataclass(frozen=True)
class Estimate:
    """Predicted ``seconds`` of one call, the sum of ``terms``: seconds by what causes them."""

    seconds: float
    terms: Mapping[str, float]

    @staticmethod
    def of(terms: Mapping[str, float]) -> Estimate:
        """The estimate that is the sum of its terms."""
        return Estimate(sum(terms.values()), dict(terms))

    @property
    def bound_by(self) -> str:
        """The largest term."""
        return max(self.terms, key=lambda name: self.terms[name])


def overlapped(demands: Iterable[float]) -> float:
    """How long demands on several units take that work at once.

    A roofline (S. Williams, A. Waterman, D. Patterson, Roofline, CACM 2009) with rounded corners: demands of about
    the same size get in each other's way.
    """
    known = list(demands)
    longest = max(known)
    if longest <= 0:
        return 0.0
    return longest * sum((demand / longest) ** _SHARPNESS for demand in known) ** (1 / _SHARPNESS)
