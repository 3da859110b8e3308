"""FuseByDependence: one kernel a group, the same on static and dynamic modules, the same results."""

import numpy as np
import pytest
import tvm
from dataflow import fused, module
from tvm import relax, tirx
from tvm.relax import op

from tvm_dyn import pipeline
from tvm_dyn.passes.rewriting import CALL_TIR

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
RNG = np.random.default_rng(0)


def weights(*shape) -> relax.Expr:
    return relax.const(RNG.standard_normal(shape).astype("float32") / 4)


def calls(mod: tvm.IRModule) -> list[str]:
    """The kernels that main calls, in order."""
    found: list[str] = []

    def visit(expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == CALL_TIR:
            found.append(expr.args[0].name_hint)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def norm(emit, x):
    return emit(op.nn.layer_norm(x, weights(8), weights(8), axes=-1))


def dense(emit, x, k, n):
    return emit(op.add(emit(op.matmul(x, weights(k, n))), weights(n)))


def heads(emit, x, batch, rows):
    return emit(op.permute_dims(emit(op.reshape(x, (batch, rows, 2, 4))), [0, 2, 1, 3]))


def bert_layer(batch, rows):
    def graph(emit, x):
        q, k, v = (heads(emit, dense(emit, x, 8, 8), batch, rows) for _ in range(3))
        scores = emit(op.divide(emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])))), relax.const(2.0)))
        mixed = emit(op.permute_dims(emit(op.matmul(emit(op.nn.softmax(scores, -1)), v)), [0, 2, 1, 3]))
        x = norm(emit, emit(op.add(x, dense(emit, emit(op.reshape(mixed, (batch, rows, 8))), 8, 8))))
        hidden = emit(op.nn.gelu(dense(emit, x, 8, 16)))
        return norm(emit, emit(op.add(x, dense(emit, hidden, 16, 8))))

    return graph, [(batch, rows, 8)]


def gpt_layer(batch, rows):
    def graph(emit, x, mask):
        fused = dense(emit, norm(emit, x), 8, 24)
        parts = [emit(op.strided_slice(fused, [2], [8 * k], [8 * k + 8])) for k in range(3)]
        q, k, v = (heads(emit, part, batch, rows) for part in parts)
        scores = emit(op.add(emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])))), mask))
        mixed = emit(op.permute_dims(emit(op.matmul(emit(op.nn.softmax(scores, -1)), v)), [0, 2, 1, 3]))
        x = emit(op.add(x, dense(emit, emit(op.reshape(mixed, (batch, rows, 8))), 8, 8)))
        return emit(op.add(x, dense(emit, emit(op.nn.gelu_tanh(dense(emit, norm(emit, x), 8, 16))), 16, 8)))

    return graph, [(batch, rows, 8), (rows, rows)]


def convolved(emit, x, inputs, outputs, kernel, groups=1):
    weight = weights(outputs, inputs // groups, kernel, kernel)
    result = emit(op.nn.conv2d(x, weight, padding=kernel // 2, groups=groups))
    return emit(op.add(result, weights(1, outputs, 1, 1)))


def resnet_block(batch, size):
    def graph(emit, x):
        y = emit(op.nn.relu(convolved(emit, x, 8, 4, 1)))
        y = emit(op.nn.relu(convolved(emit, y, 4, 4, 3)))
        return emit(op.nn.relu(emit(op.add(convolved(emit, y, 4, 8, 1), x))))

    return graph, [(batch, 8, size, 9)]


def mobilenet_block(batch, size):
    def graph(emit, x):
        y = emit(op.clip(convolved(emit, x, 8, 16, 1), 0, 6))
        y = emit(op.clip(convolved(emit, y, 16, 16, 3, groups=16), 0, 6))
        return emit(op.add(convolved(emit, y, 16, 8, 1), x))

    return graph, [(batch, 8, size, 9)]


def lstm_cell(batch, _):
    def graph(emit, x, h, c):
        gates = emit(op.add(dense(emit, x, 8, 32), emit(op.matmul(h, weights(8, 32)))))
        i, f, g, o = (emit(op.strided_slice(gates, [1], [8 * k], [8 * k + 8])) for k in range(4))
        kept = emit(op.multiply(emit(op.sigmoid(f)), c))
        new = emit(op.add(kept, emit(op.multiply(emit(op.sigmoid(i)), emit(op.tanh(g))))))
        return op.multiply(emit(op.sigmoid(o)), emit(op.tanh(new)))

    return graph, [(batch, 8)] * 3


BLOCKS = [bert_layer, gpt_layer, resnet_block, mobilenet_block, lstm_cell]


@pytest.mark.parametrize("block", BLOCKS)
def test_static_and_dynamic_modules_fuse_alike(block):
    dynamic, static = (calls(fused(module(*_unpack(block(*dims))))) for dims in ((N, M), (3, 7)))
    strip = [name.translate(str.maketrans("", "", "0123456789")) for name in dynamic]
    assert strip == [name.translate(str.maketrans("", "", "0123456789")) for name in static]


def _unpack(made):
    graph, shapes = made
    return graph, *shapes


def test_few_kernels_are_left():
    # One for each convolution, beside the layout of what comes in and goes out.
    for block in (resnet_block, mobilenet_block):
        names = calls(fused(module(*_unpack(block(N, M)))))
        assert len([name for name in names if not name.startswith("transpose")]) == 3
    # QKV, attention (or what is left of it without its kernel), projection, norm, two layers, norm
    assert len(calls(fused(module(*_unpack(bert_layer(N, M)))))) <= 13


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("extents", [(1, 1), (3, 7), (2, 17)])
def test_same_results_as_unfused(block, extents):
    graph, shapes = block(N, M)
    mod = module(graph, *shapes)
    size = {N: extents[0], M: extents[1]}
    inputs = [RNG.standard_normal([size.get(d, d) for d in shape]).astype("float32") for shape in shapes]
    plain = tvm.compile(mod, "llvm")
    machines = [relax.VirtualMachine(built, tvm.cpu()) for built in (pipeline.build(mod), plain)]
    found, expected = (vm["main"](*[tvm.runtime.tensor(i) for i in inputs]).numpy() for vm in machines)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_symbols_that_no_tensor_tells_reach_the_kernel():
    """The count of a mean is an argument of its own."""
    rows, columns = tirx.Var("rows", "int64"), tirx.Var("columns", "int64")
    x = relax.Var("x", relax.TensorType([rows * columns, 4], "float32"))
    sizes = relax.Var("sizes", relax.ShapeType([rows, columns]))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, sizes]):
        with builder.dataflow():
            scaled = builder.emit_te(_divided, builder.emit(op.sum(x, 1)), columns)
            result = builder.emit_output(op.exp(scaled))
        builder.emit_func_output(result)
    mod = fused(builder.get())
    assert len(calls(mod)) == 1
    machine = relax.VirtualMachine(pipeline.build(builder.get()), tvm.cpu())
    data = RNG.standard_normal((6, 4)).astype("float32")
    found = machine["main"](tvm.runtime.tensor(data), tvm.runtime.ShapeTuple([2, 3])).numpy()
    np.testing.assert_allclose(found, np.exp(data.sum(1) / 3), rtol=1e-5)


def _divided(total, count):
    return tvm.te.compute(total.shape, lambda i: total(i) / count.astype("float32"), name="divided")


def test_equal_groups_share_a_kernel():
    def graph(emit, x):
        for _ in range(3):
            x = dense(emit, x, 8, 8)
        return x

    names = calls(fused(module(graph, (N, 8))))
    assert len(names) == 3 and len(set(names)) == 1
