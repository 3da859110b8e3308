"""AnnotateDependence: the iteration maps of every kind of operator, and what the terms promise."""

import pytest
import tvm
from tvm import relax, te, tirx, topi
from tvm.relax import op

from tvm_dyn.passes import AnnotateDependence
from tvm_dyn.passes.dependence import ATTRIBUTE, Backbone, Dependence, Operand, Relation, Work

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def tensor(*shape, dtype: str = "float32") -> relax.Var:
    return relax.Var("x", relax.TensorType(list(shape), dtype))


def of(function, *operands: relax.Var) -> Dependence:
    """The dependence of the kernel that ``function`` of the operands is legalized to."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(operands)):
        with builder.dataflow():
            result = builder.emit_output(function(*operands))
        builder.emit_func_output(result)
    mod = AnnotateDependence()(relax.transform.LegalizeOps()(builder.get()))
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 1
    return Dependence.from_attribute(kernels[0].attrs[ATTRIBUTE])


def relations(found: Dependence) -> list[str]:
    return [operand.relation.name.lower() for operand in found.operands]


@pytest.mark.parametrize(
    ("function", "operands", "expected", "work"),
    [
        (op.exp, [tensor(N, 4)], ["identity"], Work.COSTLY),
        (op.add, [tensor(N, 1, 4), tensor(N, 1, 4)], ["identity", "identity"], Work.CHEAP),
        (op.add, [tensor(N, 4), tensor(4)], ["identity", "broadcast"], Work.CHEAP),
        (op.add, [tensor(N, M), tensor(N, 1)], ["identity", "broadcast"], Work.CHEAP),
        (op.permute_dims, [tensor(N, M, 4)], ["permute"], Work.MOVE),
        (lambda x: op.strided_slice(x, [1], [2], [6]), [tensor(N, 8)], ["reshape"], Work.MOVE),
        (lambda x: op.reshape(x, (N, 8)), [tensor(N, 2, 4)], ["reshape"], Work.MOVE),
        (lambda x, y: op.concat([x, y], 1), [tensor(N, 3), tensor(N, M)], ["reshape", "reshape"], Work.CHEAP),
        (op.take, [tensor(7), tensor(N, dtype="int64")], ["opaque", "identity"], Work.CHEAP),
    ],
)
def test_maps(function, operands, expected, work):
    found = of(function, *operands)
    assert (found.backbone, relations(found), found.work) == (Backbone.MAP, expected, work)


def test_backbones():
    assert of(op.matmul, tensor(N, 8), tensor(8, 4)).backbone == Backbone.PRODUCT
    assert of(op.matmul, tensor(N, M, 8), tensor(N, 8, M)).backbone == Backbone.PRODUCT
    assert of(op.nn.conv2d, tensor(N, 3, M, 9), tensor(4, 3, 3, 3)).backbone == Backbone.WINDOW
    assert of(op.nn.max_pool2d, tensor(N, 3, M, 9)).backbone == Backbone.WINDOW
    assert of(op.sum, tensor(N, 8)).backbone == Backbone.ROWS
    # The sum of squares multiplies, too, but nothing that lacks an axis.
    assert of(lambda x: op.nn.softmax(x, -1), tensor(N, M)).backbone == Backbone.ROWS


def test_rows_are_the_axes_that_no_reduction_crosses():
    assert of(lambda x: op.nn.softmax(x, -1), tensor(N, 3, M)).rows == 2
    assert of(lambda x: op.nn.softmax(x, 1), tensor(N, 3, M)).rows == 1
    assert of(lambda x: op.sum(x, 2, keepdims=True), tensor(N, 3, M)).rows == 2
    assert of(lambda x: op.sum(x, 0), tensor(N, 3, M)).rows == 0
    assert of(op.matmul, tensor(N, M, 8), tensor(N, 8, M)).rows == 1
    assert of(op.exp, tensor(N)).rows == 0


def test_layer_norm_reads_its_scale_by_column():
    found = of(lambda x, g, b: op.nn.layer_norm(x, g, b, axes=-1), tensor(N, 3, 8), tensor(8), tensor(8))
    assert relations(found) == ["reduce", "broadcast", "broadcast"]
    assert found.rows == 2
    assert found.operands[1] == Operand(Relation.BROADCAST, 0, True)


def test_contiguous():
    assert of(lambda x: op.permute_dims(x, [1, 0, 2]), tensor(N, M, 4)).operands[0].contiguous
    assert not of(lambda x: op.permute_dims(x, [0, 2, 1]), tensor(N, M, 4)).operands[0].contiguous
    assert not of(lambda x: op.strided_slice(x, [1], [0], [8], [2]), tensor(N, 8)).operands[0].contiguous


def kernel(*tensors: te.Tensor) -> Dependence:
    func = te.create_prim_func(list(tensors)).without_attr("global_symbol")
    mod = AnnotateDependence()(tvm.IRModule({"kernel": func}))
    return Dependence.from_attribute(mod["kernel"].attrs[ATTRIBUTE])


def test_several_results_are_opaque():
    x = te.placeholder((N, 4), name="x")
    parts = topi.split(x, 2, axis=1)
    assert kernel(x, *parts).backbone == Backbone.OPAQUE


def test_intermediates_are_seen_through():
    x = te.placeholder((N, 4), name="x")
    turned = topi.transpose(x)
    result = topi.add(topi.transpose(turned), te.compute((N, 4), lambda i, j: turned[j, i], name="again"))
    assert kernel(x, result).operands == (Operand(Relation.IDENTITY, 2, True),)


def test_extents_that_only_look_alike_do_not_align():
    """x[i] for i < m, where x has n elements."""
    x = te.placeholder((N,), name="x")
    y = te.placeholder((M,), name="y")
    cut = te.compute((M,), lambda i: x[i] + y[i], name="cut")
    found = kernel(x, y, cut)
    assert relations(found) == ["reshape", "identity"]
    assert [operand.aligned for operand in found.operands] == [0, 1]
