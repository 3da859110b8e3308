"""Give every kernel the trace of its backbone, one trace for all kernels with the same backbone.

    fused_matmul_add(A, W, b, O), fused_matmul_add_gelu(A, W, b, O)
    --->
    block "backbone" of both:  T.sblock_attr({"tvm_dyn.tile": "MatmulTile", "tvm_dyn.tile.vectors": 4, ...})

`ScheduleGroups` then emits what the trace decides. A trace that does not fit is refused with a KernelFallbackWarning
that says why, and the kernel gets the tile its rule chooses: never silently other tiles.
"""

from __future__ import annotations

import warnings

import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.errors import KernelFallbackWarning, ReplayError
from tvm_dyn.schedules import tile_for
from tvm_dyn.schedules.backbone import normal_form
from tvm_dyn.schedules.common import SCHEDULED
from tvm_dyn.schedules.replay import Traces, record, replay


@tvm.transform.module_pass(opt_level=0, name="ReplayBackboneSchedule")
class ReplayBackboneSchedule:
    """Comes after fusion, before `ScheduleGroups`.

    target: the device; by default the target in scope. traces: known traces; backbones without one get the tile that
    their rule chooses for the target, and are added.
    """

    def __init__(self, target: Target | None = None, traces: Traces | None = None):
        self.target, self.traces = target, Traces() if traces is None else traces

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = self.target or Target.current(allow_none=False)
        result = mod.clone()
        for gv, func in mod.functions_items():
            if isinstance(func, PrimFunc) and not (func.attrs and func.attrs.get(SCHEDULED, False)):
                result.update_func(gv, self._replayed(gv.name_hint, func, target))
        return result

    def _replayed(self, name: str, func: PrimFunc, target: Target) -> PrimFunc:
        found = normal_form(func)
        if found is None:
            return func
        kernel, backbone = found
        if backbone not in self.traces:
            tile = tile_for(backbone, target)
            if tile is None:
                return func
            self.traces[backbone] = record(backbone, tile)
        try:
            return replay(self.traces[backbone], kernel)
        except ReplayError as error:
            message = f"kernel {name} goes without the trace of its backbone: {error}"
            warnings.warn(message, KernelFallbackWarning, stacklevel=2)
            return func
