"""GatherGroupSymbols: groups with symbols that are in no shape fuse, and compute the same."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.relax import transform

from tvm_dyn import pipeline
from tvm_dyn.passes import GatherGroupSymbols


def module() -> tvm.IRModule:
    """sum(x) / number of columns + y, the number being a parameter of the kernel that divides."""
    m, k, n = (tirx.Var(name, "int64") for name in "mkn")
    x = relax.Var("x", relax.TensorType((m * k, n), "float32"))
    y = relax.Var("y", relax.TensorType((m * k,), "float32"))
    sizes = relax.Var("sizes", relax.ShapeType([m, k]))

    def divided(total: te.Tensor, count: tirx.Var) -> te.Tensor:
        return te.compute(total.shape, lambda i: total(i) / count.astype("float32"), name="divided")

    builder = relax.BlockBuilder()
    with builder.function("main", [x, y, sizes]):
        with builder.dataflow():
            total = builder.emit(relax.op.sum(x, axis=1))
            mean = builder.emit_te(divided, total, n)
            result = builder.emit_output(relax.op.exp(builder.emit(relax.op.add(mean, y))))
        builder.emit_func_output(result)
    return builder.get()


def fused_ops(mod: tvm.IRModule) -> tvm.IRModule:
    return tvm.transform.Sequential([transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FuseOps()])(
        mod
    )


def scalars(mod: tvm.IRModule) -> list[tvm.ir.Var]:
    functions = [f for f in mod.functions.values() if isinstance(f, relax.Function)]
    return [p for f in functions for p in f.params if isinstance(p.ty, tvm.ir.PrimType)]


def test_scalar_parameters_move_into_the_shape():
    before = fused_ops(module())
    assert scalars(before)
    after = GatherGroupSymbols()(before)
    assert not scalars(after)
    relax.analysis.well_formed(after)  # raises where it is not
    transform.FuseTIR()(after)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (2, 3, 17), (5, 1, 64)])
def test_same_results(m, k, n):
    machine = relax.VirtualMachine(pipeline.build(module()), tvm.cpu())
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((m * k, n)).astype("float32"), rng.standard_normal(m * k).astype("float32")
    sizes = tvm.runtime.ShapeTuple([m, k])
    got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y), sizes).numpy()
    np.testing.assert_allclose(got, np.exp(x.mean(1) + y), rtol=1e-5)
