"""Recognise convolution- and pooling-like functions: a window that slides over (padded) data, then
elementwise work.

```
pad_temp[n, c, i]  = if_then_else(b <= i and i < size + b, x[n, c, i - b], 0)
out[n, f, y]       = reduce over r of combine(pad_temp[n, c, y*stride + r*dilation], ...)
result[n, f, y]    = epilogue(out[n, f, y], n, f, y)
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir.schedule import Schedule
from tvm.tirx import Buffer, PrimFunc

from tvm_dyn.schedules.common import (
    as_int,
    collect,
    is_reduction,
    is_spatial,
    leaf_blocks,
    loads,
    stores,
    substitute,
)

Epilogue = Callable[[Expr, list[Expr]], Expr]
"""(accumulated value, output coordinates) -> the value to store."""


class NotAWindow(Exception):
    """The function has another form; the rule answers "not mine"."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a window: extents in elements, everything but the two extents a compile-time
    number.
    """

    in_extent: Expr
    out_extent: Expr
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """How far, in outputs, the last tap of a window lies behind the first."""
        return (self.kernel - 1) * self.dilation // self.stride

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == self.stride == 1 and self.before == self.after == 0


@dataclass(frozen=True)
class Window:
    """A parsed function; ``block`` is the reduction as written, ``load`` its read of the (padded) data."""

    block: s_tir.SBlock
    load: TensorLoad
    data: Buffer
    pad_value: Expr | None
    axes: list[Axis]
    result: Buffer
    epilogue: Epilogue

    @property
    def spatial(self) -> list[tirx.Var]:
        return [iv.var for iv in self.block.iter_vars if iv.iter_type == tirx.IterVar.DataPar]

    @property
    def reduction(self) -> list[tirx.Var]:
        return [iv.var for iv in self.block.iter_vars if iv.iter_type != tirx.IterVar.DataPar]

    @property
    def extents(self) -> list[Expr]:
        """Extents of the block's axes, spatial before reduction."""
        return [iv.dom.extent for iv in self.block.iter_vars]


def parse(func: PrimFunc) -> Window:
    """Take a function apart. Raises `NotAWindow` for every other form."""
    sch = Schedule(func)
    blocks = [sch.get(block) for block in leaf_blocks(sch)]
    reductions = [block for block in blocks if is_reduction(block)]
    if len(reductions) != 1 or len(collect(func.body, s_tir.SBlock)) != len(blocks) + 1:
        raise NotAWindow
    main = reductions[0]
    at = blocks.index(main)
    if main.init is None or len(stores(main.body)) != 1:
        raise NotAWindow
    params = list(func.params)
    load = _data_load(main)
    data, before, pad_value = unpad(load.source, blocks[:at], params)
    result, epilogue = parse_epilogue(main, blocks[at + 1 :], params)
    axes = _axes(main, load, data, before)
    return Window(main, load, data, pad_value, axes, result, epilogue)


def _data_load(block: s_tir.SBlock) -> TensorLoad:
    """The read that slides: its index mentions both spatial and reduction axes in one coordinate."""
    out = stores(block.body)[0].buffer
    reads = [r for r in loads(block.body) if not r.source.same_as(out)]
    if not reads:
        raise NotAWindow
    return reads[0]


def _is_param(buffer: Buffer, params: list) -> bool:
    return any(buffer.same_as(p) for p in params)


def unpad(buffer: Buffer, producers: list, params: list) -> tuple[Buffer, list[int], Expr | None]:
    """The parameter behind ``buffer``, and the constant padding in front of each of its axes."""
    if _is_param(buffer, params):
        if producers:
            raise NotAWindow
        return buffer, [0] * len(buffer.shape), None
    if len(producers) != 1 or not is_spatial(producers[0]):
        raise NotAWindow
    block = producers[0]
    (store,) = stores(block.body)
    axes = [iv.var for iv in block.iter_vars]
    if not store.buffer.same_as(buffer) or not _same_vars(store.indices, axes):
        raise NotAWindow
    call = store.value
    if isinstance(call, TensorLoad) and _same_vars(call.indices, axes) and _is_param(call.source, params):
        return call.source, [0] * len(axes), None
    if getattr(getattr(call, "op", None), "name", "") != "prim.if_then_else":
        raise NotAWindow
    condition, load, value = call.args
    if not isinstance(load, TensorLoad) or not _is_param(load.source, params) or loads(value):
        raise NotAWindow
    before = [_constant(v - i) for v, i in zip(axes, load.indices, strict=True)]
    _check_padding(condition, axes, before, load.source)
    return load.source, before, value


def _check_padding(condition: Expr, axes: list, before: list[int], source: Buffer) -> None:
    """Each conjunct has to be a bound of the source (that the source is never left is what makes the read
    legal).
    """
    analyzer = sym.Analyzer()
    bounds = []
    for v, b, size in zip(axes, before, source.shape, strict=True):
        bounds += [v - b, size + b - 1 - v]
    for conjunct in _conjuncts(condition):
        margin = _margin(conjunct)
        if not any(analyzer.can_prove_equal(margin, bound) for bound in bounds):
            raise NotAWindow


