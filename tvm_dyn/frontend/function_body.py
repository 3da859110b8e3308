"""Operators that ONNX defines by a function body: convert the body instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from onnx import defs

from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import Value

if TYPE_CHECKING:
    from tvm_dyn.frontend.importer import GraphImporter


def convert(importer: GraphImporter, node: Node) -> Any:
    """The outputs of the operator's function body, or NotImplemented where ONNX gives none."""
    body = _body(importer, node)
    if body is None:
        return NotImplemented
    attributes = _attributes(node, body)
    bound: dict[str, Value | None] = dict(zip(body.input, [*node.inputs, *[None] * len(body.input)], strict=False))
    graph = onnx.GraphProto(name=node.op_type)
    for inner in body.node:
        proto = graph.node.add()
        proto.CopyFrom(inner)
        _bind_attributes(proto, attributes)
        _drop_absent_inputs(proto, bound)
    wanted = [name for name, used in zip(body.output, node.outputs, strict=False) if used]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    opsets = importer.ctx.opsets
    outer = dict(opsets)
    opsets.update({"" if o.domain == "ai.onnx" else o.domain: o.version for o in body.opset_import})
    try:
        results = iter(importer.subgraph(graph, bound))
    finally:
        opsets.clear()
        opsets.update(outer)
    return [next(results) if used else None for used in node.outputs]


def _body(importer: GraphImporter, node: Node) -> onnx.FunctionProto | None:
    try:
        schema = defs.get_schema(node.op_type, node.opset, node.domain)
    except defs.SchemaError:
        return None
    if schema.has_context_dependent_function:
        types = [_type(importer, v) for v in node.inputs]
        known = schema.context_dependent_function_opset_versions
        version = max((v for v in known if v <= node.opset), default=max(known))
        text = schema.get_context_dependent_function_with_opset_version(version, node.proto.SerializeToString(), types)
        return onnx.FunctionProto.FromString(text) if text else None
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= node.opset]
        if versions:
            return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(versions)))
    return None


def _type(importer: GraphImporter, value: Value | None) -> bytes:
    proto = onnx.TypeProto()
    if value is not None:
        import numpy as np

        proto.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
        for dim in importer.ctx.shape(value):
            entry = proto.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
    return proto.SerializeToString()


def _attributes(node: Node, body: onnx.FunctionProto) -> dict[str, onnx.AttributeProto]:
    given = {a.name: a for a in body.attribute_proto}
    schema = defs.get_schema(node.op_type, node.opset, node.domain)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            given.setdefault(name, attribute.default_value)
    given.update({a.name: a for a in node.proto.attribute})
    return given


def _bind_attributes(proto: onnx.NodeProto, attributes: dict[str, onnx.AttributeProto]) -> None:
    kept = []
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in attributes:
                continue
            bound = onnx.AttributeProto()
            bound.CopyFrom(attributes[attribute.ref_attr_name])
            bound.name = attribute.name
            kept.append(bound)
        else:
            kept.append(attribute)
            for nested in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                for inner in nested.node:
                    _bind_attributes(inner, attributes)
    copies = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
    del proto.attribute[:]
    proto.attribute.extend(copies)


def _drop_absent_inputs(proto: onnx.NodeProto, bound: dict[str, Value | None]) -> None:
    for position, name in enumerate(proto.input):
        if name in bound and bound[name] is None:
            proto.input[position] = ""
