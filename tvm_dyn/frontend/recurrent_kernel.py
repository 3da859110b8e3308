"""The compiled loop of a recurrent operator: one PrimFunc that walks over time for a few batch rows at once.

    for task in parallel(directions * row blocks):
        state = initial state of up to 4 rows
        for step in time:                           # forwards, or backwards from each row's own length
            gates = state @ R                       # register tiles over the gate columns; R packed in column panels
            state = cell(gates + projected input)   # vectors over the hidden units
            Y[step] = state

The projection of all inputs is one matrix product ahead of this kernel. Hidden units are padded to whole vectors:
padded columns of the weights are zero and no padded unit is ever read as an input of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import s_tir, tirx

from tvm_dyn.frontend.recurrent_cell import VECTOR, Cell, panel_width
from tvm_dyn.schedules import emit

_TILE_ROWS = 4
_Scalar = Callable[[Any], Any]


def build(cell: Cell) -> tirx.PrimFunc:
    """The PrimFunc of a cell over symbolic time and batch.

    Parameters, all float32 but `lengths` (int32); width = padded hidden units, D = directions:
    projected (time, batch, D * gates * width); one recurrence (D, panels, hidden, panel width) per gate group;
    start (D, 1 * width) the recurrent bias of GRU's late reset; peephole (D, 3 * width); lengths (batch);
    h0, c0 (D, batch, hidden); then the results Y (time, D, batch, hidden), Y_h and for LSTM Y_c (D, batch, hidden).
    """
    return _Emitter(cell).function()


class _Emitter:
    def __init__(self, cell: Cell):
        self.cell = cell
        self.time, self.batch = tirx.Var("time", "int64"), tirx.Var("batch", "int64")
        size, hidden, width = cell.directions, cell.hidden, cell.width
        state = [size, self.batch, hidden]
        self.projected = _buffer("projected", [self.time, self.batch, size * cell.gates * width])
        self.recurrence = []
        for number, gates in enumerate(cell.gate_groups):
            panel = panel_width(gates, width)
            self.recurrence.append(_buffer(f"recurrence{number}", [size, gates * width // panel, hidden, panel]))
        self.start = _buffer("start", [size, width]) if cell.late_reset else None
        self.peephole = _buffer("peephole", [size, 3 * width]) if cell.peephole else None
        self.lengths = _buffer("lengths", [self.batch], "int32") if cell.has_lengths else None
        self.h0 = _buffer("h0", state) if cell.has_h0 else None
        self.c0 = _buffer("c0", state) if cell.has_c0 else None
        self.y = _buffer("y", [self.time, *state])
        self.finals = [_buffer("y_h", state)] + ([_buffer("y_c", state)] if cell.kind == "LSTM" else [])

    def function(self) -> tirx.PrimFunc:
        optional = [self.start, self.peephole, self.lengths, self.h0, self.c0]
        inputs = [self.projected, *self.recurrence, *(b for b in optional if b is not None)]
        blocks = emit.ceildiv(self.batch, _TILE_ROWS)

        def task(index: Any) -> tirx.Stmt:
            row = tirx.truncmod(index, blocks) * _TILE_ROWS
            body = self._rows(self.cell.directions - 1, row)
            for direction in reversed(range(self.cell.directions - 1)):
                body = tirx.IfThenElse(index < blocks * (direction + 1), self._rows(direction, row), body)
            return body

        body = emit.parallel(blocks * self.cell.directions, task)
        root = s_tir.SBlockRealize([], tirx.const(True, "bool"), s_tir.SBlock([], [], [], "root", body))
        func = tirx.PrimFunc([*inputs, self.y, *self.finals], root)
        return func.with_attr({"op_pattern": 8, "tirx.noalias": True})

    def _rows(self, direction: int, first: Any) -> tirx.Stmt:
        """A full tile of rows, or the rows that are left one by one."""
        return emit.bind(
            [first],
            lambda row: tirx.IfThenElse(
                row + _TILE_ROWS <= self.batch,
                _Sequence(self, direction, row, _TILE_ROWS).emit(),
                emit.serial(self.batch - row, lambda r: _Sequence(self, direction, row + r, 1).emit(), "row"),
            ),
        )


class _Sequence:
    """The walk over time of `rows` batch rows in one direction."""

    def __init__(self, owner: _Emitter, direction: int, first: Any, rows: int):
        self.owner, self.cell, self.direction, self.first, self.rows = (
            owner,
            owner.cell,
            direction,
            first,
            rows,
        )

    def emit(self) -> tirx.Stmt:
        cell, width = self.cell, self.cell.width
        shapes = [[self.rows, width]] * 3 + [[self.rows, cell.gates * width]]

        def walk(h: Any, c: Any, reset: Any, gates: Any) -> tirx.Stmt:
            self.h, self.c, self.reset, self.gates = h, c, reset, gates
            states = [h, c][: len(self.owner.finals)]
            starts = [self.owner.h0, self.owner.c0][: len(states)]
            return emit.seq(
                *[self._load_state(s, b) for s, b in zip(states, starts, strict=True)],
                emit.serial(self.owner.time, self._step, "step"),
                *[self._save_state(s, b) for s, b in zip(states, self.owner.finals, strict=True)],
                *([emit.serial(self.rows, self._blank_rest, "row")] if cell.has_lengths else []),
            )

        return emit.scratch([(s, "float32") for s in shapes], walk)

    # -- state ------------------------------------------------------------------------------------------------

    def _load_state(self, state: Any, source: Any) -> tirx.Stmt:
        def load(row: Any) -> tirx.Stmt:
            clear = _vectors(self.cell.width, lambda j: emit.store(state, _f32(0), row, j))
            if source is None:
                return clear
            return emit.seq(
                clear,
                _units(
                    self.cell.hidden,
                    lambda j: emit.store(state, emit.load(source, self.direction, self.first + row, j), row, j),
                ),
            )

        return emit.serial(self.rows, load, "row")

    def _save_state(self, state: Any, target: Any) -> tirx.Stmt:
        def save(row: Any) -> tirx.Stmt:
            return _units(
                self.cell.hidden,
                lambda j: emit.store(target, emit.load(state, row, j), self.direction, self.first + row, j),
            )

        return emit.serial(self.rows, save, "row")

    def _length(self, row: Any) -> Any:
        length = emit.load(self.owner.lengths, self.first + row).astype("int64")
        return tirx.max(tirx.min(length, self.owner.time), emit.const(0))

    def _blank_rest(self, row: Any) -> tirx.Stmt:
        """Results past a row's own length are zero."""

        def blank(start: Any) -> tirx.Stmt:
            def clear(step: Any) -> tirx.Stmt:
                place = (start + step, self.direction, self.first + row)
                return _units(self.cell.hidden, lambda j: emit.store(self.owner.y, _f32(0), *place, j))

            return emit.serial(self.owner.time - start, clear)

        return emit.bind([self._length(row)], blank)

    # -- one step ---------------------------------------------------------------------------------------------

    def _step(self, step: Any) -> tirx.Stmt:
        cell = self.cell
        update = emit.serial(self.rows, lambda r: self._when_alive(r, step, self._update), "row")
        if cell.rounded:
            return emit.seq(emit.serial(self.rows, self._round_state, "row"), self._product(0, self.reset, 0), update)
        if len(cell.gate_groups) == 1:
            return emit.seq(self._product(0, self.h, 0), update)
        reset = emit.serial(self.rows, lambda r: self._when_alive(r, step, self._early_reset), "row")
        return emit.seq(self._product(0, self.h, 0), reset, self._product(1, self.reset, 2 * cell.width), update)

    def _round_state(self, row: Any) -> tirx.Stmt:
        """reset = the state on 256 levels from its minimum to its maximum, which are widened to hold 0."""

        def on_levels(bounds: Any) -> tirx.Stmt:
            def widen(j: Any) -> tirx.Stmt:
                value = emit.load(self.h, row, j)
                return emit.seq(
                    emit.store(bounds, tirx.min(emit.load(bounds, 0), value), 0),
                    emit.store(bounds, tirx.max(emit.load(bounds, 1), value), 1),
                )

            low, span = emit.load(bounds, 0), emit.load(bounds, 1) - emit.load(bounds, 0)
            scale = tirx.Select(span == _f32(0), _f32(1), span / _f32(255))
            zero = tirx.nearbyint(_f32(0) - low / emit.load(bounds, 2))

            def level(j: Any) -> tirx.Stmt:
                code = tirx.nearbyint(emit.load(self.h, row, j) / emit.load(bounds, 2)) + emit.load(bounds, 3)
                code = tirx.max(tirx.min(code, _f32(255)), _f32(0))
                return emit.store(self.reset, (code - emit.load(bounds, 3)) * emit.load(bounds, 2), row, j)

            return emit.seq(
                *[emit.store(bounds, _f32(0), k) for k in range(2)],
                emit.serial(self.cell.hidden, widen, "j"),
                emit.store(bounds, scale, 2),
                emit.store(bounds, zero, 3),
                _vectors(self.cell.width, level),
            )

        return _registers([4], on_levels)

    def _when_alive(self, row: Any, step: Any, body: Callable[[Any, Any], tirx.Stmt]) -> tirx.Stmt:
        """`body(row, position in time)`, unless the row's own sequence is over."""
        backwards = self.cell.reverse[self.direction]
        if not self.cell.has_lengths:
            return body(row, self.owner.time - 1 - step if backwards else step)

        def alive(length: Any) -> tirx.Stmt:
            return tirx.IfThenElse(step < length, body(row, length - 1 - step if backwards else step), None)

        return emit.bind([self._length(row)], alive)

    def _product(self, group: int, source: Any, offset: int) -> tirx.Stmt:
        """gates[:, offset:] = source @ R for one gate group, by panels of columns."""
        weights = self.owner.recurrence[group]
        panel = panel_width(self.cell.gate_groups[group], self.cell.width)
        parts = 2 if self.rows > 1 and panel % (2 * VECTOR) == 0 else 1  # keeps the accumulators in registers
        width = panel // parts
        vectors = width // VECTOR

        def tile(p: Any) -> tirx.Stmt:
            return emit.seq(*[part(p, k * width) for k in range(parts)])

        def part(p: Any, shift: int) -> tirx.Stmt:
            def accumulate(acc: Any) -> tirx.Stmt:
                def each(body: Callable[[int, int, Any], tirx.Stmt]) -> tirx.Stmt:
                    return emit.seq(
                        *[
                            emit.vectorized(VECTOR, lambda j, r=r, v=v: body(r, v, j))
                            for r in range(self.rows)
                            for v in range(vectors)
                        ]
                    )

                def column(v: int, j: Any) -> Any:
                    return p * panel + (shift + v * VECTOR) + j

                def multiply(k: Any) -> tirx.Stmt:
                    return each(
                        lambda r, v, j: emit.store(
                            acc,
                            emit.load(acc, r, v * VECTOR + j)
                            + emit.load(source, r, k)
                            * emit.load(weights, self.direction, p, k, shift + v * VECTOR + j),
                            r,
                            v * VECTOR + j,
                        )
                    )

                return emit.seq(
                    each(lambda r, v, j: emit.store(acc, _f32(0), r, v * VECTOR + j)),
                    emit.serial(self.cell.hidden, multiply, "k"),
                    each(
                        lambda r, v, j: emit.store(
                            self.gates, emit.load(acc, r, v * VECTOR + j), r, offset + column(v, j)
                        )
                    ),
                )

            return _registers([self.rows, width], accumulate)

        return emit.serial(self.cell.gate_groups[group] * self.cell.width // panel, tile, "panel")

    # -- cells ------------------------------------------------------------------------------------------------

    def _input(self, row: Any, position: Any, gate: int, j: Any) -> Any:
        """The projected input of a gate."""
        column = (self.direction * self.cell.gates + gate) * self.cell.width + j
        return emit.load(self.owner.projected, position, self.first + row, column)

    def _gate(self, row: Any, position: Any, gate: int, j: Any, extra: Any = None) -> Any:
        """The sum that a gate's activation takes."""
        total = self._input(row, position, gate, j) + emit.load(self.gates, row, gate * self.cell.width + j)
        return self._clipped(total if extra is None else total + extra)

    def _clipped(self, value: Any) -> Any:
        if self.cell.clip is None:
            return value
        return tirx.max(tirx.min(value, _f32(self.cell.clip)), _f32(-self.cell.clip))

    def _peephole(self, which: int, row: Any, j: Any) -> Any:
        if self.owner.peephole is None:
            return None
        weight = emit.load(self.owner.peephole, self.direction, which * self.cell.width + j)
        return weight * emit.load(self.c, row, j)

    def _update(self, row: Any, position: Any) -> tirx.Stmt:
        steps = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.cell.kind](row, position)
        place = (position, self.direction, self.first + row)
        return emit.seq(
            _vectors(self.cell.width, *steps),
            _units(self.cell.hidden, lambda j: emit.store(self.owner.y, emit.load(self.h, row, j), *place, j)),
        )

    # A step is a list of assignments to vectors, each with one function of the math library at most: TVM's
    # simplifier takes minutes over the nested polynomials that the functions become.

    def _activated(self, row: Any, position: Any, gate: int, function: _Scalar, peephole: int | None = None) -> _Scalar:
        """gates[gate] = function(its inputs)."""

        def assign(j: Any) -> tirx.Stmt:
            extra = None if peephole is None else self._peephole(peephole, row, j)
            value = function(self._gate(row, position, gate, j, extra))
            return emit.store(self.gates, value, row, gate * self.cell.width + j)

        return assign

    def _at(self, row: Any, gate: int, j: Any) -> Any:
        return emit.load(self.gates, row, gate * self.cell.width + j)

    def _lstm(self, row: Any, position: Any) -> list[_Scalar]:
        f, g, h = self.cell.activations[self.direction]

        def cell_state(j: Any) -> tirx.Stmt:
            enter = self._at(row, 0, j)
            keep = _f32(1) - enter if self.cell.coupled else self._at(row, 2, j)
            return emit.store(self.c, keep * emit.load(self.c, row, j) + enter * self._at(row, 3, j), row, j)

        return [
            self._activated(row, position, 0, f, 0),
            *([] if self.cell.coupled else [self._activated(row, position, 2, f, 2)]),
            self._activated(row, position, 3, g),
            cell_state,
            self._activated(row, position, 1, f, 1),
            lambda j: emit.store(self.h, h(emit.load(self.c, row, j)), row, j),
            lambda j: emit.store(self.h, self._at(row, 1, j) * emit.load(self.h, row, j), row, j),
        ]

    def _early_reset(self, row: Any, position: Any) -> tirx.Stmt:
        """GRU: the candidate sees the state only through the reset gate, so that comes before its product."""
        return _vectors(
            self.cell.width,
            self._activated(row, position, 1, self.cell.activations[self.direction][0]),
            lambda j: emit.store(self.reset, self._at(row, 1, j) * emit.load(self.h, row, j), row, j),
        )

    def _gru(self, row: Any, position: Any) -> list[_Scalar]:
        f, g = self.cell.activations[self.direction]

        def candidate(j: Any) -> tirx.Stmt:
            recurrent = self._at(row, 2, j)
            if self.cell.late_reset:
                recurrent = self._at(row, 1, j) * (recurrent + emit.load(self.owner.start, self.direction, j))
            value = g(self._clipped(self._input(row, position, 2, j) + recurrent))
            return emit.store(self.gates, value, row, 2 * self.cell.width + j)

        def hidden_state(j: Any) -> tirx.Stmt:
            new = self._at(row, 2, j)
            return emit.store(self.h, new + self._at(row, 0, j) * (emit.load(self.h, row, j) - new), row, j)

        reset = [self._activated(row, position, 1, f)] if self.cell.late_reset else []
        return [*reset, self._activated(row, position, 0, f), candidate, hidden_state]

    def _rnn(self, row: Any, position: Any) -> list[_Scalar]:
        (f,) = self.cell.activations[self.direction]
        return [lambda j: emit.store(self.h, f(self._gate(row, position, 0, j)), row, j)]


