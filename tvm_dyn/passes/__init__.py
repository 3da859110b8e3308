"""Relax and TIR passes; one file, one class, one test per pass. Each is usable alone in `tvm.transform.Sequential`."""

from tvm_dyn.passes.align_prim_func_shapes import AlignPrimFuncShapes
from tvm_dyn.passes.annotate_dependence import AnnotateDependence
from tvm_dyn.passes.assume_no_alias import AssumeNoAlias
from tvm_dyn.passes.choose_layouts import ChooseLayouts
from tvm_dyn.passes.dispatch_variants import DispatchVariants
from tvm_dyn.passes.fuse_by_dependence import FuseByDependence
from tvm_dyn.passes.grow_storage import GrowStorage
from tvm_dyn.passes.inline_scalar_constants import InlineScalarConstants
from tvm_dyn.passes.lower_shape_asserts import LowerShapeAsserts
from tvm_dyn.passes.mark_constant_weights import MarkConstantWeights
from tvm_dyn.passes.pack_constant_weights import PackConstantWeights
from tvm_dyn.passes.partition_by_backbone import PartitionByBackbone
from tvm_dyn.passes.plan_memory import PlanMemory
from tvm_dyn.passes.propagate_symbolic_shapes import PropagateSymbolicShapes
from tvm_dyn.passes.replay_backbone_schedule import ReplayBackboneSchedule
from tvm_dyn.passes.reshapes_to_views import ReshapesToViews
from tvm_dyn.passes.schedule_groups import ScheduleGroups
from tvm_dyn.passes.share_kernels import ShareKernels
from tvm_dyn.passes.sink_views import SinkViews

__all__ = [
    "AlignPrimFuncShapes",
    "AnnotateDependence",
    "AssumeNoAlias",
    "ChooseLayouts",
    "DispatchVariants",
    "FuseByDependence",
    "GrowStorage",
    "InlineScalarConstants",
    "LowerShapeAsserts",
    "MarkConstantWeights",
    "PackConstantWeights",
    "PartitionByBackbone",
    "PlanMemory",
    "PropagateSymbolicShapes",
    "ReplayBackboneSchedule",
    "ReshapesToViews",
    "ScheduleGroups",
    "ShareKernels",
    "SinkViews",
]
