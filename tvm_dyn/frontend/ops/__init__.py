"""Converters of our own, one module per family of operators. `load()` fills the registry."""

from __future__ import annotations

import importlib
import pkgutil

from tvm_dyn.frontend.ops import control, loop

CONTROL = {"If": control.convert_if, "Loop": loop.convert_loop, "Scan": loop.convert_scan}
"""Operators with graphs inside, which their converters hand back to the importer."""


def load() -> None:
    """Import every module of this package, so that its converters register themselves."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


__all__ = ["CONTROL", "load"]
