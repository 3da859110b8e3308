"""The front door: compile a model, load a compiled one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tvm

from .dims import Dim
from .runtime.executable import Library

if TYPE_CHECKING:
    from tvm.target import Target


def compile(model: Any, target: Target | None = None, dims: Mapping[str, Dim] | None = None) -> Library:
    """Compile `model` for every shape it can take (skeleton)."""
    from . import pipeline

    module = _to_relax(model, dict(dims or {}))
    return Library(pipeline.build(module, target), module)


def load(path: str | os.PathLike[str]) -> Library:
    """Load a library written by `Library.export`."""
    raise NotImplementedError(path)


def _to_relax(model: Any, dims: dict[str, Dim]) -> tvm.IRModule:
    if isinstance(model, tvm.IRModule):
        return model
    from . import frontend

    if type(model).__module__.startswith("torch."):
        return frontend.import_exported_program(model, dims)
    return frontend.import_onnx(model, dims)
