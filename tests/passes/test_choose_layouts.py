"""ChooseLayouts: which kernels become channels-last, where maps are turned, and that the results stay."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm.relax.op import nn
from tvm.script import tirx as T

from tvm_dyn.hardware import host_target
from tvm_dyn.passes import ChooseLayouts
from tvm_dyn.passes.channel_axis import channel_axes, moved_last

TARGET = host_target()
N, H, W = (tirx.Var(name, "int64") for name in "nhw")


def weight(*shape) -> relax.Expr:
    return relax.const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32"))


def built(graph, channels=8) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((N, channels, H, W), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            result = bb.emit_output(graph(bb, x))
        bb.emit_func_output(result)
    legalized = relax.transform.LegalizeOps(skip_ops=["relax.reshape"])(bb.finalize())
    return relax.transform.CanonicalizeBindings()(legalized)


def kernels(mod: tvm.IRModule) -> list[str]:
    """What `main` calls, in order, without the numbers that tell equal names apart."""
    found: list[str] = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            name = call.args[0].name_hint if call.op.name == "relax.call_tir" else call.op.name
            found.append(name.rstrip("0123456789"))
    return found


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    vm = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x)).numpy()


def check(graph, expected: list[str], channels=8) -> None:
    mod = built(graph, channels)
    chosen = ChooseLayouts(TARGET)(mod)
    assert kernels(chosen) == expected
    for shape in ((1, 1, 1), (2, 5, 7)):
        x = np.random.default_rng(0).standard_normal((shape[0], channels, *shape[1:])).astype("float32")
        before = run(mod, x)
        np.testing.assert_allclose(run(chosen, x), before, rtol=1e-4, atol=2e-6 * np.abs(before).max())


def test_a_region_is_turned_at_its_borders():
    def graph(bb, x):
        a = bb.emit(nn.relu(bb.emit(nn.conv2d(x, weight(12, 8, 3, 3), padding=(1, 1)))))
        b = bb.emit(nn.conv2d(a, weight(12, 1, 3, 3), padding=(1, 1), groups=12))
        return bb.emit(op.add(b, a))

    check(graph, ["transpose", "conv2d_last", "relu_last", "depthwise_last", "add_last", "transpose"])


def test_channels_that_meet_end_a_region():
    def graph(bb, x):
        return bb.emit(nn.softmax(bb.emit(nn.conv2d(x, weight(12, 8, 3, 3), padding=(1, 1))), axis=1))

    check(graph, ["transpose", "conv2d_last", "transpose", "softmax"])


def test_concatenation_and_pooling_follow():
    def graph(bb, x):
        a, b = (bb.emit(nn.conv2d(x, weight(f, 8, 3, 3), padding=(1, 1))) for f in (12, 5))
        joined = bb.emit(op.concat([a, b], axis=1))
        return bb.emit(nn.max_pool2d(joined, (3, 3), (1, 1), (1, 1, 1, 1)))

    names = ["transpose", "conv2d_last", "conv2d_last", "concatenate_last", "max_pool_last", "transpose"]
    chosen = kernels(ChooseLayouts(TARGET)(built(graph)))
    assert [name.replace("max_pool2d", "max_pool").replace("concat_", "concatenate_") for name in chosen] == names


def test_single_pixels_become_products_and_views():
    def graph(bb, x):
        pooled = bb.emit(
            op.mean(bb.emit(nn.conv2d(x, weight(12, 8, 3, 3), padding=(1, 1))), axis=[2, 3], keepdims=True)
        )
        return bb.emit(nn.conv2d(pooled, weight(4, 12, 1, 1)))

    check(graph, ["transpose", "conv2d_last", "mean_last", "matmul", "relax.reshape"])


def test_one_tap_follows_but_starts_nothing():
    def graph(bb, x):
        first = bb.emit(nn.conv2d(x, weight(12, 8, 1, 1)))
        second = bb.emit(nn.conv2d(first, weight(12, 12, 3, 3), padding=(1, 1)))
        return bb.emit(nn.conv2d(second, weight(8, 12, 1, 1)))

    check(graph, ["conv2d", "transpose", "conv2d_last", "conv2d_last", "transpose"])


def test_other_convolutions_stay():
    def graph(bb, x):
        grouped = bb.emit(nn.conv2d(x, weight(12, 4, 3, 3), groups=2, padding=(1, 1)))
        return bb.emit(nn.relu(grouped))

    check(graph, ["conv2d", "relu"])


def test_moved_last():
    @T.prim_func(private=True, s_tir=True)
    def before(x: T.Buffer((2, 3, 4), "float32"), b: T.Buffer((3, 1), "float32"), y: T.Buffer((2, 3, 4), "float32")):
        for i, j, k in T.grid(2, 3, 4):
            with T.sblock("y"):
                n, c, p = T.axis.remap("SSS", [i, j, k])
                y[n, c, p] = x[n, c, p] + b[c, 0]

    @T.prim_func(private=True, s_tir=True)
    def after(x: T.Buffer((2, 4, 3), "float32"), b: T.Buffer((1, 3), "float32"), y: T.Buffer((2, 4, 3), "float32")):
        for i, j, k in T.grid(2, 4, 3):
            with T.sblock("y"):
                n, p, c = T.axis.remap("SSS", [i, j, k])
                y[n, p, c] = x[n, p, c] + b[0, c]

    axes = channel_axes(before)
    assert axes is not None and axes.operands == (1, 0)
    tvm.ir.assert_structural_equal(moved_last(before, axes), after)


def test_channels_that_meet_have_no_axis():
    @T.prim_func(private=True, s_tir=True)
    def turned(x: T.Buffer((2, 3, 3), "float32"), y: T.Buffer((2, 3, 3), "float32")):
        for i, j, k in T.grid(2, 3, 3):
            with T.sblock("y"):
                n, c, p = T.axis.remap("SSS", [i, j, k])
                y[n, c, p] = x[n, c, p] + x[n, p, c]

    assert channel_axes(turned) is None