def _buffer(name: str, shape: Sequence[Any], dtype: str = "float32") -> tirx.Buffer:
    return tirx.decl_buffer([emit.const(s) if isinstance(s, int) else s for s in shape], dtype, name)


def _registers(shape: list[int], body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """`body` of a local buffer, which LLVM keeps in registers where it is indexed by constants."""
    buffer = tirx.decl_buffer([emit.const(s) for s in shape], "float32", "acc", scope="local")
    return emit.seq(tirx.AllocBuffer(buffer), body(buffer))


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _vectors(width: int, *bodies: _Scalar) -> tirx.Stmt:
    """The bodies, vector by vector, of every index below a multiple of the vector length."""

    def vector(v: Any) -> tirx.Stmt:
        return emit.seq(*[emit.vectorized(VECTOR, lambda j, body=body: body(v * VECTOR + j)) for body in bodies])

    return emit.serial(width // VECTOR, vector, "v")


def _units(count: int, body: _Scalar) -> tirx.Stmt:
    """`body` of every index below `count`: vectors, then the rest one by one."""
    whole = count // VECTOR * VECTOR
    parts = [_vectors(whole, body)] if whole else []
    if whole < count:
        parts.append(emit.serial(count - whole, lambda j: body(whole + j), "rest"))
    return emit.seq(*parts)
