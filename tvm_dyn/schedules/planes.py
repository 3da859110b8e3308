"""Padded copies of an input as planes of rows that follow one another (see `conv`)."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import sym, tirx
from tvm.ir import Expr
from tvm.ir.prim import Shuffle
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.tasks import enough_elements, tasks
from tvm_dyn.schedules.window import Axis

_WRITTEN_OUT_PHASES = 4


class Planes:
    """Layout ``[channel][phase][row * pitch + x]`` of a padded input; rows run over (image, outer axes).

    With stride 1 the zeros after a row are the zeros in front of the next one: the pitch is the row plus the
    larger of its two paddings, and the same holds for the rows of an image and for images. With a larger
    stride s an axis is split into s phases (every s-th element), and every row holds all its windows read.
    """

    def __init__(self, axes: list[Axis], batch: Expr | None, pitches: list[Expr], slack: int):
        """``pitches`` are the values of `pitches`, bound to variables; ``slack`` elements may be read past
        the end.

        Without a ``batch`` the planes hold one image, and rows are cheaper to tell apart.
        """
        self._axes = axes
        self._slack = slack
        self._several = batch is not None or len(axes) == 1
        self._batch = batch if batch is not None else emit.const(1)
        self._outer_pitches = pitches[:-1]
        self.pitch = pitches[-1]
        self.phases = math.prod(axis.stride for axis in axes)
        self.outer_phases = self.phases // axes[-1].stride
        self.rows = emit.product([self._batch, *pitches[:-1]])
        self.halo = self._rows_between([axis.reach for axis in axes[:-1]])

    @staticmethod
    def pitches(axes: list[Axis]) -> list[Expr]:
        """Distance of neighbours on the axis outside of each axis, in elements of that axis."""
        simplify = sym.Analyzer().simplify
        return [
            simplify(tirx.max(axis.in_extent + max(axis.before, axis.after), axis.out_extent))
            if axis.stride == 1
            else simplify(axis.out_extent + axis.reach)
            for axis in axes
        ]

    def _rows_between(self, steps: list) -> Expr:
        """Rows from a window's first row to the row ``steps`` further along the outer axes."""
        offset: Expr = emit.const(0)
        for step, pitch in zip(steps, self._outer_pitches, strict=True):
            offset = offset * pitch + step
        return offset

    def _coordinates(self, row: Expr) -> list[Expr]:
        """Image and outer coordinates of a row; rows below a single image lie beyond its first axis."""
        if self._several:
            return emit.unflatten(row, [self._batch, *self._outer_pitches])
        return [emit.const(0), *emit.unflatten(row, self._outer_pitches)]

    def tap(self, tap: list[Expr]) -> tuple[Expr, Expr]:
        """(phase, offset in elements) of a tap."""
        phase: Expr = emit.const(0)
        steps = []
        for axis, k in zip(self._axes, tap, strict=True):
            position = k * axis.dilation
            phase = phase * axis.stride + tirx.floormod(position, axis.stride)
            steps.append(tirx.floordiv(position, axis.stride))
        return phase, self._rows_between(steps[:-1]) * self.pitch + steps[-1]

    def stored_rows(self, height: Expr) -> Expr:
        """Rows to copy for ``height`` rows of outputs; the last row's right padding is the left one of a row
        more.
        """
        last = self._axes[-1]
        spill = int(last.stride == 1 and min(last.before, last.after) > 0)
        return height + (self.halo + spill)

    def plane(self, height: Expr) -> Expr:
        """Elements of a plane."""
        return self.stored_rows(height) * self.pitch + (self._axes[-1].reach + self._slack)

    def line(self, height: Expr) -> Expr:
        """Elements of ``height`` rows of outputs."""
        return height * self.pitch + self._slack

    def output_row(self, row: Expr, body: Callable[[Expr, list[Expr]], Stmt]) -> Stmt:
        """``body(image, outer coordinates)`` where ``row`` is a row of the output rather than one between
        images.
        """

        def checked(image: Expr, *outer: Expr) -> Stmt:
            valid = [y < axis.out_extent for y, axis in zip(outer, self._axes, strict=False)]
            stmt = body(image, list(outer))
            return emit.when(tirx.all(*valid), stmt) if valid else stmt

        return emit.bind(self._coordinates(row), checked)

    def fill(
        self, data: Buffer, padded: emit.At, first: Expr, height: Expr, lanes: int, zero: Expr, target: Target
    ) -> Stmt:
        """Copy the rows that outputs in rows ``first`` .. ``first + height`` of all channels read."""
        channels = data.shape[1]

        def each(count: Expr) -> Stmt:
            def task(c: Expr, phase: Expr, row: Expr) -> Stmt:
                return emit.bind(
                    [row * self.pitch],
                    lambda start: self.fill_row(
                        lambda image, *at: data[(image, c, *at)],
                        lambda p, x, value: emit.store_at(padded(c, p, start, lane=x), value),
                        phase,
                        first + row,
                        lanes,
                        zero,
                    ),
                )

            where = [channels, self.outer_phases, count]
            rows = count * (channels * self.outer_phases)
            return tasks(
                enough_elements(rows * self.pitch, str(data.dtype)),
                rows,
                lambda index: emit.bind(emit.unflatten(index, where), task),
                target,
            )

        return emit.bind([self.stored_rows(height)], each)

    def fill_row(
        self,
        load: Callable[..., Expr],
        store: Callable[[Expr, Expr, Expr], Stmt],
        outer_phase: Expr,
        row: Expr,
        lanes: int,
        zero: Expr,
    ) -> Stmt:
        """Copy one padded row of one phase of the outer axes: ``load(image, *coordinates)`` to
        ``store(phase, x, _)``.
        """
        outer, last = self._axes[:-1], self._axes[-1]

        def copy(image: Expr, *steps: Expr) -> Stmt:
            phases = emit.unflatten(outer_phase, [emit.const(axis.stride) for axis in outer]) if outer else []
            at = [p + y * axis.stride - axis.before for p, y, axis in zip(phases, steps, outer, strict=True)]
            return emit.bind(at, lambda *at: copy_from(image, *at))

        def copy_from(image: Expr, *at: Expr) -> Stmt:
            inside = [image < self._batch]
            for y, axis in zip(at, outer, strict=True):
                inside += [y >= 0, y < axis.in_extent]

            def phase_store(p: Expr) -> Callable[[Expr, Expr], Stmt]:
                return lambda x, value: store(outer_phase * last.stride + p, x, value)

            def rows(make: Callable[[Expr], Stmt]) -> Stmt:
                if last.stride > _WRITTEN_OUT_PHASES:
                    return emit.serial(last.stride, make, "p")
                return emit.seq(*[make(emit.const(p)) for p in range(last.stride)])

            return emit.when(
                tirx.all(*inside),
                rows(lambda p: self._copy_row(p, phase_store(p), lambda x: load(image, *at, x), lanes, zero)),
                rows(lambda p: emit.chunks(self.pitch, lanes, lambda x: phase_store(p)(x, zero))),
            )

        return emit.bind(self._coordinates(row), copy)

    def _copy_row(self, phase: Expr, store, load, lanes: int, zero: Expr) -> Stmt:
        """One row: zeros, elements ``phase + i * stride - before`` of the source, zeros."""
        axis = self._axes[-1]
        lead = sym.Analyzer().simplify(axis.before - phase)
        left, end = lead, axis.in_extent + lead
        if axis.stride > 1:
            left = sym.Analyzer().simplify(
                tirx.max(tirx.floordiv(lead + (axis.stride - 1), axis.stride), emit.const(0))
            )
            end = tirx.max(tirx.min(tirx.floordiv(end + (axis.stride - 1), axis.stride), self.pitch), left)

        def copy(left: Expr, end: Expr) -> Stmt:
            def middle(source: Expr, length: Expr) -> Stmt:
                if axis.stride == 2:
                    return emit.pieces(
                        length,
                        lanes,
                        lambda x, width: store(emit.span(left + x, width), evens(source, x, width)),
                    )
                return emit.chunks(length, lanes, lambda x: store(left + x, load(x * axis.stride + source)))

            def evens(source: Expr, x: Expr, width: int) -> Expr:
                # Two neighbouring vectors, the second so that it ends with the last element wanted.
                start = x * 2 + source
                if width == 1:
                    return load(start)
                vectors = [load(emit.span(start, width)), load(emit.span(start + (width - 1), width))]
                lanes_wanted = [i if i < width else i + 1 for i in range(0, 2 * width, 2)]
                return Shuffle(vectors, [tirx.const(i, "int32") for i in lanes_wanted])

            return emit.seq(
                emit.serial(left, lambda x: store(x, zero), "x"),
                emit.bind([left * axis.stride - lead, end - left], middle),
                emit.serial(self.pitch - end, lambda x: store(end + x, zero), "x"),
            )

        return emit.bind([left, end], copy)
