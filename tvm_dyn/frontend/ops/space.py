"""Operators that rearrange blocks of space: depth to space and back, columns to images, centred crops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.extents import ceil_div, floor_div, maximum
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.conv import crop
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.sliding_window import per_axis, simplify_sum
from tvm_dyn.frontend.value import Value


def _permuted(ctx: Context, value: Value, order: Sequence[int]) -> Value:
    return ctx.emit(relax.op.permute_dims(ctx.tensor(value), list(order)))


def _divided(ctx: Context, extent: Any, divisor: int, what: str) -> Any:
    """extent / divisor, which has to be exact."""
    quotient = floor_div(ctx.facts, extent, divisor)
    ctx.require_equal(extent, product([quotient, divisor]), what)
    return quotient


@converter("DepthToSpace")
def depth_to_space(ctx: Context, node: Node) -> Value:
    block = node.attr("blocksize")
    batch, channels, *space = ctx.shape(node.data())
    rank = len(space)
    depth = _divided(ctx, channels, block**rank, "the channels and blocks of them")
    blocks = [block] * rank
    if node.attr("mode", "DCR") == "DCR":
        split, first, depth_axis = [batch, *blocks, depth, *space], 1, 1 + rank
    else:
        split, first, depth_axis = [batch, depth, *blocks, *space], 2, 1
    order = [0, depth_axis, *[axis for k in range(rank) for axis in (2 + rank + k, first + k)]]
    mixed = _permuted(ctx, reshape(ctx, node.data(), split), order)
    return reshape(ctx, mixed, [batch, depth, *[product([extent, block]) for extent in space]])


@converter("SpaceToDepth")
def space_to_depth(ctx: Context, node: Node) -> Value:
    block = node.attr("blocksize")
    batch, channels, *space = ctx.shape(node.data())
    rank = len(space)
    outer = [_divided(ctx, extent, block, "a spatial extent and blocks of it") for extent in space]
    split = reshape(ctx, node.data(), [batch, channels, *[d for extent in outer for d in (extent, block)]])
    coarse, fine = [2 + 2 * k for k in range(rank)], [3 + 2 * k for k in range(rank)]
    order = [0, *fine, 1, *coarse] if node.attr("mode", "DCR") == "DCR" else [0, 1, *fine, *coarse]
    return reshape(ctx, _permuted(ctx, split, order), [batch, product([channels, block**rank]), *outer])


# -- Col2Im --------------------------------------------------------------------------------------------------


@converter("Col2Im")
def col2im(ctx: Context, node: Node) -> Value:
    """Add up overlapping blocks, phase by phase: (n, c * taps, blocks) -> (n, c, image...).

    With stride s, element q * s + p of the image gets tap j * s + p of block q - j, for every j.
    """
    image = list(ctx.elements(node.data(1), signed=False))
    kernel = [int(k) for k in ctx.const(node.data(2), "its block shape").reshape(-1)]
    rank = len(kernel)
    strides, dilations = per_axis(node, "strides", rank, 1), per_axis(node, "dilations", rank, 1)
    pads = node.attr("pads") or [0] * (2 * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    blocks = [
        simplify_sum(ctx, floor_div(ctx.facts, image[k] + pads[k] + pads[k + rank] - spans[k], strides[k]) + 1)
        for k in range(rank)
    ]
    batch, columns, count = ctx.shape(node.data())
    channels = _divided(ctx, columns, math.prod(kernel), "the columns and blocks of them")
    ctx.require_equal(count, product(blocks), "the number of blocks and what the image holds")
    split = reshape(ctx, node.data(), [batch, channels, *kernel, *blocks])
    spread = _spread(ctx, split, dilations)
    folded = _fold(ctx, spread, strides, rank)
    return crop(ctx, folded, list(zip(pads[:rank], image, strict=True)))


def _spread(ctx: Context, value: Value, dilations: list[int]) -> Value:
    """Put zeros between taps: (n, c, k..., blocks...) -> (n, c, k * d..., blocks...)."""
    if all(d == 1 for d in dilations):
        return value
    dims, rank = ctx.shape(value), len(dilations)
    kernel, blocks = dims[2 : 2 + rank], dims[2 + rank :]
    inner = [d for pair in zip(kernel, dilations, strict=True) for d in pair]

    def spread(x: te.Tensor, shape: list[Any]) -> te.Tensor:
        def at(n: Any, c: Any, *index: Any) -> Any:
            taps, between, block = index[: 2 * rank : 2], index[1 : 2 * rank : 2], index[2 * rank :]
            present = tirx.all(*[b == 0 for b in between])
            return tirx.if_then_else(present, x(n, c, *taps, *block), tirx.const(0, x.dtype))

        return te.compute(shape, at, name="spread")

    result = ctx.emit_te(spread, ctx.tensor(value), [*dims[:2], *inner, *blocks])
    return reshape(ctx, result, [*dims[:2], *[k * d for k, d in zip(kernel, dilations, strict=True)], *blocks])


def _fold(ctx: Context, value: Value, strides: list[int], rank: int) -> Value:
    """(n, c, taps..., blocks...) -> (n, c, (blocks + reach - 1) * stride...)."""
    dims = ctx.shape(value)
    reach = [ceil_div(ctx.facts, k, s) for k, s in zip(dims[2 : 2 + rank], strides, strict=True)]
    extents = [simplify_sum(ctx, b + j - 1) for b, j in zip(dims[2 + rank :], reach, strict=True)]

    def fold(x: te.Tensor, shape: list[Any]) -> te.Tensor:
        kernel, blocks = x.shape[2 : 2 + rank], x.shape[2 + rank :]
        steps = [te.reduce_axis((0, j), f"j{k}") for k, j in enumerate(reach)]

        def at(n: Any, c: Any, *index: Any) -> Any:
            taps = [j * s + p for j, s, p in zip(steps, strides, index[1::2], strict=True)]
            block = [q - j for q, j in zip(index[::2], steps, strict=True)]
            inside = [t < k for t, k in zip(taps, kernel, strict=True)]
            inside += [cond for b, extent in zip(block, blocks, strict=True) for cond in (b >= 0, b < extent)]
            term = tirx.if_then_else(tirx.all(*inside), x(n, c, *taps, *block), tirx.const(0, x.dtype))
            return te.sum(term, axis=steps)

        return te.compute(shape, at, name="fold")

    inner = [d for pair in zip(extents, strides, strict=True) for d in pair]
    result = ctx.emit_te(fold, ctx.tensor(value), [*dims[:2], *inner])
    return reshape(ctx, result, [*dims[:2], *[product([e, s]) for e, s in zip(extents, strides, strict=True)]])


# -- CenterCropPad -------------------------------------------------------------------------------------------


@converter("CenterCropPad")
def center_crop_pad(ctx: Context, node: Node) -> Value:
    """Both centres meet; an odd element goes behind."""
    dims = ctx.shape(node.data())
    axes = [a % len(dims) for a in node.attr("axes", range(len(dims)))]
    targets = list(ctx.elements(node.data(1), signed=False))
    if len(targets) != len(axes):
        raise InvalidModelError(f"{node.label}: {len(targets)} extents for {len(axes)} axes")
    shape = list(dims)
    for axis, target in zip(axes, targets, strict=True):
        shape[axis] = target
    # target - dim is what to add, dim - target what to cut; one of the two is 0
    front = [_half(ctx, t, d) for t, d in zip(shape, dims, strict=True)]
    skipped = [_half(ctx, d, t) for t, d in zip(shape, dims, strict=True)]
    moved = [not ctx.facts.prove_equal(t, d) for t, d in zip(shape, dims, strict=True)]

    def centre(x: te.Tensor, front: list[Any], skipped: list[Any], extents: list[Any]) -> te.Tensor:
        def at(*index: Any) -> Any:
            source = [i - f + s for i, f, s in zip(index, front, skipped, strict=True)]
            inside = [
                condition
                for i, extent, move in zip(source, x.shape, moved, strict=True)
                for condition in ((i >= 0, i < extent) if move else ())
            ]
            return tirx.if_then_else(tirx.all(*inside), x(*source), tirx.const(0, x.dtype)) if inside else x(*source)

        return te.compute(extents, at, name="centre")

    return ctx.emit_te(centre, ctx.tensor(node.data()), front, skipped, shape)


def _half(ctx: Context, larger: Any, smaller: Any) -> Any:
    return floor_div(ctx.facts, maximum(ctx.facts, simplify_sum(ctx, larger - smaller), 0), 2)
