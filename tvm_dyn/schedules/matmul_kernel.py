"""The loop nest of a matrix product with symbolic extents, tiled for registers, with its epilogue inside.

    for task in parallel(batch * column panels * row blocks):
        panel = B[:, columns of the task]           # packed when there are rows enough to pay for the copy
        for tile of 6 rows:                         # full tiles, then one tail tile of 6, 4, 2 or 1 rows
            acc = 0
            for k: acc[i, j] += A[row i, k] * panel[k, j]
            O[row i, column j] = epilogue(acc[i, j])

Rows of the tail tile are clamped, ``min(row, M - 1)``: a row is computed twice rather than guarded by a
predicate, which is legal as every output element is a pure function of the inputs. Columns past the last
full panel go through panels of one vector, the last of which overlaps its neighbour for the same reason;
only fewer columns than a vector has lanes are padded with zeros and stored one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from tvm import tirx
from tvm.target import Target

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import as_int
from tvm_dyn.schedules.matmul_product import Matmul, unravel
from tvm_dyn.schedules.space import at_run_time
from tvm_dyn.schedules.tasks import enough_sums, tasks


@dataclass(frozen=True)
class MatmulTile:
    """Tile sizes of the kernel, in elements of the accumulator's type.

    rows: heights of the register tiles, highest first; the tail of the rows takes the lowest that covers it.
    vectors: width of a full panel in vector registers. narrow_rows: tile heights of the one-vector panels
    that take the remaining columns. single_row_vectors: widths of panels for a single row, which streams B:
    the wider, the longer the runs of memory. pack_rows: rows from which on a panel is packed. block_rows:
    rows (a multiple of the first heights) that share a packed panel in one task.
    """

    lanes: int
    vectors: int
    single_row_vectors: tuple[int, ...]
    rows: tuple[int, ...]
    narrow_rows: tuple[int, ...]
    pack_rows: int = at_run_time()
    block_rows: int = at_run_time()

    @staticmethod
    def for_target(target: Target, dtype: str) -> MatmulTile:
        """The tile whose accumulators, one row of B and one element of A fill the register file.

        Copying a panel pays from eight tiles on, and costs next to nothing beside four times as many.
        """
        vectors = hardware.registers(target) // 8
        return MatmulTile._of(target, dtype, vectors, hardware.registers(target) * 3 // 4 // vectors)

    @staticmethod
    def candidates(target: Target, dtype: str) -> list[MatmulTile]:
        """Panels up to six vectors wide, sums in three to seven eighths of the registers."""
        found: dict[MatmulTile, None] = {}
        for vectors, share in product(range(1, 7), (6, 7)):
            highest = min(hardware.registers(target) * share // 8 // vectors, 14)
            if highest:
                usual = MatmulTile._of(target, dtype, vectors, highest)
                for packed, block in product((2, 8, 1 << 20), (8, 32)):
                    found[replace(usual, pack_rows=packed * highest, block_rows=block * highest)] = None
        return list(found)

    @staticmethod
    def _of(target: Target, dtype: str, vectors: int, highest: int) -> MatmulTile:
        rows = (highest, *(height for height in (4, 2, 1) if height < highest))
        single = (hardware.registers(target) // 2, vectors)
        return MatmulTile(
            hardware.lanes(target, dtype), vectors, single, rows, (2 * highest, 1), 8 * highest, 32 * highest
        )


@dataclass(frozen=True)
class _Panel:
    """Columns [start, start + vectors * lanes) of B; ``load(k, j)`` is B[k, start + j].

    masked: the panel reaches past the last column, so that its results are stored one by one.
    """

    start: tirx.Expr
    vectors: int
    load: Callable
    masked: bool = False


class MatmulKernel:
    """Emits the loop nest for one matched product."""

    def __init__(self, found: Matmul, tile: MatmulTile, target: Target, rows=None):
        self.found, self.tile, self.target = found, tile, target
        self.rows = found.rows if rows is None else rows
        self.columns = found.n.dom.extent
        self.depth = found.k.dom.extent
        self.batch = emit.product([iv.dom.extent for iv in found.batch])

    def emit(self) -> tirx.Stmt:
        """The nest for any number of rows; a single row has one of its own."""
        single = replace(self.tile, rows=(1,), narrow_rows=(1,))
        return emit.when(
            self.rows.equal(1),
            MatmulKernel(self.found, single, self.target, emit.const(1))._columns(self.tile.single_row_vectors),
            self._columns((self.tile.vectors,)),
        )

    def _columns(self, widths: tuple[int, ...]) -> tirx.Stmt:
        """Panels as wide as possible, then panels of one vector for the columns that are left.

        The last of these starts early enough to end at the last column; fewer columns than lanes are masked.
        """
        statements, start, lanes = [], emit.const(0), self.tile.lanes
        for vectors in widths:
            panels = emit.quotient(self.columns - start, vectors * lanes)
            column = partial(_column, start)
            statements += self._tasks(panels, vectors, self._full_panel, column)
            start = emit.simplify(start + panels * (vectors * lanes))
        narrow = emit.ceildiv(self.columns - start, lanes)

        def overlapping(p, width):
            return tirx.min(start + p * width, self.columns - width)

        if as_int(emit.simplify(narrow)) != 0:
            unmasked = self._tasks(narrow, 1, self._full_panel, overlapping)
            masked = self._tasks(emit.const(1), 1, self._masked_panel, lambda p, width: emit.const(0))
            statements.append(emit.when(self.columns >= lanes, emit.seq(*unmasked), emit.seq(*masked)))
        return emit.seq(*statements)

    def _tasks(self, panels, vectors: int, body: Callable, column: Callable) -> list[tirx.Stmt]:
        """A loop over (batch, panel, row block), none where there are no such panels.

        column: the first column of a panel, from its position and width.
        """
        panels = emit.simplify(panels)
        if as_int(panels) == 0:
            return []
        blocks = emit.simplify(emit.ceildiv(self.rows, self.tile.block_rows))

        def task(t):
            batch, panel, block = emit.unflatten(t, [self.batch, panels, blocks])
            values = [column(panel, vectors * self.tile.lanes), block * self.tile.block_rows]
            env = unravel(batch, self.found.batch)
            return emit.bind(values, lambda start, row: body(env, vectors, start, row))

        work = self.batch * self.rows * self.columns * self.depth
        return [tasks(enough_sums(work), self.batch * panels * blocks, task, self.target)]

    def _full_panel(self, env: dict, vectors: int, start, first_row) -> tirx.Stmt:
        direct = _Panel(start, vectors, lambda k, j: self.found.b_at(env, k, start + j))
        heights = self.tile.narrow_rows if vectors == 1 else self.tile.rows
        height = heights[0]

        def packed(buffer) -> tirx.Stmt:
            copy = emit.serial(
                self.depth,
                lambda k: self._over_columns(direct, lambda j: emit.store(buffer, direct.load(k, j), k, j)),
            )
            panel = replace(direct, load=lambda k, j: emit.load(buffer, k, j))
            return emit.seq(copy, self._full_tiles(env, panel, first_row, height))

        full = emit.when(
            self.rows >= self.tile.pack_rows,
            self._with_panel(vectors, packed),
            self._full_tiles(env, direct, first_row, height),
        )
        return emit.seq(full, *self._tail_tile(env, direct, first_row, heights))

    def _masked_panel(self, env: dict, vectors: int, start, first_row) -> tirx.Stmt:
        zero = tirx.const(0, self.found.acc_dtype)

        def packed(buffer) -> tirx.Stmt:
            def copy(k, j):
                value = tirx.if_then_else(start + j < self.columns, self.found.b_at(env, k, start + j), zero)
                return emit.store(buffer, value, k, j)

            panel = _Panel(start, vectors, lambda k, j: emit.load(buffer, k, j), masked=True)
            return emit.seq(
                emit.serial(self.depth, lambda k: emit.serial(self.tile.lanes, lambda j: copy(k, j))),
                self._full_tiles(env, panel, first_row, self.tile.narrow_rows[0]),
                *self._tail_tile(env, panel, first_row, self.tile.narrow_rows),
            )

        return self._with_panel(vectors, packed)

    def _with_panel(self, vectors: int, body: Callable) -> tirx.Stmt:
        return emit.scratch([([self.depth, vectors * self.tile.lanes], self.found.acc_dtype)], body)

    def _full_tiles(self, env: dict, panel: _Panel, first_row, height: int) -> tirx.Stmt:
        rows = self._rows_from(first_row)

        def tile(i):
            return emit.bind(
                [first_row + i * height],
                lambda start: self._register_tile(env, panel, height, lambda r: start + r),
            )

        return emit.serial(tirx.truncdiv(rows, height), tile)

    def _tail_tile(self, env: dict, panel: _Panel, first_row, heights: tuple[int, ...]) -> list[tirx.Stmt]:
        """One tile for the rows left after the full ones, if any can be: the lowest that covers them."""
        if heights[0] == 1:
            return []
        rows = self._rows_from(first_row)

        def choose(left):
            start = first_row + rows - left
            statement, lower = None, 0
            for height in reversed(heights):
                tile = self._register_tile(env, panel, height, lambda r: tirx.min(start + r, self.rows - 1))
                statement = emit.when(left > lower, tile, statement)
                lower = height
            assert statement is not None
            return statement

        return [emit.bind([tirx.truncmod(rows, heights[0])], choose)]

    def _rows_from(self, first_row):
        return emit.simplify(tirx.min(emit.index(self.tile.block_rows), self.rows - first_row))

    def _register_tile(self, env: dict, panel: _Panel, height: int, row: Callable) -> tirx.Stmt:
        zero = tirx.const(0, self.found.acc_dtype)

        def each(body: Callable) -> tirx.Stmt:
            return emit.unrolled(height, lambda i: self._over_columns(panel, lambda j: body(i, j)))

        def tile(acc, sums) -> tirx.Stmt:
            def update(k, i, j):
                summand = self.found.a_at(env, row(i), k) * panel.load(k, j)
                return emit.store(acc, emit.load(acc, i, j) + summand, i, j)

            return emit.seq(
                each(lambda i, j: emit.store(acc, zero, i, j)),
                emit.serial(self.depth, lambda k: each(lambda i, j: update(k, i, j))),
                # A loop over the accumulators themselves would keep them out of registers.
                each(lambda i, j: emit.store(sums, emit.load(acc, i, j), i, j)),
                emit.serial(height, lambda i: self._store_row(env, panel, sums, i, row(i))),
            )

        kind = ([height, panel.vectors * self.tile.lanes], self.found.acc_dtype)
        return emit.scratch([kind, kind], tile)

    def _over_columns(self, panel: _Panel, body: Callable) -> tirx.Stmt:
        lanes = self.tile.lanes
        return emit.unrolled(panel.vectors, lambda u: emit.vectorized(lanes, lambda v: body(u * lanes + v)))

    def _store_row(self, env: dict, panel: _Panel, sums, i, row) -> tirx.Stmt:
        def one(j):
            return self.found.result(env, row, panel.start + j, emit.load(sums, i, j))

        if panel.masked:
            return emit.serial(tirx.min(emit.const(self.tile.lanes), self.columns - panel.start), one)
        return self._over_columns(panel, one)


def _column(start, panel, width):
    """First column of a panel in a run of panels from ``start`` on."""
    return start + panel * width
