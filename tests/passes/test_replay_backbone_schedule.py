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
from tvm_dyn.passes import ReplayBackboneSchedule
from tvm_dyn.passes.replay_backbone_schedule import backbone_of
from tvm_dyn.schedules import space_of
from tvm_dyn.schedules.backbone import NAME
from tvm_dyn.schedules.choices import Choice, Choices
from tvm_dyn.schedules.common import collect
from tvm_dyn.schedules.matmul_kernel import MatmulTile
from tvm_dyn.schedules.matmul_packed import PackedTile
from tvm_dyn.schedules.replay import TILE, record
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
    choices = Choices()
    after = ReplayBackboneSchedule(TARGET, choices)(fused(module(layers, (N, 24))))
    found = tiles(after)
    assert len(found) == 3
    same = [decisions for name, decisions in found.items() if "relu" in name or "tanh" in name]
    assert len(same) == 2 and same[0] == same[1]
    assert len(choices) == 2


def test_the_input_stays():
    before = fused(module(layers, (N, 24)))
    text = before.script()
    ReplayBackboneSchedule(TARGET)(before)
    assert before.script() == text


def backbones(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    forms = [backbone_of(f) for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return [form[1] for form in forms if form is not None]


def run(mod: tvm.IRModule, choices: Choices | None, data: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(pipeline.build(mod, TARGET, choices), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(data)).numpy()


@pytest.mark.parametrize("heights", [(1, 3), (1, 2, 5, 7)])
def test_a_known_trace_decides_what_is_emitted(heights):
    choices = Choices()
    for backbone in backbones(fused(module(layers, (N, 24)))):
        tile = space_of(backbone, TARGET).untuned[0]
        assert isinstance(tile, PackedTile)
        choices[backbone] = Choice((record(backbone, replace(tile, heights=heights, block_rows=8, tasks=3)),))
    replayed = ReplayBackboneSchedule(TARGET, choices)(fused(module(layers, (N, 24))))
    assert all(decisions[f"{TILE}.heights"] == list(heights) for decisions in tiles(replayed).values())
    for rows in (0, 1, 2, 5, 7, 8, 17):
        data = RNG.standard_normal((rows, 24)).astype("float32")
        mod = module(layers, (N, 24))
        np.testing.assert_allclose(run(mod, choices, data), run(mod, None, data), rtol=1e-5, atol=1e-4)


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
    assert isinstance(space_of(backbone, TARGET).untuned[0], kind)


def test_kernels_without_a_backbone_stay_as_they_are():
    mod = fused(module(lambda emit, x: op.nn.softmax(emit(op.exp(x)), -1), (N, 24)))
    tvm.ir.assert_structural_equal(ReplayBackboneSchedule(TARGET)(mod), mod)


def test_a_trace_that_does_not_fit_is_refused_with_its_reason():
    """It is one of another kind of backbone: the kernel still answers, by the generic schedule."""
    mod = module(lambda emit, x: op.matmul(x, weights(24, 40)), (N, 24))
    (backbone,) = backbones(fused(mod))
    choices = Choices()
    choices[backbone] = Choice((record(backbone, Tile(4, 4, 16)),))
    data = RNG.standard_normal((5, 24)).astype("float32")
    with pytest.warns(KernelFallbackWarning, match=r"the trace decides a Tile, the kernel needs a PackedTile"):
        refused = run(mod, choices, data)
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelFallbackWarning)
        usual = run(mod, None, data)
    np.testing.assert_allclose(refused, usual, rtol=1e-5, atol=1e-5)


def test_kernels_with_the_same_packed_weights_share_a_backbone_whatever_their_ranks():
    """Rows of a batch of matrices, of a matrix, and a fixed number of rows are rows."""
    found = [
        backbones(fused(module(lambda emit, x: op.matmul(x, weights(24, 40)), shape)))[0]
        for shape in ((N, 24), (3, N, 24), (7, 24))
    ]
    for backbone in found[1:]:
        tvm.ir.assert_structural_equal(backbone, found[0], map_free_vars=True)
