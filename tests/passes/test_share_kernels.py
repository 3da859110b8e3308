"""ShareKernels: what counts as the same kernel, and that calls follow."""

import tvm
from tvm import relax, te, tirx, topi

from tvm_dyn.passes import ShareKernels
from tvm_dyn.passes.rewriting import CALL_TIR

N = tirx.Var("n", "int64")


def kernel(symbol: str, factor: float) -> tirx.PrimFunc:
    x = te.placeholder((te.var(symbol, dtype="int64"), 4), name="x")
    return te.create_prim_func([x, topi.multiply(x, factor)]).without_attr("global_symbol")


def module(*kernels: tirx.PrimFunc) -> tvm.IRModule:
    """A chain of calls, one of each kernel; names differ, so the builder keeps them apart."""
    builder = relax.BlockBuilder()
    names = [builder.add_func(k.with_attr("mark", n), f"k{n}") for n, k in enumerate(kernels)]
    x = relax.Var("x", relax.TensorType([N, 4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for name in names:
                value = builder.emit(relax.call_tir(name, [value], relax.TensorType([N, 4], "float32")))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    mod = builder.get()
    for name in names:
        mod.update_func(name, mod[name].without_attr("mark"))
    return mod


def calls(mod: tvm.IRModule) -> list[str]:
    found = []

    def visit(expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == CALL_TIR:
            found.append(expr.args[0].name_hint)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def test_kernels_that_differ_in_names_are_one():
    after = ShareKernels()(module(kernel("n", 2.0), kernel("m", 2.0), kernel("n", 3.0)))
    relax.analysis.well_formed(after)  # raises where it is not
    assert calls(after) == ["k0", "k0", "k2"]
    assert {gv.name_hint for gv in after.get_global_vars()} == {"main", "k0", "k2"}


def test_public_kernels_stay():
    mod = module(kernel("n", 2.0), kernel("n", 2.0))
    for gv in mod.get_global_vars():
        if gv.name_hint == "k1":
            mod.update_func(gv, mod[gv].with_attr("global_symbol", "k1"))
    assert calls(ShareKernels()(mod)) == ["k0", "k1"]


def test_the_input_stays():
    before = module(kernel("n", 2.0), kernel("m", 2.0))
    text = before.script()
    ShareKernels()(before)
    assert before.script() == text
