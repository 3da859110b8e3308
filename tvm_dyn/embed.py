"""The signature of a Relax module: read or derived, then put into the module so that the library carries it.

main(x: R.Tensor((n, 16)))            main(x: R.Tensor((n, 16)))
  with {"tvm_dyn.signature": ...}  ->   with {"tvm_dyn.signature": ...}
                                      tvm_dyn_signature() -> R.str("{...}")
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from .dims import Dim
from .errors import CompileError, InvalidDimError
from .owned_outputs import owned_outputs
from .runtime.executable import SIGNATURE_FUNCTION
from .runtime.signature import DimInfo, Signature, TensorInfo
from .symbolic import substitute, to_text

ATTRIBUTE = "tvm_dyn.signature"


def with_signature(module: tvm.IRModule, dims: Mapping[str, Dim | int]) -> tvm.IRModule:
    """`module` with the attribute on `main` and the function that gives the signature at run time.

    dims: facts about symbolic dims, used where the module came without a signature.
    Raises `CompileError` without a `main`, `InvalidDimError` on a dim that `main` does not have.
    """
    main = next((func for var, func in module.functions_items() if var.name_hint == "main"), None)
    if not isinstance(main, relax.Function):
        raise CompileError("the module has no Relax function 'main'")
    if main.attrs and ATTRIBUTE in main.attrs:
        signature = Signature.from_json(str(main.attrs[ATTRIBUTE]))
    else:
        signature = _derive(main, dims)
    owned = owned_outputs(main)
    outputs = [replace(info, shared=not own) for info, own in zip(signature.outputs, owned, strict=True)]
    signature = replace(signature, outputs=tuple(outputs), ops=_count_ops(main))
    result = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
    result.update_func(module.get_global_var("main"), main.with_attr(ATTRIBUTE, signature.to_json()))
    builder = relax.BlockBuilder(result)
    with builder.function(SIGNATURE_FUNCTION, []):
        builder.emit_func_output(tvm.ir.StringImm(signature.to_json()))
    return builder.get()


def _derive(main: relax.Function, dims: Mapping[str, Dim | int]) -> Signature:
    """The signature that the types of `main` tell; its outputs are called output_0, output_1, ..."""
    results = list(main.ret_ty.fields) if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    names = _dim_names(main)
    own = set(names.values())
    unknown = [name for name in dims if name not in own]
    if unknown:
        known = ", ".join(map(repr, own)) or "none"
        raise InvalidDimError(f"the model has no symbolic dim {unknown[0]!r}; it has {known}")
    return Signature(
        tuple(_tensor_info(param.name, param.ty, names) for param in main.params),
        tuple(_tensor_info(f"output_{index}", ty, names) for index, ty in enumerate(results)),
        {name: _dim_info(dims.get(name, Dim())) for name in names.values()},
    )


def _dim_names(main: relax.Function) -> dict[tvm.ir.Var, str]:
    """A name for each symbolic dim of the parameters, unlike the variables' own names never given twice."""
    names: dict[tvm.ir.Var, str] = {}
    for var in relax.analysis.tir_vars_in_type(relax.TupleType([param.ty for param in main.params])):
        taken = set(names.values())
        candidates = (f"{var.name}_{count}" if count else str(var.name) for count in itertools.count())
        names[var] = next(name for name in candidates if name not in taken)
    return names


def _tensor_info(name: str, ty: tvm.ir.Type, names: Mapping[tvm.ir.Var, str]) -> TensorInfo:
    if not isinstance(ty, relax.TensorType):
        return TensorInfo(name, "int64", None)
    if not isinstance(ty.shape, relax.ShapeExpr):
        return TensorInfo(name, str(ty.dtype), None)
    renamed = {var: tvm.tirx.Var(text, "int64") for var, text in names.items()}
    texts = [to_text(substitute(extent, renamed)) for extent in ty.shape.values]
    return TensorInfo(name, str(ty.dtype), tuple(int(t) if t.lstrip("-").isdigit() else t for t in texts))


def _dim_info(dim: Dim | int) -> DimInfo:
    if isinstance(dim, int):
        dim = Dim(dim, dim)
    return DimInfo(dim.min, dim.max, dim.divisor)


def _count_ops(main: relax.Function) -> dict[str, int]:
    counts: Counter[str] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            counts[expr.op.name.removeprefix("relax.")] += 1

    relax.analysis.post_order_visit(main, visit)
    return dict(counts.most_common())
