"""What a model is made of, found out without generating code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from .api import import_model
from .dims import Dim
from .embed import ATTRIBUTE
from .hardware import host_target
from .pipeline import phases
from .runtime.signature import DimInfo, Signature, TensorInfo


@dataclass(frozen=True)
class ModelInfo:
    """Inputs, outputs, dims and operators as in `Library`, and the names of the fusion groups to compile."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    dims: Mapping[str, DimInfo]
    ops: Mapping[str, int]
    groups: tuple[str, ...]


def inspect_model(
    model: Any, dims: Mapping[str, Dim | int] | None = None, progress: Callable[[str], None] | None = None
) -> ModelInfo:
    """Import a model and run the pipeline up to fusion; arguments and errors as in `tvm_dyn.compile`."""
    report = progress or (lambda phase: None)
    report("import")
    module = import_model(model, dims)
    signature = Signature.from_json(str(module["main"].attrs[ATTRIBUTE]))
    target = host_target()
    with target:
        for name, passes in phases(target):
            report(name)
            module = tvm.transform.Sequential(passes)(module)
            if name == "fuse":
                break
    groups = [var.name_hint for var, func in module.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]
    return ModelInfo(signature.inputs, signature.outputs, signature.dims, signature.ops, tuple(sorted(groups)))
