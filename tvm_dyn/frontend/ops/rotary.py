"""RotaryEmbedding: pairs of elements turned by an angle that their position gives, in one kernel."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import floor_div, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.shape import reshape
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value


@converter("RotaryEmbedding", since=23)
def rotary_embedding(ctx: Context, node: Node) -> Value:
    """Inputs: x (batch, heads, length, size) or (batch, length, heads * size); cosines and sines (batch, length, half)
    or, with positions (batch, length) as fourth input, by position (positions, half).
    """
    x, positions = node.data(0), node.input(3)
    dims = ctx.shape(x)
    if len(dims) == 3:
        heads = node.attr("num_heads", 0)
        if not heads:
            raise InvalidModelError(f"{node.label}: data of rank 3 needs the attribute num_heads")
        data = reshape(ctx, x, [dims[0], dims[1], heads, floor_div(ctx.facts, dims[2], heads)])
        return reshape(ctx, _rotate(ctx, node, data, 1, positions), dims)
    return _rotate(ctx, node, x, 2, positions)


def _rotate(ctx: Context, node: Node, data: Value, place: int, positions: Value | None) -> Value:
    """Rotate the last axis; `place` is the axis of the positions."""
    dims = ctx.shape(data)
    width, interleaved = node.attr("rotary_embedding_dim", 0), bool(node.attr("interleaved", 0))
    half = floor_div(ctx.facts, width or dims[3], 2)
    for table in (node.data(1), node.data(2)):
        ctx.require_equal(ctx.shape(table)[-1], half, "the columns of cosines and sines and half the rotated elements")

    def rotary(x: te.Tensor, cos: te.Tensor, sin: te.Tensor, at_positions: list[te.Tensor], middle: Any) -> te.Tensor:
        def angle(table: te.Tensor, index: tuple[Any, ...], pair: Any) -> Any:
            row = (index[0], index[place])
            return table(at_positions[0](*row), pair) if at_positions else table(*row, pair)

        def turned(index: tuple[Any, ...]) -> Any:
            *outer, d = index
            if interleaved:
                pair, first = d // 2, d % 2 == 0
                partner = tirx.Select(first, d + 1, d - 1)
            else:
                first = d < prim(middle)
                pair = tirx.Select(first, d, d - prim(middle))
                partner = tirx.Select(first, d + prim(middle), d - prim(middle))
            crossed = x(*outer, partner) * angle(sin, index, pair)
            return x(*index) * angle(cos, index, pair) + tirx.Select(first, -crossed, crossed)

        def at(*index: Any) -> Any:
            if not width:
                return turned(index)
            return tirx.if_then_else(index[3] < width, turned(index), x(*index))

        return te.compute(x.shape, at, name="rotary")

    tables = [ctx.tensor(node.data(k)) for k in (1, 2)]
    rows = [] if positions is None else [ctx.tensor(positions)]
    return ctx.emit_te(rotary, ctx.tensor(data), *tables, rows, half)
