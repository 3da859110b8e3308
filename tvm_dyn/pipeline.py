"""The compilation pipeline as a table of contents: ordered passes in named phases.

tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("tvm_dyn", target=target))
relax.get_pipeline("tvm_dyn", target=target)(mod)
"""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable, Collection

import tvm
from tvm import relax, tirx
from tvm.target import Target

from tvm_dyn import passes
from tvm_dyn.errors import CompileError, KernelFallbackWarning, TvmDynError
from tvm_dyn.hardware import for_code_generation, host_target
from tvm_dyn.schedules.choices import Choices

transform = relax.transform
Phase = tuple[str, list[tvm.transform.Pass]]
Check = Callable[[tvm.IRModule, tvm.IRModule], None]

_NEEDLESS = ["s_tir.CompactBufferAllocation"]
"""Shrinks buffers to what is read of them: kernels allocate what they need, and its analysis is most of a build."""

_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError, AssertionError)
"""What TVM's passes raise: its own kinds are RuntimeErrors, its checks in Python are the others."""


def phases(target: Target, choices: Choices | None = None, plain: Collection[str] = ()) -> list[Phase]:
    """The phases in order, each with its passes; any pass also runs alone in `tvm.transform.Sequential`.

    choices: variants of backbones, such as tuned ones. plain: names of kernels that get no schedule.
    """
    return [
        (
            "propagate",
            [
                transform.DecomposeOpsForInference(),
                transform.CanonicalizeBindings(),
                passes.PropagateSymbolicShapes(),
                transform.DeadCodeElimination(),
            ],
        ),
        (
            "legalize",
            [
                relax.backend.DispatchSampling(),
                relax.backend.DispatchSortScan(),
                passes.ReshapesToViews(),
                passes.SinkViews(),
                transform.LegalizeOps(skip_ops=["relax.reshape"]),
                transform.FoldConstant(),
                passes.InlineScalarConstants(),
                transform.DeadCodeElimination(),
                passes.ChooseLayouts(target),
            ],
        ),
        (
            "fuse",
            [
                passes.AlignPrimFuncShapes(),
                passes.AnnotateDependence(),
                passes.PartitionByBackbone(),
                passes.FuseByDependence(),
                passes.ShareKernels(),
                passes.MarkConstantWeights(target),
            ],
        ),
        (
            "decide",
            [
                passes.ReplayBackboneSchedule(target, choices),
                passes.PackConstantWeights(target),
                passes.DispatchVariants(target),
            ],
        ),
        ("schedule", [passes.ScheduleGroups(target, plain)]),
        (
            "lower",
            [
                transform.ToNonDataflow(),
                transform.RemovePurityChecking(),
                passes.LowerShapeAsserts(),
                transform.CallTIRRewrite(),
                passes.PlanMemory(),
                passes.GrowStorage(),
                transform.LowerAllocTensor(),
                transform.KillAfterLastUse(),
                transform.LowerRuntimeBuiltin(),
                transform.ComputePrimValue(),
                transform.VMShapeLower(),
                passes.AssumeNoAlias(),
                transform.AttachGlobalSymbol(),
            ],
        ),
    ]


def stages(target: Target | None = None) -> list[str]:
    """What `tvm_dyn.compile` goes through, in the words in which it tells of it."""
    return ["import", *(name for name, _ in phases(target or host_target())), "code generation"]


@relax.register_pipeline("tvm_dyn")
def pipeline(
    target: Target | None = None,
    choices: Choices | None = None,
    dump: str | pathlib.Path | None = None,
    progress: Callable[[str], None] | None = None,
    plain: Collection[str] = (),
    check: Check | None = None,
) -> tvm.transform.Pass:
    """The whole pipeline as one module pass.

    target: by default the target in scope, else the host CPU. choices: variants of backbones, such as tuned ones;
    the others get what their rules choose, and are added. dump: a folder that gets the module as TVMScript after
    each phase, `<number>_<phase>.py`. progress: called with the name of each phase as it starts.
    plain: names of kernels that get no schedule. check: called with the modules before and after scheduling.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_dyn")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        chosen = target or Target.current(allow_none=True) or host_target()
        with chosen:
            for number, (name, steps) in enumerate(phases(chosen, choices, plain)):
                if progress:
                    progress(name)
                if choices is not None and name == "decide":
                    choices.prepare(mod)
                before, mod = mod, tvm.transform.Sequential(steps, name=f"tvm_dyn.{name}")(mod)
                if check and name == "schedule":
                    check(before, mod)
                if dump:
                    _dump(mod, pathlib.Path(dump), f"{number}_{name}.py")
        return mod

    return run


def build(
    mod: tvm.IRModule,
    target: Target | None = None,
    choices: Choices | None = None,
    dump: str | pathlib.Path | None = None,
    progress: Callable[[str], None] | None = None,
    check: Check | None = None,
) -> relax.VMExecutable:
    """Compile a Relax module to an executable. Raises CompileError, which names the phase or says "code generation".

    Arguments are those of `pipeline`; what ``check`` raises becomes a CompileError too.
    Kernels whose schedule TVM cannot lower go without, with a KernelFallbackWarning.
    """
    chosen = for_code_generation(target or host_target())
    phase = "code generation"

    def note(name: str) -> None:
        nonlocal phase
        phase = name
        if progress:
            progress(name)

    def generate(plain: Collection[str] = ()) -> relax.VMExecutable:
        lowered = pipeline(chosen, choices, dump, note, plain, check)(mod)
        note("code generation")
        try:
            with without_needless_passes():
                return tvm.compile(lowered, chosen, relax_pipeline=None)
        except _FAILURES:
            failing = _failing_kernels(lowered, chosen)
            if plain or not failing:
                raise
        for name, error in failing.items():
            warnings.warn(f"kernel {name} goes without its schedule: {error}", KernelFallbackWarning, stacklevel=2)
        return generate(failing)

    try:
        return generate()
    except TvmDynError:
        raise
    except _FAILURES as error:  # callers get one kind, with the cause attached
        raise CompileError(f"phase '{phase}' failed: {error}") from error


def without_needless_passes() -> tvm.transform.PassContext:
    """The context in scope, less the passes that do nothing for our kernels."""
    now = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=now.opt_level,
        required_pass=now.required_pass,
        disabled_pass=[*now.disabled_pass, *_NEEDLESS],
        instruments=now.instruments,
        config=now.config,
    )


def _failing_kernels(lowered: tvm.IRModule, target: Target) -> dict[str, Exception]:
    """The kernels that do not compile on their own, each with what TVM says."""
    failing: dict[str, Exception] = {}
    for name, func in lowered.functions_items():
        if isinstance(func, tirx.PrimFunc):
            try:
                tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target)
            except _FAILURES as error:
                failing[name.name_hint] = error
    return failing


def _dump(mod: tvm.IRModule, folder: pathlib.Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(mod.script(show_meta=False))


def fused(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The module as it is before anything is decided about its kernels. Raises CompileError."""
    chosen = for_code_generation(target)
    phase = ""
    try:
        with chosen:
            for phase, steps in phases(chosen):
                if phase == "decide":
                    break
                mod = tvm.transform.Sequential(steps, name=f"tvm_dyn.{phase}")(mod)
    except _FAILURES as error:  # callers get one kind, with the cause attached
        raise CompileError(f"phase '{phase}' failed: {error}") from error
    return mod
