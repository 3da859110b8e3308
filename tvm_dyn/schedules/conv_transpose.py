"""Transposed convolutions, 1-D to 3-D, with groups, strides and output padding.

TVM defines them as a convolution over a copy of the input with ``stride - 1`` zeros between its elements,
nearly all of the work being for zeros. Here outputs are split by their residue modulo the stride: those of
one residue are an ordinary convolution of stride 1 with every stride-th tap, so residues become groups of
filters of one product (see `tiles`) over weights that are sorted by residue first.

With ``p`` zeros in front of the spread input, output ``y = s*q + a`` reads element ``q + base(a) + t`` at
tap ``first(a) + s*t`` of the (flipped) kernel, where ``first(a) = (p - a) mod s`` and
``base(a) = (a + first(a) - p) / s``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import Buffer, PrimFunc, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import as_int, is_reduction, leaf_blocks, loads, stores, substitute
from tvm_dyn.schedules.planes import Planes
from tvm_dyn.schedules.tasks import enough_elements, tasks
from tvm_dyn.schedules.tiles import Product, Tile, staged
from tvm_dyn.schedules.window import Axis, Epilogue, NotAWindow, parse_epilogue, unpad


@dataclass(frozen=True)
class SpreadAxis:
    """One spatial axis: ``before`` zeros, then the input with ``stride - 1`` zeros between neighbours."""

    in_extent: Expr
    out_extent: Expr
    kernel: int
    stride: int
    before: int

    @property
    def taps(self) -> int:
        """Taps per residue; if the stride does not divide the kernel some lie beyond it and weigh nothing."""
        return -(-self.kernel // self.stride)

    def base(self, residue: int) -> int:
        return (residue + (self.before - residue) % self.stride - self.before) // self.stride

    @property
    def lowest(self) -> int:
        """The smallest base, zero or less."""
        return min(self.base(a) for a in range(self.stride))

    def first_tap(self, residue: Expr) -> Expr:
        return tirx.truncmod(emit.const(self.before + self.stride) - residue, emit.const(self.stride))

    def shift(self, residue: Expr) -> Expr:
        """``base(residue) - lowest``."""
        position = residue + self.first_tap(residue) - (self.before + self.lowest * self.stride)
        return emit.quotient(position, self.stride)

    def steps(self) -> Expr:
        """Outputs of the first residue, the largest number any has."""
        return emit.simplify(tirx.floordiv(self.out_extent + (self.stride - 1), self.stride))

    def window(self) -> Axis:
        """The input as the convolutions of all residues read it."""
        reach = max(self.base(a) for a in range(self.stride)) + self.taps - 1 - self.lowest
        steps = self.steps()
        after = as_int(emit.simplify(steps + reach + self.lowest - self.in_extent))
        if after is None:
            raise NotAWindow
        return Axis(self.in_extent, steps, reach + 1, 1, 1, -self.lowest, max(after, 0))


@dataclass(frozen=True)
class Transposed:
    """``weight[group * channels + c, f % per_group, tap]``, the kernel not yet flipped."""

    data: Buffer
    weight: Buffer
    axes: list[SpreadAxis]
    batch: Expr
    filters: int
    channels: int
    dtype: str
    result: Buffer
    epilogue: Epilogue

    @property
    def strides(self) -> list[int]:
        return [axis.stride for axis in self.axes]

    @property
    def residues(self) -> int:
        count = 1
        for stride in self.strides:
            count *= stride
        return count

    @property
    def groups(self) -> int:
        return int(self.data.shape[1]) // self.channels

    @property
    def taps(self) -> list[int]:
        return [axis.taps for axis in self.axes]

    def product(self, sorted_weight: emit.At) -> Product:
        def place(planes: Planes, group: Expr, tap: list[Expr]) -> tuple[Expr, Expr]:
            residue = emit.unflatten(emit.quotient(group, self.groups), self.strides)
            steps = [axis.shift(a) + t for axis, a, t in zip(self.axes, residue, tap, strict=True)]
            return planes.tap(steps)

        return Product(
            data=self.data,
            axes=[axis.window() for axis in self.axes],
            batch=self.batch,
            dtype=self.dtype,
            filters=self.residues * self.filters,
            groups=self.residues * self.groups,
            channels=self.channels,
            taps=self.taps,
            weight=lambda f, c, tap: emit.load(*sorted_weight(f, c, *tap)),
            source=lambda group, c: tirx.truncmod(group, emit.const(self.groups)) * self.channels + c,
            place=place,
        )


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    try:
        conv = match(func)
    except NotAWindow:
        return None

    def body(buffer: Buffer) -> Stmt:
        weights = emit.rows_of(buffer, conv.channels, *conv.taps)
        product = conv.product(weights)
        tile = Tile.choose(product.per_group, conv.dtype, target)
        return emit.seq(
            _sort_weights(conv, weights, target),
            staged(product, tile, target, lambda *band: _write_rows(conv, target, *band)),
        )

    size = conv.residues * conv.filters * conv.channels
    for taps in conv.taps:
        size *= taps
    return emit.kernel(func, emit.scratch([([size], conv.dtype)], body))


def match(func: PrimFunc) -> Transposed:
    """Read a function as a transposed convolution. Raises `NotAWindow` when it is none."""
    sch = Schedule(func)
    blocks = [sch.get(block) for block in leaf_blocks(sch)]
    reductions = [block for block in blocks if is_reduction(block)]
    if len(reductions) != 1:
        raise NotAWindow
    main = reductions[0]
    at = blocks.index(main)
    data_load, kernel_load = _operands(main)
    made = {store.buffer: block for block in blocks[:at] for store in stores(block.body)}
    if len(made) != 3 or at != 3:
        raise NotAWindow
    pad, kernel = _producer(made, data_load.source), _producer(made, kernel_load.source)
    spread = loads(stores(pad.body)[0].value)[0].source
    spread, before, zero = unpad(data_load.source, [pad], [spread])
    if zero is not None and float(zero.value) != 0.0:
        raise NotAWindow
    data, strides = _unspread(_producer(made, spread))
    result, epilogue = parse_epilogue(main, blocks[at + 1 :], list(func.params))
    spatial = [iv for iv in main.iter_vars if iv.iter_type == tirx.IterVar.DataPar]
    reduction = [iv for iv in main.iter_vars if iv.iter_type != tirx.IterVar.DataPar]
    axes = [
        SpreadAxis(extent, y.dom.extent, int(r.dom.extent), stride, b)
        for extent, y, r, stride, b in zip(
            data.shape[2:], spatial[2:], reduction[1:], strides[2:], before[2:], strict=True
        )
    ]
    filters, channels = as_int(spatial[1].dom.extent), as_int(reduction[0].dom.extent)
    dtype = str(data.dtype)
    if filters is None or channels is None or dtype not in ("float32", "float64") or any(before[:2]):
        raise NotAWindow
    conv = Transposed(
        data, _flipped(kernel, axes), axes, spatial[0].dom.extent, filters, channels, dtype, result, epilogue
    )
    if not all(any(buffer.same_as(param) for param in func.params) for buffer in (conv.data, conv.weight)):
        raise NotAWindow
    _check_reads(conv, data_load, kernel_load, spatial, reduction)
    return conv


def _operands(main: s_tir.SBlock) -> tuple[TensorLoad, TensorLoad]:
    value = stores(main.body)[0].value
    operands = [value.b.a, value.b.b] if isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul) else []
    if len(operands) != 2 or not all(isinstance(operand, TensorLoad) for operand in operands):
        raise NotAWindow
    return operands[0], operands[1]


def _producer(made: dict, buffer: Buffer) -> s_tir.SBlock:
    for written, block in made.items():
        if written.same_as(buffer):
            return block
    raise NotAWindow


def _unspread(block: s_tir.SBlock) -> tuple[Buffer, list[int]]:
    """The input behind the block that puts zeros between its elements, and the stride of each axis."""
    value = stores(block.body)[0].value
    load = value if isinstance(value, TensorLoad) else value.args[1]
    if not isinstance(load, TensorLoad) or (load is not value and float(value.args[2].value) != 0.0):
        raise NotAWindow
    strides = []
    for iv, index in zip(block.iter_vars, load.indices, strict=True):
        if index.same_as(iv.var):
            strides.append(1)
        elif isinstance(index, tirx.FloorDiv) and index.a.same_as(iv.var) and as_int(index.b):
            strides.append(as_int(index.b))
        else:
            raise NotAWindow
    return load.source, strides


def _flipped(block: s_tir.SBlock, axes: list[SpreadAxis]) -> Buffer:
    """The weights behind the block that flips the kernel and swaps its first two axes."""
    store = stores(block.body)[0]
    load = store.value
    if not isinstance(load, TensorLoad):
        raise NotAWindow
    out, of, *taps = store.indices
    expected = [of, out, *[axis.kernel - 1 - tap for axis, tap in zip(axes, taps, strict=True)]]
    if not all(_equal(index, want) for index, want in zip(load.indices, expected, strict=True)):
        raise NotAWindow
    return load.source


def _equal(a: Expr, b: Expr) -> bool:
    return as_int(emit.simplify(a - b)) == 0


def _check_reads(conv: Transposed, data: TensorLoad, kernel: TensorLoad, spatial: list, reduction: list) -> None:
    """It has to read ``data[n, channel, y + r]`` and ``kernel[f % per_group, channel, r]``."""
    taps = [r.var for r in reduction[1:]]
    reads = [data.indices[0] - spatial[0].var]
    reads += [index - y.var - r for index, y, r in zip(data.indices[2:], spatial[2:], taps, strict=True)]
    reads += [index - r for index, r in zip(kernel.indices[2:], taps, strict=True)]
    if conv.filters % conv.groups or any(as_int(emit.simplify(read)) != 0 for read in reads):
        raise NotAWindow
    per_group = conv.filters // conv.groups
    for f in range(conv.filters):
        where = {spatial[1].var: emit.const(f), reduction[0].var: emit.const(0)}
        found = [data.indices[1], kernel.indices[1], kernel.indices[0]]
        values = [as_int(emit.simplify(substitute(index, where))) for index in found]
        channel = f // per_group * conv.channels
        if values != [channel, channel, f % per_group]:
            raise NotAWindow


def _sort_weights(conv: Transposed, weights: emit.At, target: Target) -> Stmt:
    """``weights[residue*filters + f, c, t]``: flipped tap ``first(residue) + stride*t``, or zero."""
    per_group = conv.filters // conv.groups

    def task(residue: Expr, group: Expr, member: Expr) -> Stmt:
        remainders = emit.unflatten(residue, conv.strides)
        f = (residue * conv.groups + group) * per_group + member

        def fill(c: Expr, tap: list[Expr]) -> Stmt:
            taps = [axis.first_tap(a) + t * axis.stride for axis, a, t in zip(conv.axes, remainders, tap, strict=True)]
            inside = tirx.all(*[r < axis.kernel for r, axis in zip(taps, conv.axes, strict=True)])
            flipped = [axis.kernel - 1 - r for r, axis in zip(taps, conv.axes, strict=True)]
            value = conv.weight[(group * conv.channels + c, member, *flipped)]
            zero = tirx.const(0.0, conv.dtype)
            return emit.store_at(weights(f, c, *tap), tirx.if_then_else(inside, value, zero))

        def loops(extents: list[int], tap: list[Expr], c: Expr) -> Stmt:
            if not extents:
                return fill(c, tap)
            return emit.serial(extents[0], lambda t: loops(extents[1:], [*tap, t], c), "t")

        return emit.serial(conv.channels, lambda c: loops(conv.taps, [], c), "c")

    where = [conv.residues, conv.groups, per_group]
    weight = math.prod(int(extent) for extent in conv.weight.shape)
    return tasks(
        weight >= hardware.PARALLEL_MIN_BYTES // hardware.dtype_bytes(conv.dtype),
        emit.const(conv.residues * conv.filters),
        lambda index: emit.bind(emit.unflatten(index, where), task),
        target,
    )


def _write_rows(conv: Transposed, target: Target, layout: Planes, sums: emit.At, first: Expr, count: Expr) -> Stmt:
    """Rows of sums, one per residue, to interleaved rows of the result, through the epilogue."""
    *outer_axes, last = conv.axes
    outer_residues = conv.residues // last.stride

    def write(f: Expr, row: Expr, residue: Expr) -> Stmt:
        remainders = emit.unflatten(residue, conv.strides[:-1]) if outer_axes else []

        def line(n: Expr, steps: list[Expr]) -> Stmt:
            at = [q * axis.stride + a for q, a, axis in zip(steps, remainders, outer_axes, strict=True)]
            inside = tirx.all(*[y < axis.out_extent for y, axis in zip(at, outer_axes, strict=True)], tirx.const(True))
            return emit.when(inside, emit.bind(at, lambda *at: interleave(n, list(at))))

        def interleave(n: Expr, at: list[Expr]) -> Stmt:
            def element(q: Expr, a: int) -> Stmt:
                filter_row = (residue * last.stride + a) * conv.filters + f
                value = emit.load(*sums(filter_row, row * layout.pitch, lane=q))
                where = [n, f, *at, q * last.stride + a]
                return emit.store(conv.result, conv.epilogue(value, where), *where)

            def outputs(full: Expr, rest: Expr) -> Stmt:
                # LLVM vectorizes this one: it turns stores to every stride-th element into shuffles.
                whole = emit.serial(full, lambda q: emit.seq(*[element(q, a) for a in range(last.stride)]), "q")
                return emit.seq(whole, *[emit.when(rest > a, element(full, a)) for a in range(last.stride - 1)])

            full = tirx.floordiv(last.out_extent, last.stride)
            return emit.bind([full, last.out_extent - full * last.stride], outputs)

        return layout.output_row(first + row, line)

    where = [conv.filters, count, outer_residues]
    rows = count * (conv.filters * outer_residues)
    return tasks(
        enough_elements(rows * layout.pitch * last.stride, conv.dtype),
        rows,
        lambda index: emit.bind(emit.unflatten(index, where), write),
        target,
    )
