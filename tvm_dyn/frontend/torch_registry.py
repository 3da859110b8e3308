"""The table of ATen converters, and what a converter may use.

A converter takes `(t, *args, **kwargs)`: `t` a TorchContext, the rest the arguments under their ATen names,
tensors as Values, integers (also symbolic ones) as ints and prim expressions. It returns one Value, or a list
of Values and Nones where the operator has several results, or NotImplemented for a form that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx
import torch
import tvm
from torch import fx
from tvm import relax

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.composition import Operators, PartNode
from tvm_dyn.frontend.value import Value, constant, symbols

if TYPE_CHECKING:
    from tvm_dyn.frontend.importer import GraphImporter

# The ONNX operator versions that converters build on.
OPSET = 20

Converter = Callable[..., Any]
CONVERTERS: dict[str, Converter] = {}


def aten(*names: str) -> Callable[[Converter], Converter]:
    """Register a converter for ATen operators as "add.Tensor"; a name without overload means "default"."""

    def register(convert: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys((n if "." in n else f"{n}.default" for n in names), convert))
        return convert

    return register


class TorchContext:
    """The state that converters share: the importer of ONNX nodes below, the torch node at hand."""

    def __init__(self, engine: GraphImporter):
        self._engine = engine
        self.ctx = engine.ctx
        self.node: fx.Node | None = None

    def enter(self, node: fx.Node) -> None:
        """Convert `node` from now on."""
        self.node = node
        origin = f"node '{node.name}' ({node.target})"
        self._operators = Operators(self._engine, origin, OPSET)
        self.ctx.node = PartNode(onnx.NodeProto(), [], OPSET, origin)

    def onnx(self, op_type: str, *inputs: Value | None, outputs: int = 1, **attrs: Any) -> Any:
        """What an ONNX operator gives: a Value, or a list where `outputs` > 1; attributes may be None."""
        return self._operators(op_type, *inputs, outputs=outputs, **attrs)

    # -- results --------------------------------------------------------------------------------------------

    @property
    def results(self) -> list[Any]:
        """Torch's description of the node's results."""
        value = self.node.meta["val"]
        return list(value) if isinstance(value, tuple | list) else [value]

    @property
    def dtype(self) -> str:
        """Element type of the (first) result."""
        return dtype_name(self.results[0].dtype)

    @property
    def common_dtype(self) -> str:
        """The type that torch promotes the first two operands to."""
        metas: list[Any] = [a.meta["val"] if isinstance(a, fx.Node) else a for a in self.node.args[:2]]
        return dtype_name(torch.result_type(*(1 if isinstance(m, torch.SymInt) else m for m in metas)))

    # -- operands -------------------------------------------------------------------------------------------

    def value(self, item: Any, dtype: str) -> Value:
        """A tensor, a number or a symbolic integer as a tensor of `dtype`."""
        if not isinstance(item, Value):
            item = symbols([item], ()) if isinstance(item, tvm.ir.Expr) else constant(item, dtype)
        return self.cast(item, dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """The value with another element type."""
        return self._operators.cast(value, dtype)

    def ints(self, items: Any) -> Value:
        """Integers as the 1-D tensor that ONNX operators take for axes, sizes and so on."""
        return self._operators.ints(list(items))

    def shape(self, value: Value) -> list[Any]:
        """The extents of a value."""
        return self.ctx.shape(value)

    def axes(self, value: Value, dims: int | Sequence[int] | None) -> list[int]:
        """Axes counted from the front; all of them for None and []."""
        rank = self.ctx.rank(value)
        given = [dims] if isinstance(dims, int) else list(dims or range(rank))
        return [axis % rank for axis in given] if rank else []

    def emit(self, expr: relax.Expr) -> Value:
        return self.ctx.emit(expr)

    def tensor(self, value: Value) -> relax.Expr:
        return self.ctx.tensor(value)


def dtype_name(dtype: torch.dtype) -> str:
    """TVM's name of a torch element type. Raises UnsupportedOperatorError."""
    name = str(dtype).removeprefix("torch.")
    if not name.startswith(("float", "int", "uint", "bool", "bfloat16")):
        raise UnsupportedOperatorError(f"element type {name} is not supported")
    return name
