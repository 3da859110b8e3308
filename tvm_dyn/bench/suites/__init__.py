"""What there is to measure, by suite."""

from __future__ import annotations

from collections.abc import Callable

from tvm_dyn.bench.case import Case
from tvm_dyn.bench.suites import attention, conv, dense, models, norm

SUITES: dict[str, Callable[[], list[Case]]] = {
    "dense": dense.cases,
    "attention": attention.cases,
    "norm": norm.cases,
    "conv": conv.cases,
    "models": models.cases,
}
