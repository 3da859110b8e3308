"""SinkViews: views around products cancel, values stay."""

import numpy as np
import pytest
import tvm
from dataflow import module
from tvm import relax, tirx
from tvm.relax import op

from tvm_dyn import pipeline
from tvm_dyn.passes import ReshapesToViews, SinkViews

B, S = tirx.Var("b", "int64"), tirx.Var("s", "int64")
RNG = np.random.default_rng(0)


def weights(*shape) -> relax.Expr:
    return relax.const(RNG.standard_normal(shape).astype("float32"))


def operators(mod: tvm.IRModule) -> list[str]:
    after = SinkViews()(ReshapesToViews()(mod))
    relax.analysis.well_formed(after)  # raises where it is not
    calls = [b.value for b in after["main"].body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    return [call.op.name.removeprefix("relax.") for call in calls]


def dense(emit, x, width):
    """As exporters write it: rows flattened for the product."""
    flat = emit(op.reshape(x, (B * S, 8)))
    product = emit(op.add(emit(op.matmul(flat, weights(8, width))), weights(width)))
    return emit(op.reshape(product, (B, S, width)))


def residual(emit, x, y):
    hidden = dense(emit, x, 8)
    return emit(op.add(y, emit(op.multiply(hidden, emit(op.tanh(hidden))))))


def test_views_around_dense_layers_cancel():
    mod = module(residual, (B, S, 8), (B, S, 8))
    assert operators(mod) == ["matmul", "add", "tanh", "multiply", "add"]


def test_two_layers_in_a_row():
    mod = module(lambda emit, x: op.negative(dense(emit, emit(op.nn.relu(dense(emit, x, 8))), 4)), (B, S, 8))
    assert operators(mod) == ["matmul", "add", "nn.relu", "matmul", "add", "negative"]


def test_a_view_that_splits_columns_stays_behind_the_product():
    def graph(emit, x):
        return op.exp(emit(op.reshape(dense(emit, x, 8), (B, S, 2, 4))))

    assert operators(module(graph, (B, S, 8))) == ["matmul", "add", "reshape", "exp"]


def test_views_of_anything_else_stay_where_they_are():
    def graph(emit, x):
        return op.negative(emit(op.tanh(emit(op.reshape(emit(op.exp(x)), (B * S, 8))))))

    assert operators(module(graph, (B, S, 8))) == ["exp", "reshape", "tanh", "negative"]


def test_operands_that_broadcast_over_rows_keep_the_view():
    def graph(emit, x, y, _):
        product = emit(op.reshape(emit(op.matmul(x, weights(8, 8))), (B, S, 8)))
        return op.negative(emit(op.add(product, y)))

    expected = ["matmul", "reshape", "add", "negative"]
    assert operators(module(graph, (B * S, 8), (S, 8), (B,))) == expected


def test_a_product_is_met_in_its_own_shape():
    def graph(emit, x, flat):
        first = emit(op.reshape(emit(op.matmul(flat, weights(8, 8))), (B, S, 8)))
        return op.add(first, emit(op.matmul(x, weights(8, 8))))

    assert operators(module(graph, (B, S, 8), (B * S, 8))) == ["matmul", "reshape", "matmul", "add"]


@pytest.mark.parametrize(("batch", "rows"), [(0, 3), (1, 1), (2, 7), (3, 17)])
def test_same_results(batch, rows):
    mod = module(residual, (B, S, 8), (B, S, 8))
    data = [tvm.runtime.tensor(RNG.standard_normal((batch, rows, 8)).astype("float32")) for _ in range(2)]
    machines = [relax.VirtualMachine(built, tvm.cpu()) for built in (pipeline.build(mod), tvm.compile(mod, "llvm"))]
    found, expected = (machine["main"](*data).numpy() for machine in machines)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
