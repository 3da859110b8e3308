"""Walk an ONNX graph and build the Relax function `main` with symbolic dims.

    ModelProto            main(x: R.Tensor((batch, seq, 768))) -> R.Tensor((batch, seq, 2))
    + Dim facts    ->         R.assert_op(...)      one per unproved assumption on input dims
                              with R.dataflow(): ...

Each node goes to the first source that takes it: constant folding, integer value propagation, a converter of ours,
the operator's ONNX function body, TVM's converter.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence

import onnx
import onnx.inliner
import tvm
from onnx import numpy_helper
from tvm import relax

from tvm_dyn.dims import Dim
from tvm_dyn.errors import InvalidModelError, ModelImportError, TvmDynError, UnsupportedOperatorError
from tvm_dyn.frontend import (
    composition,
    constant_folding,
    delegate,
    function_body,
    ops,
    registry,
    signature,
    symbolic_values,
)
from tvm_dyn.frontend.context import Context, Unified
from tvm_dyn.frontend.extents import is_one
from tvm_dyn.frontend.fold_batch_norm import fold_batch_norm
from tvm_dyn.frontend.main_function import build_main
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.symbols import SymbolTable
from tvm_dyn.frontend.value import SUB_BYTE, Value

_ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Sigmoid", "Relu", "Tanh", "Exp", "Log", "Sqrt", "Neg", "Identity"}
_ROUNDING = {"DynamicQuantizeLinear", "QuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
# Each restart merges at least one symbol into others, so the number of dims bounds them; this catches a fault of ours.
_MAX_RESTARTS = 10_000


def import_graph(model: onnx.ModelProto, dims: Mapping[str, Dim | int] | None = None) -> tvm.IRModule:
    """Turn a validated model into an IRModule with one public function `main`.

    dims: facts about symbolic dims, by the name in the model (or the canonical name).
    Raises ModelImportError (UnsupportedOperatorError, InvalidModelError), each naming the node.
    """
    ops.load()
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    symbols = SymbolTable(dims)
    for _ in range(_MAX_RESTARTS):
        try:
            return GraphImporter(model, symbols).run()
        except Unified:
            continue
    raise ModelImportError("unification of symbolic dims does not end")


class GraphImporter:
    """One pass over the graph with a given set of symbols."""

    def __init__(self, model: onnx.ModelProto, symbols: SymbolTable):
        self._graph = model.graph
        self._symbols = symbols
        self._opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
        self.values: MutableMapping[str, Value | None] = {}

    def run(self) -> tvm.IRModule:
        constants = _initializers(self._graph)
        inputs = [i for i in self._graph.input if i.name not in constants]
        params = [self._parameter(info) for info in inputs]
        self._symbols.check_user_names()
        ctx = self.ctx = Context(self._symbols, self._opsets)
        ctx.declared_ranks = _declared_ranks(self._graph)
        ctx.rounds_activations = any(node.op_type in _ROUNDING for node in self._graph.node)
        self.values = {**constants, **{i.name: Value(expr=p) for i, p in zip(inputs, params, strict=True)}}
        return build_main(ctx, params, [i.name for i in inputs], self._body)

    def _body(self) -> list[tuple[str, Value]]:
        for proto in fold_batch_norm(self._graph, self.values):
            self.convert_node(proto)
        return [(o.name, self._lookup(o.name)) for o in self._graph.output]

    def _parameter(self, info: onnx.ValueInfoProto) -> relax.Var:
        if not info.type.HasField("tensor_type"):
            raise UnsupportedOperatorError(
                f"input '{info.name}' is not a tensor: sequences and optionals are not supported as inputs"
            )
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            raise UnsupportedOperatorError(f"input '{info.name}' has no rank: declare its dims in the model")
        dims = [
            d.dim_value if d.HasField("dim_value") else self._symbols.resolve(d.dim_param, info.name, axis)
            for axis, d in enumerate(tensor.shape.dim)
        ]
        return relax.Var(
            signature.identifier(info.name), relax.TensorType(dims, dtype_name(tensor.elem_type, info.name))
        )

    # -- nodes ----------------------------------------------------------------------------------------------

    def convert_nodes(self, graph: onnx.GraphProto) -> None:
        for proto in graph.node:
            self.convert_node(proto)

    def convert_node(self, proto: onnx.NodeProto) -> None:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        inputs = [self._lookup(name) if name else None for name in proto.input]
        node = Node(proto, inputs, self._opsets.get(domain, 1))
        outer, self.ctx.node = self.ctx.node, node
        try:
            results = self.dispatch(node)
        except (TvmDynError, Unified):
            raise
        except Exception as error:
            raise ModelImportError(f"{node.label} cannot be imported: {first_line(error)}") from error
        finally:
            self.ctx.node = outer
        if len(results) < len([o for o in node.outputs if o]):
            raise ModelImportError(
                f"{node.label} has {len(node.outputs)} outputs, of which {len(results)} are supported"
            )
        self.values.update({name: value for name, value in zip(node.outputs, results, strict=False) if name})

    def dispatch(self, node: Node) -> Sequence[Value | None]:
        """The outputs of one node, from the first source that takes it."""
        if node.op_type in ops.CONTROL and node.domain == "":
            return ops.CONTROL[node.op_type](self, node)
        known = constant_folding.fold(node) or symbolic_values.evaluate(self.ctx, node)
        if known is not None:
            return known
        own = registry.find(node.op_type, node.opset, node.domain)
        result = own(self.ctx, node) if own else composition.convert(self, node)
        if result is NotImplemented and not delegate.supports(node):
            result = function_body.convert(self, node)
        if result is NotImplemented and delegate.supports(node):
            result = delegate.convert(self.ctx, node)
        if result is NotImplemented:
            domain = f" of domain '{node.domain}'" if node.domain else ""
            raise UnsupportedOperatorError(
                f"{node.label}: operator {node.op_type}{domain} (opset {node.opset}) is not supported"
            )
        return result if isinstance(result, list) else [result]

    def _lookup(self, name: str) -> Value:
        if name not in self.values:
            raise InvalidModelError(f"value '{name}' is used before it is computed, or nowhere computed")
        value = self.values[name]
        if value is None:
            raise UnsupportedOperatorError(f"value '{name}' is an optional output that is not supported")
        return value

    def subgraph(self, graph: onnx.GraphProto, bound: Mapping[str, Value | None] | None = None) -> list[Value]:
        """The outputs of a nested graph, which sees the values around it; `bound` gives its inputs."""
        outer = self.values
        self.values = ChainMap({**_initializers(graph), **(bound or {})}, outer)
        try:
            self.convert_nodes(graph)
            return [_of_declared_rank(self.ctx, self._lookup(o.name), o) for o in graph.output]
        finally:
            self.values = outer


def dtype_name(elem_type: int, name: str) -> str:
    """TVM's name of an ONNX element type."""
    if elem_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        kind = onnx.TensorProto.DataType.Name(elem_type)
        raise UnsupportedOperatorError(f"'{name}' has element type {kind}, which is not supported")
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    if dtype in SUB_BYTE:
        raise UnsupportedOperatorError(f"'{name}' has element type {dtype}: types below one byte are not supported")
    return dtype


