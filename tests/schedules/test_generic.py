"""Functions without a backbone: elementwise, broadcasts, permutations, gathers and the rest."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from harness import Compiled, dim, random, scheduled
from scipy.special import erf
from tvm import relax
from tvm.relax import op
from tvm.relax.op import nn
from tvm.script import tirx as T

from tvm_dyn.hardware import host_target
from tvm_dyn.schedules import schedule_prim_func

B, S, N, M = dim("b"), dim("s"), dim("n"), dim("m")
SHAPES = [(0, 2, 3), (2, 3, 0), (1, 1, 1), (2, 3, 5), (3, 17, 16), (2, 15, 31), (1, 33, 257)]
IN = ((B, S, N), "float32")


def test_chain_of_elementwise_is_one_loop():
    def graph(bb, x, y):
        return bb.emit(nn.gelu(bb.emit(op.add(bb.emit(op.multiply(x, y)), x))))

    (func,) = scheduled([IN, IN], graph)
    assert func.script().count("T.parallel") == 1
    kernel = Compiled([IN, IN], graph)
    for i, shape in enumerate(SHAPES):
        x, y = random(shape, seed=i), random(shape, seed=i + 1)
        z = (x.astype("float64") * y) + x
        np.testing.assert_allclose(kernel(x, y), z * 0.5 * (1 + erf(z / np.sqrt(2))), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("other", [(N,), (S, 1), (B, 1, 1), (1, S, N), (1,)])
def test_broadcasts(other):
    kernel = Compiled([IN, (other, "float32")], lambda bb, x, y: bb.emit(op.subtract(x, y)))
    for i, shape in enumerate(SHAPES):
        names = dict(zip((B, S, N), shape, strict=True))
        x, y = random(shape, seed=i), random([names.get(d, d) for d in other], seed=i + 1)
        np.testing.assert_array_equal(kernel(x, y), x - y)


@pytest.mark.parametrize("axes", [[0, 2, 1], [2, 1, 0], [1, 0, 2], [1, 2, 0], [2, 0, 1]])
def test_permutations(axes):
    kernel = Compiled([IN], lambda bb, x: bb.emit(op.permute_dims(x, axes)))
    for i, shape in enumerate(SHAPES):
        x = random(shape, seed=i)
        np.testing.assert_array_equal(kernel(x), x.transpose(axes))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concatenation(axis):
    other = [B, S, N]
    other[axis] = M
    kernel = Compiled([IN, (tuple(other), "float32")], lambda bb, x, y: bb.emit(op.concat([x, y], axis)))
    for i, shape in enumerate(SHAPES):
        for extent in (0, 1, 7):
            second = [*shape]
            second[axis] = extent
            x, y = random(shape, seed=i), random(second, seed=i + 1)
            np.testing.assert_array_equal(kernel(x, y), np.concatenate([x, y], axis))


def test_reshape_that_moves_data_has_no_divisions():
    def graph(bb, x):
        return bb.emit(op.add(bb.emit(op.reshape(x, (B, S, 12, 64))), relax.const(1.0)))

    for func in scheduled([((B, S, 768), "float32")], graph):
        assert "// T.int64(768)" not in func.script() and "% T.int64(768)" not in func.script()
    kernel = Compiled([((B, S, 768), "float32")], graph)
    x = random((2, 3, 768))
    np.testing.assert_array_equal(kernel(x), x.reshape(2, 3, 12, 64) + 1)


def test_gather_pad_slice_tile_where():
    take = Compiled([((100, 24), "float32"), ((B, S), "int64")], lambda bb, x, i: bb.emit(op.take(x, i, 0)))
    table, index = random((100, 24)), np.random.default_rng(0).integers(0, 100, (3, 5))
    np.testing.assert_array_equal(take(table, index), table[index])
    pad = Compiled([IN], lambda bb, x: bb.emit(nn.pad(x, [0, 0, 1, 2, 3, 4])))
    cut = Compiled([IN], lambda bb, x: bb.emit(op.strided_slice(x, [1, 2], [1, 0], [S, N], [2, 3])))
    tile = Compiled([((B, S, 5), "float32")], lambda bb, x: bb.emit(op.tile(x, [1, 2, 3])))
    where = Compiled(
        [IN], lambda bb, x: bb.emit(op.where(bb.emit(op.greater(x, relax.const(0.0))), x, relax.const(-1.0)))
    )
    for i, shape in enumerate(SHAPES):
        x = random(shape, seed=i)
        np.testing.assert_array_equal(pad(x), np.pad(x, [(0, 0), (1, 2), (3, 4)]))
        np.testing.assert_array_equal(cut(x), x[:, 1::2, ::3])
        np.testing.assert_array_equal(where(x), np.where(x > 0, x, -1))
        y = random((*shape[:2], 5), seed=i)
        np.testing.assert_array_equal(tile(y), np.tile(y, [1, 2, 3]))


@pytest.mark.parametrize("dtype", ["float16", "int64", "int8", "bool"])
def test_casts(dtype):
    kernel = Compiled([IN], lambda bb, x: bb.emit(op.astype(x, dtype)))
    x = np.round(random((2, 3, 17)) * 10)
    np.testing.assert_array_equal(kernel(x), x.astype(dtype))


def test_scalars_and_running_sums():
    scalar = Compiled([((), "float32"), ((), "float32")], lambda bb, x, y: bb.emit(op.add(x, y)))
    assert scalar(np.float32(2).reshape(()), np.float32(3).reshape(())) == 5
    running = Compiled([IN], lambda bb, x: bb.emit(op.cumsum(x, 1)))
    x = random((2, 7, 5))
    np.testing.assert_allclose(running(x), x.cumsum(1), rtol=1e-5, atol=1e-5)


def test_functions_without_blocks_come_back_whole():
    @T.prim_func(s_tir=True)
    def opaque(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in range(8):
            b[i] = a[i] * T.float32(2)

    func = schedule_prim_func(opaque.with_attr("global_symbol", "main"), host_target())
    lib = tvm.compile(tvm.IRModule({"main": func}), target=host_target())
    out = tvm.runtime.tensor(np.zeros(8, "float32"))
    lib["main"](tvm.runtime.tensor(np.arange(8, dtype="float32")), out)
    np.testing.assert_array_equal(out.numpy(), np.arange(8) * 2)


def test_scheduling_twice_changes_nothing():
    (func,) = scheduled([IN], lambda bb, x: bb.emit(op.exp(x)))
    assert schedule_prim_func(func, host_target()).same_as(func)
