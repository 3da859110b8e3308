"""Put `main` together: parameters, checks on input dims ahead of everything else, the body, the signature."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from tvm_dyn.frontend import signature
from tvm_dyn.frontend.context import Context, assertion
from tvm_dyn.frontend.value import Value


def build_main(
    ctx: Context, params: list[relax.Var], input_names: list[str], body: Callable[[], list[tuple[str, Value]]]
) -> tvm.IRModule:
    """The module of an import. `body` emits the model through `ctx` and gives names and outputs in order."""
    with ctx.bb.function("main", params):
        outputs = body()
        ctx.node = None
        checks = [ctx.bb.normalize(assertion(*check)) for check in ctx.entry_checks]
        tensors = [ctx.tensor(value) for _, value in outputs]
        ctx.bb.emit_func_output(tensors[0] if len(tensors) == 1 else relax.Tuple(tensors))
    mod = ctx.bb.get()
    main = _with_entry_checks(mod["main"], checks)
    text = signature.describe(input_names, [name for name, _ in outputs], main, ctx.symbols)
    mod["main"] = main.with_attr("tvm_dyn.signature", text)
    return tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.ConvertToDataflow()])(mod)


def _with_entry_checks(main: relax.Function, checks: list[relax.Call]) -> relax.Function:
    bindings = [relax.VarBinding(relax.Var("check", call.ty), call) for call in checks]
    blocks = [relax.BindingBlock(bindings), *main.body.blocks] if bindings else main.body.blocks
    return relax.Function(
        main.params, relax.SeqExpr(blocks, main.body.body), main.ret_ty, is_pure=False, attrs=main.attrs
    )
