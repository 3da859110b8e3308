"""DispatchVariants: kernels of several variants, right by each of them, at every extent."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from dataflow import fused, module
from tvm import relax, tirx
from tvm.relax import op

from tvm_dyn import pipeline
from tvm_dyn.hardware import host_target
from tvm_dyn.passes import DispatchVariants, ReplayBackboneSchedule
from tvm_dyn.passes.replay_backbone_schedule import backbone_of
from tvm_dyn.runtime.groups import GROUPS_FUNCTION, TABLES_FUNCTION, from_json
from tvm_dyn.runtime.table import Table
from tvm_dyn.runtime.variants import FIRST, Leaf, Split
from tvm_dyn.schedules import space_of
from tvm_dyn.schedules.choices import Choice, Choices
from tvm_dyn.schedules.panel import PanelTile
from tvm_dyn.schedules.replay import record

TARGET = host_target(2)
RNG = np.random.default_rng(0)
N, B = tirx.Var("n", "int64"), tirx.Var("b", "int64")


def weights(*shape) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def choices_of(mod: tvm.IRModule, change, tree) -> Choices:
    """For each backbone of the model the tiles that ``change`` makes of the usual one."""
    choices = Choices()
    for func in fused(mod, TARGET).functions.values():
        found = backbone_of(func) if isinstance(func, tirx.PrimFunc) else None
        if found:
            tiles = change(space_of(found[1], TARGET).untuned[0])
            choices[found[1]] = Choice(tuple(record(found[1], tile) for tile in tiles), tree, "tuned")
    return choices


def machine_of(mod: tvm.IRModule, choices: Choices | None) -> relax.VirtualMachine:
    return relax.VirtualMachine(pipeline.build(mod, TARGET, choices), tvm.cpu())


def run(machine: relax.VirtualMachine, *data: np.ndarray) -> np.ndarray:
    return machine["main"](*[tvm.runtime.tensor(d) for d in data]).numpy()


def tables(machine: relax.VirtualMachine) -> list[Table]:
    groups = [g for g in from_json(str(machine[GROUPS_FUNCTION]())) if g.table is not None]
    words = [np.from_dlpack(table) for table in machine[TABLES_FUNCTION]()]
    return [Table(words[group.table], group.extents, len(group.variants)) for group in groups]


def packed(tile) -> list:
    """Two copies of the code, three decisions."""
    taller = replace(tile, heights=(1, 2, 5), tasks=4)
    return [replace(tile, tasks=1), taller, replace(taller, block_rows=3, panel_major=1, tasks=3)]


def test_dense_by_every_variant():
    w, bias = weights(24, 70), weights(70)
    mod = module(lambda emit, x: op.add(emit(op.matmul(x, relax.const(w))), relax.const(bias)), (N, B, 24))
    machine = machine_of(mod, choices_of(mod, packed, Split("rows", 6, Leaf(0), Leaf(2))))
    (table,) = tables(machine)
    for variant in (None, 0, 1, 2):
        if variant is not None:
            table.exchange(Leaf(variant))
        for n, b in ((0, 3), (1, 1), (1, 5), (2, 3), (7, 1), (5, 13)):
            x = weights(n, b, 24)
            expected = x.astype("float64") @ w + bias
            np.testing.assert_allclose(run(machine, x), expected, rtol=1e-5, atol=1e-5)


def test_products_of_activations_by_every_variant():
    def change(tile):
        return [tile, replace(tile, pack_rows=2, block_rows=tile.rows[0]), replace(tile, rows=(3, 1), vectors=2)]

    mod = module(lambda emit, x, y: op.matmul(x, y), (B, N, 9), (B, 9, N))
    machine = machine_of(mod, choices_of(mod, change, FIRST))
    (table,) = tables(machine)
    for variant in range(3):
        table.exchange(Leaf(variant))
        for b, n in ((0, 2), (2, 1), (3, 17), (1, 50), (1, 131)):
            x, y = weights(b, n, 9), weights(b, 9, n)
            np.testing.assert_allclose(run(machine, x, y), x.astype("float64") @ y, rtol=1e-5, atol=1e-5)


def test_convolutions_by_every_variant():
    w = weights(20, 8, 3, 3)

    def change(tile):
        assert isinstance(tile, PanelTile)
        return [tile, replace(tile, rows=2), replace(tile, rows=3)]

    h = tirx.Var("h", "int64")
    mod = module(lambda emit, x: op.nn.conv2d(x, relax.const(w)), (N, 8, h, 7))
    machine = machine_of(mod, choices_of(mod, change, Split("height", 4, Leaf(1), Leaf(2))))
    (table,) = tables(machine)
    for tree in (table.tree(), Leaf(0), Leaf(1), Leaf(2)):
        table.exchange(tree)
        for n, height in ((1, 3), (2, 5), (1, 7), (3, 13)):
            x = weights(n, 8, height, 7)
            windows = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), (3, 3), (2, 3))
            expected = np.einsum("nchwyx,fcyx->nfhw", windows, w)
            np.testing.assert_allclose(run(machine, x), expected, rtol=1e-4, atol=1e-4)


def test_tables_of_groups_that_are_alike_are_their_own():
    w = [weights(24, 24), weights(24, 24)]

    def graph(emit, x):
        hidden = emit(op.nn.relu(emit(op.matmul(x, relax.const(w[0])))))
        return op.tanh(emit(op.matmul(hidden, relax.const(w[1]))))

    mod = module(graph, (N, 24))
    machine = machine_of(mod, choices_of(mod, packed, FIRST))
    first, second = tables(machine)
    first.exchange(Leaf(2))
    assert second.tree() == FIRST


def test_what_is_told_of_the_groups():
    def graph(emit, x):
        dense = emit(op.nn.relu(emit(op.matmul(x, relax.const(w)))))
        return op.nn.softmax(dense, -1)

    w = weights(24, 70)
    mod = module(graph, (N, B, 24))
    machine = machine_of(mod, choices_of(mod, packed, Split("rows", 6, Leaf(0), Leaf(2))))
    dense, softmax = from_json(str(machine[GROUPS_FUNCTION]()))
    assert dense.ops == ("matmul", "compute") and dense.backbone == "product" and dense.source == "tuned"
    assert dense.calls == ({"batch": "1", "rows": "b*n", "columns": "70", "depth": "24"},)
    assert dense.extents == ("rows",) and [v.kind for v in dense.variants] == ["PackedTile"] * 3
    assert softmax.table is None and softmax.variants == () and softmax.backbone == "rows"


def test_the_input_stays_and_one_variant_takes_no_table():
    mod = ReplayBackboneSchedule(TARGET)(fused(module(lambda emit, x: op.matmul(x, x), (24, 24)), TARGET))
    text = mod.script()
    after = DispatchVariants(TARGET)(mod)
    assert mod.script() == text
    tvm.ir.assert_structural_equal(after["main"], mod["main"])


@pytest.mark.parametrize("cores", [1, 2])
def test_small_work_stays_on_one_core_unless_measured(cores):
    mod = module(lambda emit, x: op.matmul(x, relax.const(weights(64, 64))), (N, 64))
    machine = relax.VirtualMachine(pipeline.build(mod, host_target(cores)), tvm.cpu())
    found = tables(machine)
    if cores == 1:
        assert found == []
    else:
        assert found[0].tree() == Split("rows", 128, Leaf(0), Leaf(1))


@pytest.mark.parametrize(("rows", "tasks"), [(5, 1), (128, 8)])
def test_static_extents_are_decided_now(rows, tasks):
    mod = module(lambda emit, x: op.matmul(x, relax.const(weights(64, 64))), (rows, 64))
    (group,) = from_json(str(machine_of(mod, None)[GROUPS_FUNCTION]()))
    assert group.table is None and [v.decisions["tasks"] for v in group.variants] == [tasks]
