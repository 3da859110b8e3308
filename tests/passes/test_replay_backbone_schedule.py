"""ReplayBackboneSchedule: one trace a backbone, followed by the kernels, refused aloud."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import tvm
from dataflow import fused, module
from tvm import relax, tirx
from tvm.relax import op

from tvm_dyn import pipeline
from tvm_dyn.errors import KernelFallbackWarning
from tvm_dyn.hardware import host_target
from tvm_dyn.passes import ReplayBackboneSchedule, ScheduleGroups
from tvm_dyn.schedules import tile_for
from tvm_dyn.schedules.backbone import NAME, normal_form
from tvm_dyn.schedules.common import collect
from tvm_dyn.schedules.matmul_kernel import MatmulTile
from tvm_dyn.schedules.matmul_packed import PackedTile
from tvm_dyn.schedules.replay import TILE, Traces, record
from tvm_dyn.schedules.tiles import Tile

TARGET = host_target()
RNG = np.random.default_rng(0)
N = tirx.Var("n", "int64")


def weights(*shape) -> relax.Expr:
    return relax.const(RNG.standard_normal(shape).astype("float32"))


def layers(emit, x):
    """Two layers around one backbone, and one around another."""
    x = emit(op.nn.relu(emit(op.add(emit(op.matmul(x, weights(24, 24))), weights(24)))))
    x = emit(op.tanh(emit(op.matmul(x, weights(24, 24)))))
    return op.matmul(x, weights(24, 40))


def tiles(mod: tvm.IRModule) -> dict[str, dict]:
    """The decisions on each kernel's backbone."""
    found = {}
    for gv, func in mod.functions_items():
        for block in collect(func.body, tvm.s_tir.SBlock) if isinstance(func, tirx.PrimFunc) else []:
            if block.name_hint == NAME and TILE in block.annotations:
                decisions = [(k, v) for k, v in block.annotations.items() if k.startswith(f"{TILE}.")]
                found[gv.name_hint] = {k: v if isinstance(v, int) else list(v) for k, v in decisions}
    return found


def test_kernels_around_one_backbone_get_one_trace():
    traces = Traces()
    after = ReplayBackboneSchedule(TARGET, traces)(fused(module(layers, (N, 24))))
    found = tiles(after)
    assert len(found) == 3
    same = [decisions for name, decisions in found.items() if "relu" in name or "tanh" in name]
    assert len(same) == 2 and same[0] == same[1]
    assert len(traces) == 2


def test_the_input_stays():
    before = fused(module(layers, (N, 24)))
    text = before.script()
    ReplayBackboneSchedule(TARGET)(before)
    assert before.script() == text


def backbones(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    forms = [normal_form(f) for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return [form[1] for form in forms if form is not None]


def run(mod: tvm.IRModule, data: np.ndarray) -> np.ndarray:
    with TARGET, tvm.transform.PassContext(disabled_pass=["s_tir.CompactBufferAllocation"]):
        lowered = tvm.transform.Sequential(pipeline.phases(TARGET)[4][1])(ScheduleGroups(TARGET)(mod))
        machine = relax.VirtualMachine(tvm.compile(lowered, TARGET, relax_pipeline=None), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(data)).numpy()


@pytest.mark.parametrize("heights", [(1, 3), (1, 2, 5, 7)])
def test_a_known_trace_decides_what_is_emitted(heights):
    mod = fused(module(layers, (N, 24)))
    traces = Traces()
    for backbone in backbones(mod):
        tile = tile_for(backbone, TARGET)
        assert isinstance(tile, PackedTile)
        traces[backbone] = record(backbone, replace(tile, heights=heights, block_rows=8, tasks=3))
    replayed = ReplayBackboneSchedule(TARGET, traces)(mod)
    assert all(decisions[f"{TILE}.heights"] == list(heights) for decisions in tiles(replayed).values())
    usual = ReplayBackboneSchedule(TARGET)(mod)
    for rows in (0, 1, 2, 5, 7, 8, 17):
        data = RNG.standard_normal((rows, 24)).astype("float32")
        np.testing.assert_allclose(run(replayed, data), run(usual, data), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("graph", "shape", "kind"),
    [
        (lambda emit, x: op.matmul(x, emit(op.permute_dims(x, [0, 2, 1]))), (3, N, 8), MatmulTile),
        (lambda emit, x: op.matmul(x, weights(8, 8)), (3, N, 8), PackedTile),
        (lambda emit, x: op.nn.conv1d(x, weights(5, 4, 3), padding=1), (2, 4, N), Tile),
    ],
)
def test_each_kind_of_backbone_has_its_tile(graph, shape, kind):
    (backbone,) = backbones(fused(module(graph, shape)))
    assert isinstance(tile_for(backbone, TARGET), kind)


def test_kernels_without_a_backbone_stay_as_they_are():
    mod = fused(module(lambda emit, x: op.nn.softmax(emit(op.exp(x)), -1), (N, 24)))
    tvm.ir.assert_structural_equal(ReplayBackboneSchedule(TARGET)(mod), mod)


def test_a_trace_that_does_not_fit_is_refused_with_its_reason():
    """The weights were packed for another width: the kernel still answers, by the generic schedule."""
    mod = fused(module(lambda emit, x: op.matmul(x, weights(24, 40)), (N, 24)))
    (backbone,) = backbones(mod)
    tile = tile_for(backbone, TARGET)
    assert tile is not None
    traces = Traces()
    traces[backbone] = record(backbone, replace(tile, vectors=tile.vectors + 1))
    data = RNG.standard_normal((5, 24)).astype("float32")
    with pytest.warns(KernelFallbackWarning, match=r"the trace decides panels of \d+ columns"):
        refused = run(ReplayBackboneSchedule(TARGET, traces)(mod), data)
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelFallbackWarning)
        usual = run(ReplayBackboneSchedule(TARGET)(mod), data)
    np.testing.assert_allclose(refused, usual, rtol=1e-5, atol=1e-5)
