"""The front door: compile a model, load a compiled one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tvm

from . import pipeline  # its import registers relax.get_pipeline("tvm_dyn")
from .dims import Dim
from .embed import with_signature
from .errors import ModelImportError, TvmDynError
from .hardware import host_target
from .runtime import threads
from .runtime.executable import Library, load_library
from .self_check import SelfCheck

Tier = Literal["llvm", "bytecode", "auto"]

if TYPE_CHECKING:
    import onnx
    import torch
    from tvm.target import Target

    Model = str | os.PathLike[str] | onnx.ModelProto | torch.export.ExportedProgram | tvm.IRModule


def compile(
    model: Model,
    target: Target | None = None,
    dims: Mapping[str, Dim | int] | None = None,
    *,
    num_threads: int | None = None,
    dump_phases: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    self_check: bool = False,
    tier: Tier = "llvm",
) -> Library:
    """Compile a model once; the library it returns runs every shape the model allows.

    model: an .onnx file by path, an `onnx.ModelProto`, a torch `ExportedProgram`, or a Relax `IRModule` whose
    `main` takes and returns tensors. target: by default this machine's CPU with its features and cores.
    dims: facts about symbolic dims by the model's name for them; an int fixes the dim.
    num_threads: threads per call; by default TVM_NUM_THREADS where set, else all cores the process may use.
    dump_phases: a folder that gets the module as text after each phase.
    progress: called with the name of each phase as it starts.
    self_check: run every kernel, as scheduled and as it was, on the same random inputs at several extents, and fail
    where one is wrong; the library's `self_check` tells what was looked at. It takes seconds to minutes.
    tier: "llvm" compiles before it returns. "bytecode" compiles nothing: operators are fused and interpreted as they
    are called, and the library's `fallbacks` names those that are numpy's. "auto" starts in "bytecode" while a process
    of low priority compiles, and changes over when that is measured to be faster; its library has `tier`, `wait`
    and `stop`. In the latter two, self_check, dump_phases and progress (but for "import") do not apply.

    Raises errors of `tvm_dyn.errors`: `ModelImportError` and its kinds where the model cannot be read
    (`.stage` is 'import'), `CompileError` where a pass, code generation or the self-check fails ('compile').
    """
    threads.use_threads(threads.resolve_num_threads(num_threads))
    report = progress or (lambda phase: None)
    report("import")
    module = import_model(model, dims)
    if tier != "llvm":
        return _interpreted(tier, module, model, target or host_target(), dims, num_threads)
    dump = Path(dump_phases) if dump_phases else None
    check = SelfCheck(target or host_target(), report) if self_check else None
    library = Library(pipeline.build(module, target, dump, report, check).jit(), num_threads)
    library.self_check = check.summary if check else None
    return library


def _interpreted(
    tier: Tier,
    module: tvm.IRModule,
    model: Model,
    target: Target,
    dims: Mapping[str, Dim | int] | None,
    num_threads: int | None,
) -> Library:
    from .tiers.interpreted import InterpretedLibrary
    from .tiers.tiered import TieredLibrary

    if tier == "bytecode":
        return InterpretedLibrary(module, target, num_threads)
    if tier == "auto":
        source = os.fspath(model) if isinstance(model, str | os.PathLike) else module
        return TieredLibrary(module, source, target, dims, num_threads)
    raise ValueError(f"tier={tier!r}: use 'llvm', 'bytecode' or 'auto'")


def load(path: str | os.PathLike[str], *, num_threads: int | None = None) -> Library:
    """Load a library that `Library.export` wrote, in any process; `num_threads` as in `compile`.

    It runs the machine code in the file: load only files you trust. Raises `InvalidLibraryError`.
    """
    return load_library(path, num_threads)


def import_model(model: Model, dims: Mapping[str, Dim | int] | None = None) -> tvm.IRModule:
    """The model as a Relax module that carries its signature; arguments and errors as in `compile`."""
    to_relax = _importer(model)
    try:
        return with_signature(to_relax(model, dims), dims or {})
    except TvmDynError:
        raise
    except Exception as error:  # whatever TVM raises, callers get one kind, with the cause attached
        raise ModelImportError(f"the model cannot be turned into Relax: {error}") from error


def _importer(model: Any) -> Callable[[Any, Mapping[str, Dim | int] | None], tvm.IRModule]:
    from . import frontend

    if isinstance(model, tvm.IRModule):
        return lambda module, dims: module
    family = type(model).__module__.partition(".")[0]
    if family == "torch":
        return frontend.import_exported_program
    if family == "onnx" or isinstance(model, str | os.PathLike):
        return frontend.import_onnx
    raise TypeError(
        f"cannot compile a {type(model).__name__}: pass the path of an .onnx file, an onnx.ModelProto, "
        "a torch ExportedProgram or a Relax IRModule"
    )
