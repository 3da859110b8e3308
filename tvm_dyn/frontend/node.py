"""One ONNX node as converters see it: values instead of names, Python attributes instead of protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx

from tvm_dyn.frontend.value import Value


@dataclass(frozen=True)
class Node:
    proto: onnx.NodeProto
    inputs: list[Value | None]
    opset: int

    @property
    def op_type(self) -> str:
        return self.proto.op_type

    @property
    def domain(self) -> str:
        return "" if self.proto.domain == "ai.onnx" else self.proto.domain

    @property
    def outputs(self) -> list[str]:
        return list(self.proto.output)

    @cached_property
    def attrs(self) -> dict[str, Any]:
        return {a.name: _attribute(a) for a in self.proto.attribute}

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    def input(self, position: int) -> Value | None:
        """The value at `position`, None when absent or left empty."""
        return self.inputs[position] if position < len(self.inputs) else None

    def data(self, position: int = 0) -> Value:
        """The value at `position`, which the operator requires."""
        value = self.input(position)
        if value is None:
            raise ValueError(f"{self.label} lacks its required input {position}")
        return value

    @property
    def label(self) -> str:
        name = self.proto.name or next((o for o in self.proto.output if o), "")
        return f"node '{name}' ({self.op_type})"


def _attribute(proto: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if proto.type == onnx.AttributeProto.STRINGS:
        return [item.decode("utf-8", "replace") for item in value]
    if proto.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    return value