def _of_declared_rank(ctx: Context, value: Value, info: onnx.ValueInfoProto) -> Value:
    """A single element in the rank that a nested graph declares: exporters write () and (1,) for one another."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape") or (value.expr is not None and not isinstance(value.expr.ty, relax.TensorType)):
        return value
    shape, rank = ctx.shape(value), len(tensor.shape.dim)
    if len(shape) == rank or any(not is_one(dim) for dim in shape):
        return value
    if value.is_const:
        return Value(const=value.array.reshape((1,) * rank))
    return ctx.emit(relax.op.reshape(ctx.tensor(value), (1,) * rank))


def _declared_ranks(graph: onnx.GraphProto) -> dict[str, int]:
    """Ranks by name; what an elementwise operator makes a scalar of is made of scalars."""
    tensors = {info.name: info.type.tensor_type for info in (*graph.value_info, *graph.output)}
    ranks = {name: len(tensor.shape.dim) for name, tensor in tensors.items() if tensor.HasField("shape")}
    for node in reversed(graph.node):
        if node.op_type in _ELEMENTWISE and ranks.get(node.output[0]) == 0:
            ranks.update(dict.fromkeys(node.input, 0))
    return ranks


def _initializers(graph: onnx.GraphProto) -> dict[str, Value | None]:
    return {t.name: Value(const=numpy_helper.to_array(t)) for t in graph.initializer}


def first_line(error: Exception) -> str:
    """The line of an error that says what went wrong."""
    lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line or "heck failed" in line), lines[0])[:400]
