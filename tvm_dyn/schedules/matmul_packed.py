"""The loop nest of a product with a constant matrix that lies packed in panels, symbolic rows, its epilogue inside.

    for task in parallel(row blocks * panels):
        for tile in row block:                      # the fewest tiles, all of the same height or one less
            sums[height, width] = A[tile, :] @ P[panel, :, :]       # one micro-kernel for each height
            for row in tile: O[row, panel] = epilogue(sums[row])

``P[panel, k, column]`` streams past the registers in the order of memory: `passes.pack_constant_weights` lays it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import as_int
from tvm_dyn.schedules.matmul_product import Matmul
from tvm_dyn.schedules.space import at_run_time
from tvm_dyn.schedules.tasks import enough_sums, tasks


@dataclass(frozen=True)
class PackedTile:
    """Tile sizes of the kernel.

    lanes, vectors: a panel is ``lanes * vectors`` columns wide. heights: of the register tiles, in rising order; rows
    beyond those of a tile are computed twice. block_rows: most rows that a task takes past its panel. tasks: number to
    split the work in, where there are rows enough, so that every core gets as much; 1 keeps it on one core.
    panel_major: 1 where all rows go past a panel before the next one, 0 where all panels go past a block of rows.
    """

    lanes: int
    vectors: int
    heights: tuple[int, ...]
    block_rows: int = at_run_time()
    tasks: int = at_run_time()
    panel_major: int = at_run_time()

    @staticmethod
    def for_target(target: Target, dtype: str, columns: int, depth: int) -> PackedTile:
        """Accumulators in three quarters of the registers; A's rows in half of the second-level cache."""
        lanes, registers = hardware.lanes(target, dtype), hardware.registers(target)
        vectors = _panel_vectors(columns, lanes, registers // 8)
        heights = _heights(max(registers * 3 // 4 // vectors, 1))
        cached = _cached_rows(target, dtype, depth)
        cores = hardware.cores(target)
        return PackedTile(lanes, vectors, heights, max(cached, 16 * heights[-1]), 4 * cores if cores > 1 else 1, 0)

    @staticmethod
    def candidates(target: Target, dtype: str, columns: int, depth: int) -> list[PackedTile]:
        """Panels up to six vectors wide, sums in three to seven eighths of the registers, one task to eight a core."""
        lanes, registers = hardware.lanes(target, dtype), hardware.registers(target)
        cores = hardware.cores(target)
        splits = [1] if cores == 1 else [1, cores, 2 * cores, 4 * cores, 8 * cores]
        found: dict[PackedTile, None] = {}
        for vectors in range(1, min(6, -(-columns // lanes)) + 1):
            highest = {min(registers * share // 8 // vectors, 14) for share in (6, 7)}
            for high in sorted(h for h in highest if h):
                blocks = {max(_cached_rows(target, dtype, depth), 16 * high), 16 * high}
                for rows, split, major in product(sorted(blocks), splits, (0, 1)):
                    found[PackedTile(lanes, vectors, _heights(high), rows, split, major)] = None
        return list(found)

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.lanes * self.vectors


def _panel_vectors(columns: int, lanes: int, widest: int) -> int:
    """The width, in vectors, that computes the fewest columns in vain; the widest of equals."""
    return min(range(1, widest + 1), key=lambda v: (-(-columns // (v * lanes)) * v, -v))


def _heights(highest: int) -> tuple[int, ...]:
    """Heights up to the highest: every one of a few, else every other beyond four."""
    return tuple(range(1, highest + 1)) if highest <= 7 else tuple(sorted({1, 2, 3, 4, *range(6, highest, 2), highest}))


def _cached_rows(target: Target, dtype: str, depth: int) -> int:
    """Rows of A that fill half of the second-level cache."""
    return hardware.cache_bytes(target, 2) // 2 // max(depth * hardware.dtype_bytes(dtype), 1)


class PackedKernel:
    """Emits the loop nest for one matched product with packed B: ``panels[panel, k, column]``."""

    def __init__(self, found: Matmul, panels: tirx.Buffer, tile: PackedTile, target: Target):
        self.found, self.panels, self.tile, self.target = found, panels, tile, target
        self.rows = found.rows
        self.depth, self.columns = int(found.k.dom.extent), int(found.n.dom.extent)
        self.count = int(panels.shape[0])

    def emit(self) -> tirx.Stmt:
        """The nest; tasks that are not a decision of the call leave small work to one core. Where a single row is
        work enough for all cores there is no serial nest.
        """
        wanted = self.tile.tasks
        blocks = emit.ceildiv(self.rows, self.tile.block_rows)
        least = tirx.min(emit.ceildiv(wanted, self.count), emit.ceildiv(self.rows, self.tile.heights[-1]))
        return emit.bind(
            [emit.simplify(tirx.max(blocks, least))],
            lambda blocks: emit.bind([self._inner(blocks)], lambda inner: self._tasks(blocks, inner)),
        )

    def _worth(self):
        wanted, row = self.tile.tasks, self.depth * self.columns
        if isinstance(wanted, int) and wanted == 1:
            return False
        if row >= hardware.PARALLEL_MIN_SUMS:
            return True
        return enough_sums(self.rows * row) if isinstance(wanted, int) else wanted > 1

    def _inner(self, blocks):
        """Tasks that follow one another before the outer of the two loops takes its next step."""
        return emit.simplify(tirx.Select(self._panel_major(), blocks, emit.const(self.count)))

    def _panel_major(self):
        return emit.index(self.tile.panel_major).equal(1)

    def _tasks(self, blocks, inner) -> tirx.Stmt:
        def task(t) -> tirx.Stmt:
            outer_at, inner_at = emit.unflatten(t, [blocks, inner])
            places = ((inner_at, outer_at), (outer_at, inner_at))
            block, panel = (emit.simplify(tirx.Select(self._panel_major(), *place)) for place in places)
            return emit.bind([block, panel], part)

        def part(block, panel) -> tirx.Stmt:
            ends = [emit.quotient(self.rows * (block + i), tirx.max(blocks, emit.const(1))) for i in (0, 1)]
            return emit.bind([panel, *ends], self._block)

        return tasks(self._worth(), blocks * self.count, task, self.target)

    def _block(self, panel, first, end) -> tirx.Stmt:
        """Rows [first, end) of one panel, in the fewest tiles."""
        highest = self.tile.heights[-1]

        def tiles(count) -> tirx.Stmt:
            # All tiles take `low` rows; the first `extra` ones one more.
            low = emit.quotient(end - first, tirx.max(count, emit.const(1)))

            def each(low) -> tirx.Stmt:
                extra = end - first - low * count

                def tile(t) -> tirx.Stmt:
                    start = first + t * low + tirx.min(t, extra)
                    height = low + tirx.Cast("int64", t < extra)
                    return emit.bind([start, height], lambda *at: self._tile(panel, *at))

                return emit.serial(count, tile)

            return emit.bind([low], each)

        return emit.bind([emit.ceildiv(end - first, highest)], tiles)

    def _tile(self, panel, start, rows) -> tirx.Stmt:
        """Sums of ``rows`` rows by the lowest micro-kernel that is high enough, then their epilogue."""

        def body(sums) -> tirx.Stmt:
            *lower, highest = self.tile.heights
            statement = self._micro_kernel(panel, start, highest, sums)
            for height in reversed(lower):
                statement = emit.when(rows <= height, self._micro_kernel(panel, start, height, sums), statement)
            return emit.seq(statement, emit.serial(rows, lambda i: self._row(panel, sums, i, start + i)))

        shape = [self.tile.heights[-1], self.tile.width]
        return emit.scratch([(shape, self.found.acc_dtype)], body)

    def _micro_kernel(self, panel, start, height: int, sums) -> tirx.Stmt:
        consecutive = {*range(1, self.tile.heights[-1] + 1)} <= {*self.tile.heights}

        def row(i):
            # A tile that is lower than its micro-kernel must not read past the last row.
            return start + i if consecutive else tirx.min(start + i, self.rows - 1)

        def each(body: Callable) -> tirx.Stmt:
            return emit.unrolled(height, lambda i: self._vectors(lambda j: body(i, j)))

        def tile(acc) -> tirx.Stmt:
            def update(k, i, j):
                product = self.found.a_at({}, row(i), k) * self._weight(panel, k, j)
                return emit.store(acc, emit.load(acc, i, j) + product, i, j)

            return emit.seq(
                each(lambda i, j: emit.store(acc, tirx.const(0, self.found.acc_dtype), i, j)),
                emit.serial(self.depth, lambda k: each(lambda i, j: update(k, i, j)), "k"),
                # Not read where they are: an index that varies would keep the accumulators out of registers.
                each(lambda i, j: emit.store(sums, emit.load(acc, i, j), i, j)),
            )

        return emit.scratch([([height, self.tile.width], self.found.acc_dtype)], tile)

    def _weight(self, panel, k, j):
        return emit.load(self.panels, panel, k, j).astype(self.found.acc_dtype)

    def _vectors(self, body: Callable) -> tirx.Stmt:
        lanes = self.tile.lanes
        return emit.unrolled(self.tile.vectors, lambda u: emit.vectorized(lanes, lambda j: body(u * lanes + j)))

    def _row(self, panel, sums, i, row) -> tirx.Stmt:
        """The epilogue of one row; the last panel may have fewer columns than its width."""

        def one(j) -> tirx.Stmt:
            return self.found.result({}, row, panel * self.tile.width + j, emit.load(sums, i, j))

        rest = self.columns % self.tile.width
        if rest == 0:
            return self._vectors(one)
        last = emit.chunks(emit.const(rest), self.tile.lanes, one)
        return emit.when(panel < self.count - 1, self._vectors(one), last)


def panels_of(found: Matmul) -> tirx.Buffer | None:
    """The buffer ``P`` where B is read as ``P[n // width, k, n % width]``; None where it is not packed."""
    load = found.b.value if isinstance(found.b, tirx.Cast) else found.b
    if found.batch or None in (as_int(found.k.dom.extent), as_int(found.n.dom.extent)):
        return None
    if not isinstance(load, tvm.ir.TensorLoad) or len(load.indices) != 3:
        return None
    panels, n, width = load.source, found.n.var, as_int(load.source.shape[2])
    panel, k, column = load.indices
    if not k.same_as(found.k.var) or width is None:
        return None
    if as_int(panel) == 0 and column.same_as(n):
        return panels  # all columns in one
    if not isinstance(panel, tirx.FloorDiv) or not isinstance(column, tirx.FloorMod):
        return None
    return panels if all(x.a.same_as(n) and as_int(x.b) == width for x in (panel, column)) else None
