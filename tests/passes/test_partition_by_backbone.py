"""PartitionByBackbone: who joins which group."""

import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from tvm_dyn.passes import AnnotateDependence, PartitionByBackbone, ReshapesToViews
from tvm_dyn.passes.partition_by_backbone import GROUP
from tvm_dyn.passes.rewriting import RESHAPE

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def tensor(*shape) -> relax.Var:
    return relax.Var("x", relax.TensorType(list(shape), "float32"))


def groups(graph, *inputs) -> list[list[str]]:
    """Names of the kernels of each group of ``graph(emit, *inputs)``; single kernels are left out."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(inputs)):
        with builder.dataflow():
            results = graph(builder.emit, *inputs)
            results = [builder.emit_output(r) for r in (results if isinstance(results, tuple) else (results,))]
        builder.emit_func_output(relax.Tuple(results) if len(results) > 1 else results[0])
    steps = [
        ReshapesToViews(),
        relax.transform.LegalizeOps(skip_ops=["relax.reshape"]),
        relax.transform.CanonicalizeBindings(),
        AnnotateDependence(),
        PartitionByBackbone(),
    ]
    block = tvm.transform.Sequential(steps)(builder.get())["main"].body.blocks[0]
    found: dict[int, list[str]] = {}
    for binding in block.bindings:
        attrs = getattr(binding.value, "attrs", None)
        if isinstance(attrs, tvm.ir.DictAttrs) and GROUP in attrs.keys():  # noqa: SIM118
            found.setdefault(int(attrs[GROUP]), []).append(name(binding.value))
    return list(found.values())


def name(call: relax.Call) -> str:
    if call.op == RESHAPE:
        return "view"
    return call.args[0].name_hint.rstrip("0123456789").removeprefix("tir_")


def weights(*shape) -> relax.Expr:
    return relax.const(tvm.runtime.empty(shape, "float32"), "float32")


def test_a_product_takes_its_epilogue_along_even_where_values_are_read_twice():
    def graph(emit, x, residual):
        hidden = emit(op.add(emit(op.matmul(x, weights(8, 4))), weights(4)))
        gate = emit(op.sigmoid(hidden))
        return op.add(emit(op.multiply(hidden, gate)), residual)

    assert groups(graph, tensor(N, 8), tensor(N, 4)) == [["matmul", "add", "sigmoid", "multiply", "add"]]


def test_an_epilogue_ends_where_a_value_is_read_elsewhere():
    def graph(emit, x):
        biased = emit(op.add(emit(op.matmul(x, weights(8, 4))), weights(4)))
        return op.exp(biased), op.sum(biased, 0)

    assert groups(graph, tensor(N, 8)) == [["matmul", "add"]]


def test_a_product_writes_its_tiles_transposed():
    def graph(emit, x):
        product = emit(op.matmul(x, weights(8, 4)))
        return op.permute_dims(emit(op.multiply(product, weights(4))), [0, 2, 1])

    assert groups(graph, tensor(N, M, 8)) == [["matmul", "multiply", "transpose"]]


def test_each_group_has_one_backbone():
    def graph(emit, x):
        hidden = emit(op.nn.relu(emit(op.matmul(x, weights(8, 4)))))
        return op.nn.relu(emit(op.matmul(hidden, weights(4, 4))))

    assert groups(graph, tensor(N, 8)) == [["matmul", "relu"], ["matmul", "relu"]]


def test_a_product_reads_through_index_maps_but_not_through_arithmetic():
    def moved(emit, x):
        return op.matmul(emit(op.permute_dims(x, [1, 0, 2])), weights(8, 4))

    def computed(emit, x):
        return op.matmul(emit(op.exp(x)), weights(8, 4))

    def strided(emit, x):
        return op.matmul(x, emit(op.permute_dims(x, [0, 2, 1])))

    assert groups(moved, tensor(N, M, 8)) == [["transpose", "matmul"]]
    assert groups(computed, tensor(N, M, 8)) == []
    assert groups(strided, tensor(N, M, 8)) == []


def test_reductions_over_the_same_rows_are_one_kernel():
    """RMS normalisation, written out."""

    def graph(emit, x):
        mean = emit(op.mean(emit(op.multiply(x, x)), -1, keepdims=True))
        scale = emit(op.rsqrt(emit(op.add(mean, relax.const(1e-5)))))
        return op.multiply(emit(op.multiply(x, scale)), weights(8))

    assert [len(g) for g in groups(graph, tensor(N, M, 8))] == [6]


def test_reductions_over_other_rows_are_not():
    def graph(emit, x):
        return op.sum(emit(op.exp(emit(op.sum(x, 2)))), 0)

    assert groups(graph, tensor(N, M, 8)) == [["sum", "exp"]]


def test_softmax_takes_what_is_added_to_its_rows():
    def graph(emit, x, mask):
        return op.nn.softmax(emit(op.add(x, mask)), -1)

    assert groups(graph, tensor(N, 4, M), tensor(N, 1, M)) == [["add", "softmax"]]


def attention(emit, q, k, v, mask):
    k = emit(op.permute_dims(k, [0, 1, 3, 2]))
    scores = emit(op.add(emit(op.multiply(emit(op.matmul(q, k)), relax.const(0.125))), mask))
    result = emit(op.matmul(emit(op.nn.softmax(scores, -1)), v))
    return op.permute_dims(result, [0, 2, 1, 3])


ATTENTION = [tensor(N, 2, M, 8), tensor(N, 2, M, 8), tensor(N, 2, M, 8), tensor(N, 1, 1, M)]


def test_attention_is_one_group():
    found = groups(attention, *ATTENTION)
    assert found == [["transpose", "matmul", "multiply", "add", "softmax", "matmul", "transpose"]]


def test_attention_that_no_rule_takes_falls_apart(monkeypatch):
    monkeypatch.setattr("tvm_dyn.passes.partition_by_backbone.takes_attention", lambda func: False)
    assert groups(attention, *ATTENTION) == [["matmul", "multiply", "add"], ["matmul", "transpose"]]


def test_attention_whose_probabilities_are_a_result_is_none():
    def graph(emit, q, k, v):
        weights = emit(op.nn.softmax(emit(op.matmul(q, k)), -1))
        return op.matmul(weights, v), weights

    shapes = [tensor(N, 2, M, 8), tensor(N, 2, 8, M), tensor(N, 2, M, 8)]
    assert groups(graph, *shapes) == []


def test_attention_reads_heads_split_off_and_repeated_where_they_are():
    """Grouped-query attention on the slices of one projection: no copy of q, k or v is made."""

    def graph(emit, x):
        def part(begin, count):
            heads = emit(op.reshape(emit(op.strided_slice(x, [2], [begin], [begin + 8 * count])), (N, M, count, 8)))
            return emit(op.permute_dims(heads, [0, 2, 1, 3]))

        def repeated(heads):
            wide = emit(op.broadcast_to(emit(op.expand_dims(heads, 2)), (N, 2, 2, M, 8)))
            return emit(op.reshape(wide, (N, 4, M, 8)))

        q, k, v = part(0, 4), repeated(part(32, 2)), repeated(part(48, 2))
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
        return op.matmul(emit(op.nn.softmax(scores, -1)), v)

    (found,) = groups(graph, tensor(N, M, 64))
    parts = ["strided_slice", "view", "transpose"]
    assert sorted(found) == sorted(
        [*parts * 3, *["view", "broadcast_to", "view"] * 2, "transpose", "matmul", "softmax", "matmul"]
    )


def test_a_view_that_saves_nothing_stays_outside():
    def graph(emit, x, k, v):
        q = emit(op.permute_dims(emit(op.reshape(x, (N, M, 2, 8))), [0, 2, 1, 3]))
        return op.matmul(emit(op.nn.softmax(emit(op.matmul(q, k)), -1)), v)

    shapes = [tensor(N, M, 16), tensor(N, 2, 8, M), tensor(N, 2, M, 8)]
    assert groups(graph, *shapes) == [["transpose", "matmul", "softmax", "matmul"]]


@pytest.mark.parametrize("wide", [True, False])
def test_costly_work_is_not_repeated(wide):
    def graph(emit, x, y):
        return op.add(y, emit(op.exp(x)))

    operands = (tensor(M), tensor(N, M)) if wide else (tensor(N, M), tensor(N, M))
    assert groups(graph, *operands) == ([] if wide else [["exp", "add"]])


def test_values_read_often_do_not_multiply_without_end():
    def graph(emit, x):
        for _ in range(8):
            x = emit(op.multiply(x, x))
        return op.negative(x)

    assert max(len(g) for g in groups(graph, tensor(N))) < 8


def test_a_view_in_between_ends_a_group():
    def graph(emit, x):
        return op.exp(emit(op.reshape(emit(op.negative(x)), (N * 8,))))

    assert groups(graph, tensor(N, 8)) == []
