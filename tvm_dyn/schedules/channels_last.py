"""Two-dimensional convolutions of channels-last data with packed weights, and everything elementwise that follows.

```
pad_temp[n, y, x, c] = if_then_else(inside, data[n, y - b, x - b, c], 0)          # unless there is no padding
out[n, y, x, f]      = sum over ry, rx, c of pad_temp[n, y*s + ry*d, x*s + rx*d, c]
                                             * weight[f // columns, ry*kw + rx, c, f % columns]
result[n, y, x, f]   = epilogue(out[n, y, x, f], n, y, x, f)
```
Weights may hold more taps than the window has: those of Winograd's transform (see `winograd`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import sym, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import Buffer, IterVar, PrimFunc, Stmt

from tvm_dyn.errors import ReplayError
from tvm_dyn.schedules import channels_last_direct, emit, winograd
from tvm_dyn.schedules.common import as_int, collect, is_reduction, leaf_blocks, loads, stores, uses_var
from tvm_dyn.schedules.panel import PanelTile
from tvm_dyn.schedules.replay import decided
from tvm_dyn.schedules.space import Space
from tvm_dyn.schedules.tasks import enough_sums
from tvm_dyn.schedules.window import Axis, Epilogue, NotAWindow, parse_epilogue, slopes, unpad


@dataclass(frozen=True)
class LastConv:
    """A matched convolution; see the module. ``axes`` are the two spatial ones, ``extents`` (n, y, x, f) of ``out``."""

    data: Buffer
    weight: Buffer
    axes: tuple[Axis, ...]
    extents: tuple[Expr, ...]
    channels: int
    filters: int
    columns: int
    dtype: str
    result: Buffer
    epilogue: Epilogue

    @property
    def taps(self) -> int:
        return self.axes[0].kernel * self.axes[1].kernel

    @property
    def sums(self) -> Expr:
        """Multiply-adds of the whole convolution."""
        return emit.product([*self.extents, self.channels * self.taps])

    def by_row(self) -> bool:
        """Whether what follows addresses pixels only as the result does: pixel q of an image may then stand at
        (0, q).
        """
        at = [tirx.Var(f"y{n}", "int64") for n in range(4)]
        expr = self.epilogue(tirx.const(0.0, self.dtype), list(at))
        pixel = at[1:3]
        whole = [load for load in loads(expr) if uses_var(load.indices, pixel)]
        for load in whole:
            same = len(load.indices) == 4 and all(i.same_as(v) for i, v in zip(load.indices, at, strict=True))
            extents = zip(load.source.shape[1:3], self.extents[1:3], strict=True) if same else ()
            if not same or not all(as_int(emit.simplify(a - b)) == 0 for a, b in extents):
                return False
        mentions = sum(uses_var(v, pixel) for v in collect(expr, tirx.Var))
        return mentions == sum(uses_var(v, pixel) for load in whole for v in collect(load, tirx.Var))


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    try:
        conv = match(func)
    except NotAWindow:
        return None
    tile = decided(func, PanelTile.of_columns(conv.columns, conv.dtype, target))
    if tile.columns != conv.columns:
        raise ReplayError(f"the trace decides panels of {tile.columns} columns, the weights lie in {conv.columns}")
    return emit.kernel(func, body(conv, tile, target))


def space(func: PrimFunc, target: Target) -> Space | None:
    """The decisions about a convolution of packed weights, None for anything else: how wide panels are is decided."""
    try:
        conv = match(func)
    except NotAWindow:
        return None
    images, height, width, _ = conv.extents
    known = {"filters": conv.filters, "channels": conv.channels, "taps": conv.taps}
    if int(conv.weight.shape[1]) > conv.taps:
        known["winograd"] = 1
    extents = {"images": images, "height": height, "width": width, **{k: emit.const(v) for k, v in known.items()}}
    usual = PanelTile.of_columns(conv.columns, conv.dtype, target)
    return Space(tuple(usual.candidates(target)), extents, (usual,))


def body(conv: LastConv, tile: PanelTile, target: Target) -> Stmt:
    """Winograd's algorithm where the weights are there and the map fills its tiles, else the sums as they are.

    What is left for the latter are maps of a few pixels then, on one core.
    """
    if int(conv.weight.shape[1]) == conv.taps:
        return channels_last_direct.kernel(conv, tile, enough_sums(conv.sums), target)
    direct = channels_last_direct.kernel(conv, tile, False, target)
    return emit.when(winograd.pays(conv), winograd.kernel(conv, tile, target), direct)


def match(func: PrimFunc) -> LastConv:
    """Raises `NotAWindow` for every other form."""
    sch = Schedule(func)
    blocks = [sch.get(block) for block in leaf_blocks(sch)]
    reductions = [block for block in blocks if is_reduction(block)]
    if len(reductions) != 1 or len(stores(reductions[0].body)) != 1:
        raise NotAWindow
    main, at = reductions[0], blocks.index(reductions[0])
    spatial = [iv for iv in main.iter_vars if iv.iter_type == IterVar.DataPar]
    reduction = [iv for iv in main.iter_vars if iv.iter_type != IterVar.DataPar]
    value = stores(main.body)[0].value
    if [len(spatial), len(reduction)] != [4, 3] or not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        raise NotAWindow
    load, weight = value.b.a, value.b.b
    if len(loads(load)) != 1 or not loads(load)[0].same_as(load) or len(loads(weight)) != 1:
        raise NotAWindow
    n, y, x, f = spatial
    ry, rx, c = reduction
    if len(load.indices) != 4 or not load.indices[0].same_as(n.var) or not load.indices[3].same_as(c.var):
        raise NotAWindow
    params = list(func.params)
    data, before, pad_value = unpad(load.source, blocks[:at], params)
    if pad_value is not None and float(pad_value.value) != 0.0:
        raise NotAWindow
    axes = [_axis(load, data, before, dim, o, r) for dim, o, r in ((1, y, ry), (2, x, rx))]
    columns = _columns(weight, f, (ry, rx, c), axes[1].kernel)
    filters, channels, dtype = as_int(f.dom.extent), as_int(c.dom.extent), str(stores(main.body)[0].buffer.dtype)
    if filters is None or channels is None or dtype not in ("float32", "float64") or str(data.dtype) != dtype:
        raise NotAWindow
    result, epilogue = parse_epilogue(main, blocks[at + 1 :], params)
    extents = tuple(iv.dom.extent for iv in spatial)
    return LastConv(data, weight.source, tuple(axes), extents, channels, filters, columns, dtype, result, epilogue)


def _axis(load, data: Buffer, before: list[int], dim: int, o: IterVar, r: IterVar) -> Axis:
    kernel = as_int(r.dom.extent)
    after = as_int(emit.simplify(load.source.shape[dim] - data.shape[dim] - before[dim]))
    if kernel is None or after is None or before[0] or before[3]:
        raise NotAWindow
    stride, dilation = slopes(load.indices[dim], o.var, r.var)
    return Axis(data.shape[dim], o.dom.extent, kernel, stride, dilation, before[dim], after)


def _columns(weight, f: IterVar, reduction: tuple[IterVar, IterVar, IterVar], kernel: int) -> int:
    """Width of the panels that weights are packed in."""
    columns = as_int(weight.source.shape[3]) if len(weight.indices) == 4 else None
    if columns is None:
        raise NotAWindow
    analyzer = sym.Analyzer()
    for iv in (f, *reduction):
        analyzer.bind(iv.var, iv.dom)
    ry, rx, c = (iv.var for iv in reduction)
    expected = [f.var // columns, ry * kernel + rx, c, f.var % columns]
    if not all(analyzer.can_prove_equal(a, b) for a, b in zip(weight.indices, expected, strict=True)):
        raise NotAWindow
    return columns
