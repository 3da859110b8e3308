"""Operators made of ONNX's own: a converter that calls them by name.

    @composed("BiasGelu", domain="com.microsoft")
    def bias_gelu(o, node):
        return o("Gelu", o("Add", node.data(0), node.data(1)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import Value, constant, symbols

if TYPE_CHECKING:
    from tvm_dyn.frontend.importer import GraphImporter

# The version of the operators that compositions are made of.
OPSET = 23

Composition = Callable[..., Any]
_TABLE: dict[tuple[str, str], Composition] = {}


def composed(*op_types: str, domain: str) -> Callable[[Composition], Composition]:
    """Register a converter `(o, node)` as `registry.converter` does, with `o` an `Operators` for the node."""

    def register(convert: Composition) -> Composition:
        _TABLE.update(dict.fromkeys(((domain, op_type) for op_type in op_types), convert))
        return convert

    return register


def convert(importer: GraphImporter, node: Node) -> Any:
    """The node's outputs, or NotImplemented where it is no composition."""
    composition = _TABLE.get((node.domain, node.op_type))
    return NotImplemented if composition is None else composition(Operators(importer, node.label), node)


@dataclass(frozen=True)
class PartNode(Node):
    """An ONNX node that stands for a part of another one, whose name errors give."""

    origin: str = ""

    @property
    def label(self) -> str:
        return self.origin


class Operators:
    """ONNX operators as calls on values; `ctx` for what needs no operator."""

    def __init__(self, importer: GraphImporter, origin: str, opset: int = OPSET):
        self._importer, self._origin, self._opset = importer, origin, opset
        self.ctx = importer.ctx

    def __call__(self, op_type: str, *inputs: Value | None, outputs: int = 1, **attrs: Any) -> Any:
        """What the operator gives: a Value, or a list where `outputs` > 1; inputs and attributes may be None."""
        given = {name: value for name, value in attrs.items() if value is not None}
        names = ["" if v is None else f"i{k}" for k, v in enumerate(inputs)]
        proto = onnx.helper.make_node(op_type, names, [f"o{k}" for k in range(outputs)], **given)
        outer = self.ctx.node
        self.ctx.node = PartNode(proto, list(inputs), self._opset, self._origin)
        try:
            results = self._importer.dispatch(self.ctx.node)
        finally:
            self.ctx.node = outer
        return results[0] if outputs == 1 else results

    def ints(self, items: Sequence[Any]) -> Value:
        """Extents as the 1-D tensor that operators take for shapes, axes and so on."""
        return symbols(list(items))

    def number(self, value: float, like: Value) -> Value:
        """A 0-d tensor of another one's type."""
        return constant(value, like.dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """The value with another element type."""
        if value.dtype == dtype:
            return value
        return self("Cast", value, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def shape(self, value: Value) -> list[Any]:
        """The extents of a value."""
        return self.ctx.shape(value)

    def range(self, count: Any) -> Value:
        """0, 1, ... below an extent, in one dimension."""
        return self("Range", *(self.reshape(self.ints([v]), []) for v in (0, count, 1)))

    def reshape(self, value: Value, shape: Sequence[Any]) -> Value:
        """The value in another shape."""
        return self("Reshape", value, self.ints(shape), allowzero=1)
