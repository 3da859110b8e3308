"""The errors tvm_dyn raises; `stage` says where a model failed: 'import', 'compile' or 'call'."""

from __future__ import annotations


class TvmDynError(Exception):
    """Base of every error raised on purpose here."""

    stage: str = "compile"


class EnvironmentMismatchError(TvmDynError, ImportError):
    """The installed apache-tvm / apache-tvm-ffi pair is not one that works together."""

    stage = "import"


class ModelImportError(TvmDynError):
    """The model cannot be turned into Relax."""

    stage = "import"


class InvalidModelError(ModelImportError, ValueError):
    """The model file or graph is malformed: truncated, cyclic, inconsistent, or unsafe to load."""


class InvalidDimError(ModelImportError, ValueError):
    """A `Dim`, or an option that describes one, contradicts itself or names no dim of the model."""


class UnsupportedOperatorError(ModelImportError, NotImplementedError):
    """The model uses an operator (or a form of it) that has no converter."""


class CompileError(TvmDynError):
    """A pass, a schedule or code generation failed."""

    stage = "compile"


class ReplayError(CompileError):
    """The trace of a backbone does not fit a kernel; the message says why."""


class KernelFallbackWarning(UserWarning):
    """A kernel has no schedule, as one fails that should not: it is right, but slow."""


class InvalidLibraryError(TvmDynError, ValueError):
    """The file is not a library that tvm_dyn exported, or it is damaged."""

    stage = "import"


class CallError(TvmDynError, RuntimeError):
    """A compiled library failed while it ran."""

    stage = "call"


class InvalidInputError(CallError, ValueError):
    """The arguments of a call do not fit the library's inputs."""


class BenchError(TvmDynError):
    """A benchmark cannot run: a peer is missing, or two contestants do not agree on the result."""

    stage = "bench"


class DatabaseError(TvmDynError):
    """The folder or file is no tuning database, or cannot be written."""

    stage = "tune"


class TuningError(TvmDynError):
    """Tuning cannot start: bad profile, budget or options, or nothing to tune."""

    stage = "tune"


class DamagedRecordWarning(UserWarning):
    """A line of a tuning database cannot be read; it is skipped."""


class CostModelError(TvmDynError, ValueError):
    """A cost model cannot be read, is of other hardware, or its samples cannot be used."""

    stage = "tune"
