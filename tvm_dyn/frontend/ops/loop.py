"""Loop and Scan: the body is one compiled function, however many steps there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx
from tvm import relax, te

from tvm_dyn.errors import InvalidModelError, UnsupportedOperatorError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import prim
from tvm_dyn.frontend.loops import Step, emit_loop
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import Value, constant

if TYPE_CHECKING:
    from tvm_dyn.frontend.importer import GraphImporter

_TRUE = constant(True)


def convert_loop(importer: GraphImporter, node: Node) -> list[Value]:
    """Inputs: most steps or none, condition or none, states; outputs: states, then stacked rows."""
    ctx, graph = importer.ctx, node.attr("body")
    limit, condition = node.input(0), node.input(1) or _TRUE
    states = [node.data(k) for k in range(2, len(node.inputs))]
    _check_arity(node, graph, 2 + len(states), 1 + len(states))

    def step(number: Value, carried: list[Value]) -> Step:
        number = Value(elements=number.known_elements().reshape(ctx.shape(limit) if limit else ()))
        bound = _bound(graph, [number, _TRUE, *carried])  # the body runs only while the condition is true
        more, *results = importer.subgraph(graph, bound)
        return Step(more, results[: len(states)], results[len(states) :])

    count = None if limit is None else ctx.scalar(limit)
    finals, rows = emit_loop(ctx, count, condition, states, step)
    return [*finals, *rows]


def convert_scan(importer: GraphImporter, node: Node) -> list[Value]:
    """Inputs: states, then tensors read slice by slice; outputs: states, then stacked rows."""
    if node.opset < 9:
        raise UnsupportedOperatorError(f"{node.label}: Scan of opset 8, with a batch axis, is not supported")
    ctx, graph = importer.ctx, node.attr("body")
    scanned = node.attr("num_scan_inputs")
    states = [node.data(k) for k in range(len(node.inputs) - scanned)]
    sources = [node.data(k) for k in range(len(states), len(node.inputs))]
    _check_arity(node, graph, len(node.inputs), len(states))
    axes = [a % ctx.rank(v) for a, v in zip(node.attr("scan_input_axes") or [0] * scanned, sources, strict=True)]
    backwards = node.attr("scan_input_directions") or [0] * scanned
    count = ctx.shape(sources[0])[axes[0]]
    for axis, source in zip(axes, sources, strict=True):
        count = ctx.require_equal(count, ctx.shape(source)[axis], "the numbers of slices that a Scan reads")

    def step(number: Value, carried: list[Value]) -> Step:
        slices = [
            _slice(ctx, source, axis, _place(number, count, flag))
            for source, axis, flag in zip(sources, axes, backwards, strict=True)
        ]
        results = importer.subgraph(graph, _bound(graph, [*carried, *slices]))
        return Step(_TRUE, results[: len(states)], results[len(states) :])

    finals, rows = emit_loop(ctx, count, _TRUE, states, step)
    return [*finals, *_arranged(ctx, node, rows)]


def _check_arity(node: Node, graph: onnx.GraphProto, inputs: int, outputs: int) -> None:
    if len(graph.input) != inputs or len(graph.output) < outputs:
        raise InvalidModelError(
            f"{node.label}: its body has {len(graph.input)} inputs and {len(graph.output)} outputs, "
            f"needs {inputs} inputs and at least {outputs} outputs"
        )


def _bound(graph: onnx.GraphProto, values: Sequence[Value]) -> dict[str, Value | None]:
    return {info.name: value for info, value in zip(graph.input, values, strict=True)}


def _place(number: Value, count: Any, backwards: int) -> Any:
    step = number.known_elements().reshape(-1)[0]
    return prim(count) - 1 - step if backwards else step


def _slice(ctx: Context, source: Value, axis: int, place: Any) -> Value:
    def scanned_slice(x: te.Tensor, at: Any) -> te.Tensor:
        dims = [d for k, d in enumerate(x.shape) if k != axis]
        return te.compute(dims, lambda *i: x(*i[:axis], at, *i[axis:]), name="scanned_slice")

    return ctx.emit_te(scanned_slice, ctx.tensor(source), place)


def _arranged(ctx: Context, node: Node, rows: list[Value]) -> list[Value]:
    """Rows stacked along the axes and in the directions that the node asks for."""
    axes = node.attr("scan_output_axes") or [0] * len(rows)
    backwards = node.attr("scan_output_directions") or [0] * len(rows)
    return [_arrange(ctx, v, axis, flag) for v, axis, flag in zip(rows, axes, backwards, strict=True)]


def _arrange(ctx: Context, rows: Value, axis: int, backwards: int) -> Value:
    if backwards:
        rows = ctx.emit(relax.op.flip(ctx.tensor(rows), axis=0))
    rank = ctx.rank(rows)
    if axis % rank == 0:
        return rows
    order = list(range(1, rank))
    order.insert(axis % rank, 0)
    return ctx.emit(relax.op.permute_dims(ctx.tensor(rows), order))
