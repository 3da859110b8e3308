"""LowerShapeAsserts: assertions on shapes become functions of the library."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_dyn.hardware import host_target
from tvm_dyn.passes import LowerShapeAsserts


def module() -> tvm.IRModule:
    """main(x: (n, 4), y: (m, 4)) with two assertions in a row."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x, y = (relax.Var(name, relax.TensorType((dim, 4), "float32")) for name, dim in (("x", n), ("y", m)))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y], pure=False):
        builder.emit(relax.op.assert_op(relax.prim_value(n == m), [relax.prim_value(n)], "rows {{differ}}: {}"))
        builder.emit(relax.op.assert_op(relax.prim_value(n > 1), [], "too few rows"))
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    return builder.get()


def test_neighbours_share_one_function():
    lowered = LowerShapeAsserts()(module())
    checks = [f for f in lowered.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(checks) == 1
    assert "assert_op" not in lowered["main"].script()
    assert "rows {differ}: n" in checks[0].script()


def test_each_assertion_fails_with_its_message():
    lowered = tvm.transform.Sequential([LowerShapeAsserts(), relax.transform.LegalizeOps()])(module())
    machine = relax.VirtualMachine(tvm.compile(lowered, host_target()), tvm.cpu())
    ones = lambda rows: np.ones((rows, 4), "float32")  # noqa: E731
    assert machine["main"](ones(3), ones(3)).numpy().shape == (3, 4)
    with pytest.raises(ValueError, match=r"rows \{differ\}"):
        machine["main"](ones(3), ones(2))
    with pytest.raises(ValueError, match="too few rows"):
        machine["main"](ones(1), ones(1))


def test_idempotent():
    once = LowerShapeAsserts()(module())
    tvm.ir.assert_structural_equal(LowerShapeAsserts()(once), once)
