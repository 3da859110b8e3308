"""ReshapesToViews: which operators become views, and that results are copies."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op, transform

from tvm_dyn import pipeline
from tvm_dyn.passes import ReshapesToViews

M, N = tirx.Var("m", "int64"), tirx.Var("n", "int64")


def module(shape: list, graph) -> tvm.IRModule:
    """``graph(builder, x)`` gives the result of a function of ``x``."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, relax.Var("symbols", relax.ShapeType([M, N]))]):
        with builder.dataflow():
            result = builder.emit_output(graph(builder, x))
        builder.emit_func_output(result)
    return builder.get()


def views(shape: list, graph) -> int:
    """How many views the pass makes."""
    after = transform.LegalizeOps(skip_ops=["relax.reshape"])(ReshapesToViews()(module(shape, graph)))
    bindings = after["main"].body.blocks[0].bindings
    return sum(b.value.op == tvm.ir.Op.get("relax.reshape") for b in bindings)


def test_intermediate_reshapes_are_views():
    assert views([M, 6, N], lambda bb, x: op.exp(bb.emit(op.reshape(x, (M * 6, N))))) == 1
    assert views([M, 1, N], lambda bb, x: op.exp(bb.emit(op.squeeze(x, 1)))) == 1
    assert views([M, N], lambda bb, x: op.exp(bb.emit(op.expand_dims(x, 1)))) == 1
    assert views([M, 4, N + M - 1], lambda bb, x: op.exp(bb.emit(op.reshape(x, (M, 4, M + N - 1))))) == 1


def test_results_and_other_kernels_stay():
    assert views([M, 6, N], lambda bb, x: op.reshape(x, (M * 6, N))) == 0
    assert views([M, 6], lambda bb, x: op.exp(bb.emit(op.permute_dims(x)))) == 0
    assert views([M, 6], lambda bb, x: op.exp(bb.emit(op.strided_slice(x, [0], [0], [1])))) == 0


def test_constants_are_reshaped_at_once():
    weights = np.arange(6, dtype="int64")
    mod = module(
        [M, 6],
        lambda bb, x: op.multiply(op.astype(x, "int64"), bb.emit(op.reshape(relax.const(weights, "int64"), (1, 6)))),
    )
    after = ReshapesToViews()(mod)["main"].body.blocks[0].bindings[0]
    np.testing.assert_array_equal(after.value.value.numpy(), weights.reshape(1, 6))
    assert after.value.ty.dtype == "int64"


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (5, 17)])
def test_same_results_that_share_no_memory(m, n):
    mod = module([M, 1, N], lambda bb, x: op.reshape(bb.emit(op.squeeze(x, 1)), (N, M)))
    machine = relax.VirtualMachine(pipeline.build(mod), tvm.cpu())
    x = tvm.runtime.tensor(np.random.default_rng(n).standard_normal((m, 1, n)).astype("float32"))
    result = machine["main"](x, tvm.runtime.ShapeTuple([m, n]))
    np.testing.assert_array_equal(result.numpy(), x.numpy().reshape(n, m))
    assert not np.shares_memory(np.from_dlpack(result), np.from_dlpack(x))
