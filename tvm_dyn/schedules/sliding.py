"""Windows over one channel at a time: depthwise convolutions and pooling, 1-D to 3-D, with what follows them.

A task copies its channel of one image, padded, into a plane in cache (see `planes`), then slides over it:
each vector of neighbouring outputs combines one vector per tap, with the function's own combination.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import Buffer, PrimFunc, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import as_int, stores, substitute, uses_var
from tvm_dyn.schedules.planes import Planes
from tvm_dyn.schedules.window import NotAWindow, Window, parse

_MAX_WRITTEN_OUT_TAPS = 9


@dataclass(frozen=True)
class Sliding:
    """A window whose reduction runs over taps only."""

    window: Window
    dtype: str
    lanes: int

    @property
    def rank(self) -> int:
        return len(self.window.axes)

    @property
    def padding(self) -> Expr:
        return self.window.pad_value if self.window.pad_value is not None else tirx.const(0, self.dtype)

    def source_channel(self, f: Expr) -> Expr:
        """The data channel behind output channel ``f``."""
        return substitute(self.window.load.indices[1], self._bindings(f))

    def initial(self) -> Expr:
        return stores(self.window.block.init)[0].value

    def combine(self, acc: Expr, element: Expr, n: Expr, f: Expr, tap: list[Expr]) -> Expr:
        """The reduction's update with its three inputs put in place."""
        store = stores(self.window.block.body)[0]

        def replace(load: TensorLoad) -> Expr:
            if load.source.same_as(store.buffer):
                return acc
            return element if load.source.same_as(self.window.load.source) else load

        bindings = self._bindings(f) | dict(zip(self.window.reduction[-self.rank :], tap, strict=True))
        bindings[self.window.spatial[0]] = n
        # Bound before the inputs go in, as those have variables of their own.
        return tvm_ffi.structural_map(substitute(store.value, bindings), (TensorLoad, replace))

    def uniform(self) -> bool:
        """Whether the epilogue does the same to all elements of a row, and leaves their type."""
        at = [tirx.Var(f"y{n}", "int64") for n in range(self.rank + 2)]
        same_type = str(self.window.result.dtype) == self.dtype
        return same_type and not uses_var(self.window.epilogue(tirx.const(0, self.dtype), list(at)), at[-1:])

    def _bindings(self, f: Expr) -> dict:
        channels = self.window.reduction[: -self.rank]
        return {self.window.spatial[1]: f} | {r: emit.const(0) for r in channels}


def match(window: Window, target: Target) -> Sliding:
    """Read a window as one that slides over single channels. Raises `NotAWindow` when it is none."""
    rank = len(window.axes)
    channels = window.extents[rank + 2 : -rank]
    store = stores(window.block.body)[0]
    dtype = str(store.buffer.dtype)
    if (
        any(as_int(extent) != 1 for extent in channels)
        or not window.load.indices[0].same_as(window.spatial[0])
        or uses_var(window.load.indices[1], [window.spatial[0], *window.spatial[2:], *window.reduction[-rank:]])
        or str(window.data.dtype) != dtype
        or uses_var(stores(window.block.init)[0].value, window.spatial)
        or any(uses_var(load.indices, window.spatial[2:]) for load in _other_loads(window))
    ):
        raise NotAWindow
    return Sliding(window, dtype, hardware.lanes(target, dtype))


def _other_loads(window: Window) -> list[TensorLoad]:
    store = stores(window.block.body)[0]
    mine = (store.buffer, window.load.source)
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(store.value, (TensorLoad, lambda load: found.append(load)))
    return [load for load in found if not any(load.source.same_as(buffer) for buffer in mine)]


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    try:
        sliding = match(parse(func), target)
    except NotAWindow:
        return None
    return emit.kernel(func, _channels(sliding))


def _channels(sliding: Sliding) -> Stmt:
    window = sliding.window
    batch, channels = window.extents[:2]
    pitches = Planes.pitches(window.axes)
    single = as_int(emit.simplify(batch * channels)) == 1
    whole = Planes(window.axes, None, pitches, slack=sliding.lanes)

    def each(*pitches: Expr) -> Stmt:
        layout = Planes(window.axes, None, list(pitches), slack=sliding.lanes)

        def channel(plane: Expr, n: Expr, f: Expr) -> Stmt:
            def steps(buffer: Buffer) -> Stmt:
                padded = emit.rows_of(buffer, plane)
                return emit.seq(
                    _copy(sliding, layout, padded, n, sliding.source_channel(f)),
                    _slide(sliding, layout, padded, n, f),
                )

            # a loop of one task is no loop: the buffer lives in the function, ahead of what is bound in it
            size = whole.plane(whole.rows) if single else plane
            return emit.scratch([([layout.phases * size], sliding.dtype)], steps)

        def tasks(plane: Expr) -> Stmt:
            return emit.parallel(
                batch * channels,
                lambda index: emit.bind(emit.unflatten(index, [batch, channels]), lambda n, f: channel(plane, n, f)),
            )

        return emit.bind([layout.plane(layout.rows)], tasks)

    # as names of their own: where a pitch is an extent itself, TVM fails to bound the rows of the buffer
    return emit.bind(pitches, each, rename=True)


