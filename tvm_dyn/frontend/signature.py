"""The signature of an imported model as data: what calls are checked against, and what a library carries."""

from __future__ import annotations

import json
import re
from typing import Any

from tvm import relax

from tvm_dyn.frontend.symbols import SymbolTable
from tvm_dyn.frontend.value import tensor_dtype
from tvm_dyn.symbolic import to_text


def identifier(name: str) -> str:
    """A Relax variable name for an ONNX value name."""
    clean = re.sub(r"\W+", "_", name) or "input"
    return f"input_{clean}" if clean[0].isdigit() else clean


def describe(inputs: list[str], outputs: list[str], main: relax.Function, symbols: SymbolTable) -> str:
    """JSON text: inputs, outputs (name, dtype, shape as ints and expressions) and dims (facts, aliases, why)."""
    result = main.ret_ty
    output_types = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    return json.dumps(
        {
            "inputs": [_tensor(name, p.ty) for name, p in zip(inputs, main.params, strict=True)],
            "outputs": [_tensor(name, ty) for name, ty in zip(outputs, output_types, strict=True)],
            "dims": {
                s.var.name: {
                    "min": s.fact.min,
                    "max": s.fact.max,
                    "divisor": s.fact.divisor,
                    "aliases": s.aliases,
                    "why": s.why,
                }
                for s in symbols.free()
            },
        }
    )


def _tensor(name: str, ty: Any) -> dict[str, Any]:
    if not isinstance(ty, relax.TensorType):
        return {"name": name, "dtype": "", "shape": None}
    shape = ty.shape
    dims = [_dim(d) for d in shape.values] if isinstance(shape, relax.ShapeExpr) else None
    return {"name": name, "dtype": tensor_dtype(relax.Var("x", ty)), "shape": dims}


def _dim(dim: Any) -> int | str:
    text = to_text(dim)
    return int(text) if re.fullmatch(r"-?\d+", text) else text
