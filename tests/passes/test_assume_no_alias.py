import tvm
from tvm import relax, tirx
from tvm.script import relax as R

from tvm_dyn.hardware import host_target
from tvm_dyn.passes import AssumeNoAlias
from tvm_dyn.pipeline import pipeline


def module() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((tirx.Var("n", "int64"), 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.nn.relu(x)))
        builder.emit_func_output(y)
    return builder.get()


def prim_funcs(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    return [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]


def test_marks_every_prim_func_and_leaves_the_input_alone():
    mod = relax.transform.LegalizeOps()(module())
    (func,) = prim_funcs(mod)
    mod.update_func(mod.get_global_var("relu"), func.without_attr("tirx.noalias"))
    marked = AssumeNoAlias()(mod)
    assert all(f.attrs["tirx.noalias"] for f in prim_funcs(marked))
    assert "tirx.noalias" not in prim_funcs(mod)[0].attrs


def test_the_pipeline_leaves_no_function_out():
    lowered = pipeline(host_target())(module())
    assert len(prim_funcs(lowered)) > 1
    assert all(f.attrs.get("tirx.noalias", False) for f in prim_funcs(lowered))