def _copy(sliding: Sliding, layout: Planes, padded: emit.At, n: Expr, channel: Expr) -> Stmt:
    data = sliding.window.data

    def row(phase: Expr, row: Expr) -> Stmt:
        return emit.bind(
            [row * layout.pitch],
            lambda start: layout.fill_row(
                lambda _, *at: data[(n, channel, *at)],
                lambda p, x, value: emit.store_at(padded(p, start, lane=x), value),
                phase,
                row,
                sliding.lanes,
                sliding.padding,
            ),
        )

    rows = layout.stored_rows(layout.rows)
    return emit.serial(layout.outer_phases, lambda phase: emit.serial(rows, lambda r: row(phase, r), "row"), "phase")


def _slide(sliding: Sliding, layout: Planes, padded: emit.At, n: Expr, f: Expr) -> Stmt:
    window = sliding.window

    def line(row: Expr) -> Stmt:
        def write(outer: list[Expr]) -> Stmt:
            def vector(acc: Buffer, first: Expr) -> Stmt:
                return emit.bind(
                    [row * layout.pitch + first],
                    lambda start: _combine_taps(sliding, layout, padded, acc, n, f, start),
                )

            def store(acc: Buffer, first: Expr, j: Expr) -> Stmt:
                at = [n, f, *outer, first + j]
                return tirx.BufferStore(window.result, window.epilogue(acc[j], at), at)

            def wide(width: Expr) -> Stmt:
                def piece(acc: Buffer, first: Expr) -> Stmt:
                    return emit.seq(
                        vector(acc, first),
                        emit.vectorized(sliding.lanes, lambda j: store(acc, first, j)),
                    )

                def at(index: Expr) -> Stmt:
                    first = tirx.min(index * sliding.lanes, width - sliding.lanes)
                    return _with_acc(sliding, lambda acc: emit.bind([first], lambda first: piece(acc, first)))

                return emit.serial(emit.ceildiv(width, sliding.lanes), at)

            def narrow(width: Expr) -> Stmt:
                zero = emit.const(0)

                def piece(acc: Buffer) -> Stmt:
                    if not sliding.uniform():
                        return emit.seq(vector(acc, zero), emit.chunks(width, step, lambda x: store(acc, zero, x)))
                    at = [n, f, *outer, zero]
                    return emit.seq(
                        vector(acc, zero),
                        emit.vectorized(sliding.lanes, lambda j: emit.store(acc, window.epilogue(acc[j], at), j)),
                        emit.chunks(width, step, lambda x: emit.store(window.result, acc[x], n, f, *outer, x)),
                    )

                step = max(sliding.lanes // 4, 1)
                return _with_acc(sliding, piece)

            return emit.bind(
                [window.axes[-1].out_extent],
                lambda width: emit.when(width >= sliding.lanes, wide(width), narrow(width)),
            )

        return layout.output_row(row, lambda _, outer: write(outer))

    return emit.serial(layout.rows, line, "row")


def _with_acc(sliding: Sliding, body: Callable[[Buffer], Stmt]) -> Stmt:
    return emit.scratch([([sliding.lanes], sliding.dtype)], body)


def _combine_taps(
    sliding: Sliding, layout: Planes, padded: emit.At, acc: Buffer, n: Expr, f: Expr, start: Expr
) -> Stmt:
    """One vector of outputs: the last axis's taps in one expression, the others in loops."""
    *outer, last = [axis.kernel for axis in sliding.window.axes]

    def row_of_taps(tap: list[Expr]) -> Stmt:
        def update(ks: list[Expr]) -> Stmt:
            def element(j: Expr) -> Stmt:
                value = acc[j]
                for k in ks:
                    phase, offset = layout.tap([*tap, k])
                    value = sliding.combine(value, emit.load(*padded(phase, start + offset, lane=j)), n, f, [*tap, k])
                return tirx.BufferStore(acc, value, [j])

            return emit.vectorized(sliding.lanes, element)

        if last <= _MAX_WRITTEN_OUT_TAPS:
            return update([emit.const(k) for k in range(last)])
        return emit.serial(last, lambda k: update([k]), "k")

    def loops(extents: list[int], tap: list[Expr]) -> Stmt:
        if not extents:
            return row_of_taps(tap)
        if extents[0] <= _MAX_WRITTEN_OUT_TAPS:
            return emit.seq(*[loops(extents[1:], [*tap, emit.const(k)]) for k in range(extents[0])])
        return emit.serial(extents[0], lambda k: loops(extents[1:], [*tap, k]), "k")

    initial = emit.vectorized(sliding.lanes, lambda j: tirx.BufferStore(acc, sliding.initial(), [j]))
    return emit.seq(initial, loops(outer, []))
