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

    from .tuning.profile import ShapeProfile
    from .tuning.reuse import DatabaseChoices
    from .tuning.session import TuningReport
    from .tuning.tuner import Status

    Model = str | os.PathLike[str] | onnx.ModelProto | torch.export.ExportedProgram | tvm.IRModule
    Profile = str | os.PathLike[str] | ShapeProfile | None


def compile(
    model: Model,
    target: Target | None = None,
    dims: Mapping[str, Dim | int] | None = None,
    *,
    num_threads: int | None = None,
    dump_phases: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    self_check: bool = False,
    database: str | os.PathLike[str] | None = None,
    profile: Profile = None,
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
    database: a folder that `tune` wrote to: fusion groups take the variants it knows for their backbones, whatever
    model those were tuned for; the library's `reused` tells which. Nothing is measured; groups of other backbones take
    what they take without it. profile: the shapes that matter, as in `tune`.
    tier: "llvm" compiles before it returns. "bytecode" compiles nothing: operators are fused and interpreted as they
    are called, and the library's `fallbacks` names those that are numpy's. "auto" starts in "bytecode" while a process
    of low priority compiles, and changes over when that is measured to be faster; its library has `tier`, `wait`
    and `stop`. In the latter two, self_check, database, profile, dump_phases and progress do not apply.

    Raises errors of `tvm_dyn.errors`: `ModelImportError` and its kinds where the model cannot be read
    (`.stage` is 'import'), `CompileError` where a pass, code generation or the self-check fails ('compile').
    """
    threads.use_threads(threads.resolve_num_threads(num_threads))
    report = progress or (lambda phase: None)
    report("import")
    if tier != "llvm":
        return _interpreted(tier, model, target or host_target(), dims, num_threads)
    with target or host_target():  # tells converters which kernels of theirs the target runs
        module = import_model(model, dims)
    dump = Path(dump_phases) if dump_phases else None
    check = SelfCheck(target or host_target(), report) if self_check else None
    choices = _known_choices(database, target or host_target(), profile)
    executable = pipeline.build(module, target, choices, dump=dump, progress=report, check=check)
    library = Library(executable.jit(), num_threads)
    library.self_check = check.summary if check else None
    library.reused = tuple(choices.reused) if choices else ()
    return library


def _interpreted(
    tier: Tier,
    model: Model,
    target: Target,
    dims: Mapping[str, Dim | int] | None,
    num_threads: int | None,
) -> Library:
    from .tiers.interpreted import InterpretedLibrary
    from .tiers.tiered import TieredLibrary

    module = import_model(model, dims)
    if tier == "bytecode":
        return InterpretedLibrary(module, target, num_threads)
    if tier == "auto":
        source = os.fspath(model) if isinstance(model, str | os.PathLike) else module
        return TieredLibrary(module, source, target, dims, num_threads)
    raise ValueError(f"tier={tier!r}: use 'llvm', 'bytecode' or 'auto'")


def tune(
    model: Model,
    target: Target | None = None,
    dims: Mapping[str, Dim | int] | None = None,
    *,
    database: str | os.PathLike[str],
    profile: Profile = None,
    trials: int = 64,
    budget: str | float | None = None,
    progress: Callable[[Status], None] | None = None,
    tracker: tuple[str, str] | None = None,
) -> TuningReport:
    """Measure candidates for the backbones of a model, once for all shapes; `compile` with the same database uses them.

    model, target, dims: as in `compile`. database: a folder, made where it is missing; several processes may write to
    it at once. profile: the shapes that matter: a histogram file (see `tvm_dyn.tuning.profile`) or a `ShapeProfile`; by
    default all that ``dims`` allow, alike. trials: candidates to measure of each backbone, at most, those that the
    database knows included. budget: of time, in seconds or as "90s", "10min", "1h"; the search ends sooner where more
    no longer pays. progress: called after each candidate. Ctrl-C ends the search; the report says so.
    tracker: ("host:port", key) of a TVM RPC tracker whose servers measure, all at once; by default this machine does.

    Raises `TuningError` on a profile, budget or target that does not do, `DatabaseError`, and as `compile` does.
    """
    from .tuning import session

    seconds = session.parse_budget(budget)
    module = import_model(model, dims)
    known = session.TuningDatabase(database)
    shown = progress or (lambda status: None)
    return session.tune_module(
        module, target or host_target(), known, _profile(profile), trials, seconds, shown, tracker
    )


def _known_choices(database: Any, target: Target, profile: Profile) -> DatabaseChoices | None:
    if database is None:
        return None
    from .tuning import reuse

    return reuse.DatabaseChoices(reuse.TuningDatabase(database), target, _profile(profile))


def _profile(profile: Profile) -> ShapeProfile | None:
    from .tuning.profile import ShapeProfile

    return ShapeProfile.from_file(profile) if isinstance(profile, str | os.PathLike) else profile


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
