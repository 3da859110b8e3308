"""Operators for which TVM's own ONNX converter is right: call it on one node, with explicit operands."""

from __future__ import annotations

import functools
from typing import Any

import onnx
import tvm
from tvm import relax

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import Value

# Operators whose TVM converter is wrong or misreads the standard: they need one of ours or a function body.
_WRONG = {"Attention", "Loop", "Scan"}


@functools.cache
def _converters() -> dict[str, Any]:
    from tvm.relax.frontend.onnx import onnx_frontend

    return {k: v for k, v in onnx_frontend._get_convert_map().items() if v is not None}


def supports(node: Node) -> bool:
    return (
        node.op_type in _converters()
        and node.op_type not in _WRONG
        and node.domain in ("", "com.microsoft", "ai.onnx.ml")
    )


def convert(ctx: Context, node: Node) -> list[Value]:
    """Convert one node with TVM's converter; its result is bound piece by piece."""
    from tvm.relax.frontend.onnx import onnx_frontend

    operands = onnx_frontend.onnx_input()
    for value in node.inputs:
        operands.append(None if value is None else ctx.tensor(value))
    attrs = _tvm_attributes(node)
    function = _converters()[node.op_type].get_converter(node.opset)
    result = function(ctx.bb, operands, attrs, [{}, {}])
    return bind(ctx, ctx.bb.normalize(result))


def _tvm_attributes(node: Node) -> dict[str, Any]:
    """Attributes in the form that TVM's converters read: bytes for strings, tuples for lists."""
    attrs: dict[str, Any] = {}
    for proto in node.proto.attribute:
        value = onnx.helper.get_attribute_value(proto)
        attrs[proto.name] = tuple(value) if proto.type in _LISTS else value
    attrs["tvm_custom"] = {"name": node.proto.name, "num_outputs": len(node.outputs)}
    return attrs


_LISTS = {onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRINGS}


def bind(ctx: Context, result: relax.Expr) -> list[Value]:
    if isinstance(result, relax.Tuple):
        return [_as_value(ctx, field) for field in result.fields]
    if isinstance(result.ty, relax.TupleType):
        bound = ctx.bb.emit(result)
        return [_as_value(ctx, relax.TupleGetItem(bound, k)) for k in range(len(result.ty.fields))]
    return [_as_value(ctx, result)]


def _as_value(ctx: Context, expr: relax.Expr) -> Value:
    if isinstance(expr, tvm.ir.GenericConst):
        return Value(const=expr.value.numpy())
    return ctx.emit(expr)
