"""Models of other frameworks in: Relax modules with symbolic dims out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from tvm_dyn.dims import Dim


def import_onnx(model: Any, dims: Mapping[str, Dim | int] | None = None) -> tvm.IRModule:
    """An ONNX model (path or ModelProto) as an IRModule whose `main` keeps dynamic dims symbolic.

    dims: facts about symbolic dims by the model's name for them. Raises ModelImportError and its subclasses.
    """
    from tvm_dyn.frontend.importer import import_graph
    from tvm_dyn.frontend.validate import load_model

    return import_graph(load_model(model), dims)


def import_exported_program(program: Any, dims: Mapping[str, Dim | int] | None = None) -> tvm.IRModule:
    """A torch `ExportedProgram` with dynamic shapes as an IRModule. Raises ModelImportError."""
    from tvm_dyn.frontend.torch import import_program

    return import_program(program, dims)
