"""The window of convolutions and poolings: where it starts, how it steps, how many positions it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import ceil_div, floor_div, maximum, minimum, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.symbolic import simplify


@dataclass(frozen=True)
class Axis:
    """One spatial axis; extents and pads may be symbolic.

    Position y and tap r meet the element `y * stride + r * dilation - before`. `before` and `after` are the
    pads of the operator; `behind` is `after`, or with ceil_mode how far the last window reaches behind the
    data.
    """

    extent: Any
    kernel: Any
    stride: int
    dilation: int
    before: Any
    after: Any
    behind: Any
    positions: Any

    @property
    def fixed_pads(self) -> bool:
        return isinstance(self.before, int) and isinstance(self.after, int) and self.before >= 0 and self.after >= 0


def per_axis(node: Node, name: str, rank: int, default: int) -> list[int]:
    values = node.attr(name) or [default] * rank
    if len(values) != rank:
        raise InvalidModelError(f"{node.label}: attribute '{name}' has {len(values)} numbers for {rank} axes")
    return [int(v) for v in values]


def axes_of_window(ctx: Context, node: Node, extents: Sequence[Any], kernel: Sequence[Any]) -> list[Axis]:
    """The window that a Conv or pooling node describes over spatial `extents`.

    Raises InvalidModelError where the attributes do not fit; states that no output extent is negative.
    """
    rank = len(extents)
    strides, dilations = per_axis(node, "strides", rank, 1), per_axis(node, "dilations", rank, 1)
    pads = node.attr("pads") or [0] * (2 * rank)
    if len(kernel) != rank or len(pads) != 2 * rank:
        raise InvalidModelError(f"{node.label}: its kernel or pads do not fit {rank} spatial axes")
    axes = []
    for k in range(rank):
        span = (kernel[k] - 1) * dilations[k] + 1
        before, after, positions = _place(ctx, node, extents[k], span, strides[k], pads[k], pads[k + rank])
        if not isinstance(positions, int):
            message = f"{node.label}: the window is larger than the padded input along spatial axis {k}"
            ctx.require(positions >= 0, [extents[k]], message)
        elif positions < 0:
            raise InvalidModelError(f"{node.label}: the window is larger than the padded input along spatial axis {k}")
        reach = simplify_sum(ctx, (positions - 1) * strides[k] + span - extents[k] - before)
        behind = reach if node.attr("ceil_mode", 0) else after
        axes.append(Axis(extents[k], kernel[k], strides[k], dilations[k], before, after, behind, positions))
    return axes


def _place(
    ctx: Context, node: Node, extent: Any, span: Any, stride: int, before: int, after: int
) -> tuple[Any, Any, Any]:
    """Pads before and after, and the number of positions."""
    facts, auto_pad = ctx.facts, node.attr("auto_pad", "NOTSET")
    if auto_pad.startswith("SAME"):
        positions = ceil_div(facts, extent, stride)
        total = maximum(facts, simplify_sum(ctx, (positions - 1) * stride + span - extent), 0)
        return *split_pads(ctx, total, auto_pad == "SAME_UPPER"), positions
    if auto_pad == "VALID":
        before = after = 0
    room = extent + before + after - span
    if not node.attr("ceil_mode", 0):
        return before, after, simplify_sum(ctx, floor_div(facts, room, stride) + 1)
    # a window that would start behind the data and its front pads is dropped
    rounded_up = simplify_sum(ctx, ceil_div(facts, room, stride) + 1)
    return before, after, minimum(facts, rounded_up, ceil_div(facts, extent + before, stride))


def split_pads(ctx: Context, total: Any, more_after: bool) -> tuple[Any, Any]:
    """A total of pads in two halves; `more_after` says where the odd one goes."""
    half = floor_div(ctx.facts, total, 2)
    rest = simplify_sum(ctx, total - half)
    return (half, rest) if more_after else (rest, half)


def simplify_sum(ctx: Context, extent: Any) -> Any:
    return extent if isinstance(extent, int) else simplify(prim(extent), ctx.facts)