def _margin(comparison: Expr) -> Expr:
    """``m`` where the comparison of integers says ``m >= 0``."""
    match comparison:
        case tirx.LE():
            return comparison.b - comparison.a
        case tirx.LT():
            return comparison.b - comparison.a - 1
        case tirx.GE():
            return comparison.a - comparison.b
        case tirx.GT():
            return comparison.a - comparison.b - 1
    raise NotAWindow


def _conjuncts(condition: Expr) -> list[Expr]:
    if isinstance(condition, tirx.And):
        return _conjuncts(condition.a) + _conjuncts(condition.b)
    return [condition]


def _same_vars(indices, variables) -> bool:
    return len(indices) == len(variables) and all(i.same_as(v) for i, v in zip(indices, variables, strict=True))


def _constant(expr: Expr) -> int:
    value = as_int(sym.Analyzer().simplify(expr))
    if value is None:
        raise NotAWindow
    return value


def _axes(block: s_tir.SBlock, load: TensorLoad, data: Buffer, before: list[int]) -> list[Axis]:
    """Spatial axes: coordinates 2.. of the data, which must read ``y * stride + r * dilation``."""
    spatial = [iv for iv in block.iter_vars if iv.iter_type == tirx.IterVar.DataPar]
    reduction = [iv for iv in block.iter_vars if iv.iter_type != tirx.IterVar.DataPar]
    rank = len(data.shape) - 2
    if rank < 1 or len(spatial) != rank + 2 or len(reduction) < rank or any(before[:2]) or min(before) < 0:
        raise NotAWindow
    axes = []
    for y, r, at in zip(spatial[2:], reduction[-rank:], range(2, rank + 2), strict=True):
        index, kernel = load.indices[at], as_int(r.dom.extent)
        if kernel is None:
            raise NotAWindow
        stride, dilation = slopes(index, y.var, r.var)
        after = _constant(load.source.shape[at] - data.shape[at] - before[at])
        axes.append(Axis(data.shape[at], y.dom.extent, kernel, stride, dilation, before[at], after))
    return axes


def slopes(index: Expr, y: tirx.Var, r: tirx.Var) -> tuple[int, int]:
    """(a, b) where ``index`` is ``a*y + b*r``; an axis of one tap may leave ``r`` out."""

    def at(yv: int, rv: int) -> int:
        return _constant(substitute(index, {y: tirx.const(yv, "int64"), r: tirx.const(rv, "int64")}))

    stride, dilation = at(1, 0), at(0, 1)
    if stride < 1 or not sym.Analyzer().can_prove_equal(index, y * stride + r * dilation):
        raise NotAWindow
    return stride, max(dilation, 1)


def parse_epilogue(main: s_tir.SBlock, consumers: list, params: list) -> tuple[Buffer, Epilogue]:
    """The parameter the function writes, and the elementwise work between the reduction and it as one
    expression.
    """
    written = stores(main.body)
    if len(written) != 1:  # a reduction of several values at once, such as an argmax
        raise NotAWindow
    (store,) = written
    accumulated = store.buffer
    # axes of one channel per result follow, where TVM no longer takes them for reductions
    spatial = [iv.var for iv in main.iter_vars if iv.iter_type == tirx.IterVar.DataPar][: len(store.indices)]
    if not _same_vars(store.indices, spatial):
        raise NotAWindow
    definitions: list[tuple] = [(accumulated, None, None)]
    for block in consumers:
        block_stores = stores(block.body)
        axes = [iv.var for iv in block.iter_vars]
        if not is_spatial(block) or len(block_stores) != 1 or not _same_vars(block_stores[0].indices, axes):
            raise NotAWindow
        definitions.append((block_stores[0].buffer, axes, block_stores[0].value))
    result = definitions[-1][0]
    if [_is_param(buffer, params) for buffer, _, _ in definitions].count(True) != 1 or not _is_param(result, params):
        raise NotAWindow
    _check_domain(result, accumulated)
    ones = [as_int(extent) == 1 for extent in accumulated.shape]

    def value_of(buffer: Buffer, indices: list[Expr], acc: Expr, at: list[Expr]) -> Expr:
        _, axes, value = next(d for d in definitions if d[0].same_as(buffer))
        if axes is None:
            if not all(one or i.same_as(j) for one, i, j in zip(ones, indices, at, strict=True)):
                raise NotAWindow
            return acc
        value = substitute(value, dict(zip(axes, indices, strict=True)))

        def expand(load: TensorLoad) -> Expr:
            known = any(d[0].same_as(load.source) for d in definitions)
            return value_of(load.source, list(load.indices), acc, at) if known else load

        return tvm_ffi.structural_map(value, (TensorLoad, expand))

    def epilogue(acc: Expr, at: list[Expr]) -> Expr:
        # Fresh variables keep coordinates comparable by identity while definitions are unfolded.
        names = [tirx.Var(f"i{n}", "int64") for n in range(len(at))]
        return substitute(value_of(result, names, acc, names), dict(zip(names, at, strict=True)))

    epilogue(tirx.Var("acc", str(accumulated.dtype)), list(spatial))
    return result, epilogue


def _check_domain(result: Buffer, accumulated: Buffer) -> None:
    analyzer = sym.Analyzer()
    if len(result.shape) != len(accumulated.shape) or not all(
        analyzer.can_prove_equal(a, b) for a, b in zip(result.shape, accumulated.shape, strict=True)
    ):
        raise NotAWindow
