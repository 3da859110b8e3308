"""InlineScalarConstants: numbers go into the kernels, everything else stays an operand."""

import numpy as np
import pytest
import tvm
from dataflow import module
from tvm import relax, tirx
from tvm.relax import op

from tvm_dyn import pipeline
from tvm_dyn.passes import InlineScalarConstants
from tvm_dyn.passes.rewriting import CALL_TIR

N = tirx.Var("n", "int64")


def operands(graph) -> list[int]:
    """How many operands each kernel takes."""
    mod = InlineScalarConstants()(relax.transform.LegalizeOps()(module(graph, (N, 4))))
    relax.analysis.well_formed(mod)  # raises where it is not
    found = []

    def visit(expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == CALL_TIR:
            found.append(len(expr.args[1].fields))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def test_numbers_are_no_operands():
    assert operands(lambda emit, x: op.multiply(x, relax.const(0.125))) == [1]
    assert operands(lambda emit, x: op.multiply(x, relax.const(np.full((1, 1), 0.5, "float32")))) == [1]
    assert operands(lambda emit, x: op.where(op.less(x, relax.const(0.0)), relax.const(0.0), x)) == [1, 2]


def test_other_constants_are():
    assert operands(lambda emit, x: op.add(x, relax.const(np.ones(4, "float32")))) == [2]
    # TVM's simplifier does not reckon with NaN.
    assert operands(lambda emit, x: op.where(op.less(x, relax.const(0.0)), relax.const(np.nan), x)) == [1, 3]


def test_filled_tensors_and_truth_values_stay():
    assert operands(lambda emit, x: op.add(x, emit(op.broadcast_to(relax.const(1.0), (N, 4))))) == [1, 2]
    assert operands(lambda emit, x: op.where(relax.const(True, "bool"), x, x)) == [3]


def test_kernels_that_differ_in_a_number_differ():
    twice, thrice = ((lambda x, k=k: op.multiply(x, relax.const(k))) for k in (2.0, 3.0))
    assert operands(lambda emit, x: op.add(twice(x), thrice(x))) == [1, 1, 2]


@pytest.mark.parametrize("number", [0.125, -np.finfo("float32").max, np.inf, -np.inf, 1e-45])
def test_every_number_arrives(number):
    mod = module(lambda emit, x: op.maximum(op.multiply(x, relax.const(0.0)), relax.const(number, "float32")), (N, 4))
    machine = relax.VirtualMachine(pipeline.build(mod), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(np.ones((3, 4), "float32"))).numpy()
    np.testing.assert_array_equal(found, np.maximum(np.zeros((3, 4), "float32"), np.float32(number)))


@pytest.mark.parametrize("dtype", ["int64", "int8", "float16", "float64"])
def test_types(dtype):
    mod = module(lambda emit, x: op.add(x, relax.const(3, dtype)), (N, 4), dtype=dtype)
    machine = relax.VirtualMachine(pipeline.build(mod), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(np.ones((3, 4), dtype))).numpy()
    np.testing.assert_array_equal(found, np.full((3, 4), 4, dtype))
