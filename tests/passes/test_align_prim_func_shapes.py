"""AlignPrimFuncShapes: producer and consumer spell one extent alike, so that FuseTIR can join them."""

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_dyn.hardware import host_target
from tvm_dyn.passes import AlignPrimFuncShapes


def module() -> tvm.IRModule:
    """exp(x: (n, 4)), then a kernel made when its operand's extent was still written min(n, 512)."""
    n, k = tirx.Var("n", "int64"), tirx.Var("n", "int64")
    bounded = tirx.min(k, tirx.const(512, "int64"))
    operand = te.placeholder((bounded, 4), name="a")
    doubled = te.compute((bounded, 4), lambda i, j: operand[i, j] * 2.0, name="doubled")
    kernel = te.create_prim_func([operand, k, doubled])
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    builder = relax.BlockBuilder()
    twice = builder.add_func(kernel.without_attr("global_symbol").with_attr("op_pattern", 0), "twice")
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.exp(x))
            call = relax.call_tir(twice, [y, n], relax.TensorType((n, 4), "float32"))
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    legalize = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    return tvm.transform.Sequential(legalize)(builder.get())


FUSE = [relax.transform.FuseOps(), relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]


def test_the_kernel_takes_the_shape_of_its_call():
    aligned = AlignPrimFuncShapes()(module())
    kernels = [f for f in aligned.functions.values() if isinstance(f, tirx.PrimFunc)]
    shapes = {str(f.params[0].ty.shape) for f in kernels if len(f.params) == 3}
    assert any("min" not in shape for shape in shapes)


def test_the_group_fuses_and_computes_the_same():
    fused = tvm.transform.Sequential([AlignPrimFuncShapes(), *FUSE])(module())
    assert sum(isinstance(f, tirx.PrimFunc) for f in fused.functions.values()) == 1
    machine = relax.VirtualMachine(tvm.compile(fused, host_target()), tvm.cpu())
    for rows in (1, 7):
        data = np.random.default_rng(rows).standard_normal((rows, 4)).astype("float32")
        np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(data)).numpy(), np.exp(data) * 2, rtol=1e-5)


def test_idempotent_and_the_input_stays():
    before = module()
    text = before.script()
    once = AlignPrimFuncShapes()(before)
    assert before.script() == text
    again = relax.transform.DeadCodeElimination()(AlignPrimFuncShapes()(once))
    tvm.ir.assert_structural_equal(again, relax.transform.DeadCodeElimination()(once), map_free_vars=True)
