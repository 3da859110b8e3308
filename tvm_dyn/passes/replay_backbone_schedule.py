"""Give every kernel the traces of its backbone, the same for all kernels with the same backbone.

    fused_matmul_add(A, W, b, O), fused_matmul_add_gelu(A, W, b, O)
    --->
    block "backbone" of both:  T.sblock_attr({"tvm_dyn.tile": "MatmulTile", "tvm_dyn.tile.vectors": 4, ...})

Where a backbone has several variants, the block also lists the decisions of each, and the tree that chooses.
`ScheduleGroups` then emits what the traces decide. Traces that do not fit are refused with a KernelFallbackWarning
that says why, and the kernel gets the tile its rule chooses: never silently other tiles.
"""

from __future__ import annotations

import warnings

import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.errors import KernelFallbackWarning, ReplayError
from tvm_dyn.runtime.variants import Variant
from tvm_dyn.schedules import dispatch, space_of
from tvm_dyn.schedules.backbone import has_constant_operand, normal_form
from tvm_dyn.schedules.choices import Choice, Choices
from tvm_dyn.schedules.common import SCHEDULED
from tvm_dyn.schedules.replay import replay
from tvm_dyn.schedules.weight_panels import workload


@tvm.transform.module_pass(opt_level=0, name="ReplayBackboneSchedule")
class ReplayBackboneSchedule:
    """Comes after fusion, before `PackConstantWeights` and `ScheduleGroups`.

    target: the device; by default the target in scope. choices: known traces; backbones without any get what their
    rule chooses for the target, and are added.
    """

    def __init__(self, target: Target | None = None, choices: Choices | None = None):
        self.target, self.choices = target, Choices() if choices is None else choices

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = self.target or Target.current(allow_none=False)
        result = mod.clone()
        for gv, func in mod.functions_items():
            if isinstance(func, PrimFunc) and not (func.attrs and func.attrs.get(SCHEDULED, False)):
                result.update_func(gv, self._replayed(gv.name_hint, func, target))
        return result

    def _replayed(self, name: str, func: PrimFunc, target: Target) -> PrimFunc:
        found = backbone_of(func)
        space = space_of(found[1], target) if found else None
        if found is None or space is None:
            return func
        kernel, backbone = found
        choice = self.choices.get(backbone)
        if choice is None:
            choice = self.choices[backbone] = Choice.untuned(backbone, space)
        try:
            return _with_choice(kernel, choice, type(space.untuned[0]).__name__)
        except ReplayError as error:
            message = f"kernel {name} goes without the trace of its backbone: {error}"
            warnings.warn(message, KernelFallbackWarning, stacklevel=2)
            return func


def backbone_of(func: PrimFunc) -> tuple[PrimFunc, PrimFunc] | None:
    """(the kernel in normal form, its backbone as what is tuned), None for a kernel that has none."""
    found = normal_form(func)
    if found is None or not has_constant_operand(func):
        return found
    return found[0], normal_form(workload(func))[1]


def _with_choice(kernel: PrimFunc, choice: Choice, kind: str) -> PrimFunc:
    """Raises ReplayError where a trace does not apply to the kernel or decides another ``kind`` of tile."""
    replayed = [replay(trace, kernel) for trace in choice.traces]
    variants: list[Variant] = []
    for decided in replayed:
        variant = dispatch.variant_of(decided)
        if variant is None or variant.kind != kind:
            decision = f"a {variant.kind}" if variant else "nothing"
            raise ReplayError(f"the trace decides {decision}, the kernel needs a {kind}")
        variants.append(variant)
    return dispatch.with_variants(replayed[0], variants, choice.tree, choice.source)
