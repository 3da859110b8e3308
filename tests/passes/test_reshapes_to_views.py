"""ReshapesToViews: which kernels become views, and that nothing fails."""

import tvm
from tvm import relax, tirx
from tvm.relax import op, transform

from tvm_dyn.passes import ReshapesToViews

M, N = tirx.Var("m", "int64"), tirx.Var("n", "int64")


def views(shape: list, graph) -> int:
    """How many views the pass finds in ``graph(builder, x)``, whose result the function returns."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, relax.Var("symbols", relax.ShapeType([M, N]))]):
        with builder.dataflow():
            result = builder.emit_output(graph(builder, x))
        builder.emit_func_output(result)
    after = ReshapesToViews()(transform.LegalizeOps()(builder.get()))
    bindings = after["main"].body.blocks[0].bindings
    return sum(b.value.op == tvm.ir.Op.get("relax.reshape") for b in bindings)


def test_intermediate_reshapes_are_views():
    assert views([M, 6, N], lambda bb, x: op.exp(bb.emit(op.reshape(x, (M * 6, N))))) == 1
    assert views([M, 1, N], lambda bb, x: op.exp(bb.emit(op.squeeze(x, 1)))) == 1
    assert views([M, N], lambda bb, x: op.exp(bb.emit(op.expand_dims(x, 1)))) == 1


def test_results_and_other_kernels_stay():
    assert views([M, 6, N], lambda bb, x: op.reshape(x, (M * 6, N))) == 0
    assert views([M, 6], lambda bb, x: op.exp(bb.emit(op.permute_dims(x)))) == 0
    assert views([M, 6], lambda bb, x: op.exp(bb.emit(op.strided_slice(x, [0], [0], [1])))) == 0


def test_an_analysis_that_fails_means_a_copy():
    """TVM's does not come to terms with one sum in two orders."""
    assert views([M, 4, N + M - 1], lambda bb, x: op.exp(bb.emit(op.reshape(x, (M, 4, M + N - 1))))) == 0
