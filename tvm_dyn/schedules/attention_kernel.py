"""The loop nest of attention: queries in the lanes of vectors, keys in blocks, softmax on the way.

    for task in parallel(batch * query blocks):
        qt[d, lane] = q[lane, d]
        for block of keys:
            s[key, lane] = score(sum(d, k[key, d] * qt[d, lane]))      # register tiles: keys x vectors of queries
            m, m_old = max(m, max(key, s)), m
            s[key, lane] = exp(s[key, lane] - m);  l = l * exp(m_old - m) + sum(key, s)
            o[lane, :] = o[lane, :] * exp(m_old - m) + sum(key, s[key, lane] * v[key, :])
        out[lane, :] = o[lane, :] / l

Neither keys nor values are copied: k is read element by element, v row by row, and maxima and sums over keys need no
steps across lanes. The softmax is the online one (Milakov & Gimelshein 2018), blocked as by Dao et al. 2022: scratch
does not grow with the number of keys.

A query block is as many vectors as its queries need; the last one starts early enough to end at the last query, with
the rows that another block has computed left out of the second product. Fewer queries than lanes are clamped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Stmt

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.attention_match import Attention
from tvm_dyn.schedules.attention_stage import LANE, Staged, Stager
from tvm_dyn.schedules.attention_tile import AttentionTile, store_result, tiles, vector_columns
from tvm_dyn.schedules.common import as_int, substitute
from tvm_dyn.schedules.llvm_transpose import transpose
from tvm_dyn.schedules.matmul_product import unravel


@dataclass(frozen=True)
class _Block:
    """Queries [first, first + count) of one batch element, in ``vectors`` vectors of queries from ``start`` on."""

    env: dict
    first: Expr
    count: Expr
    vectors: Expr
    start: Expr


@dataclass(frozen=True)
class _Scratch:
    """Flat buffers of one task; rows of ``q`` and ``s`` are as wide as a full query block.

    Rows of ``o`` keep each vector apart: vectors of columns may overlap, sums that go on must not.
    """

    staged: list[tirx.Buffer]
    square: tirx.Buffer
    q: tirx.Buffer
    s: tirx.Buffer
    o: tirx.Buffer
    highest: tirx.Buffer
    total: tirx.Buffer
    shrink: tirx.Buffer


class AttentionKernel:
    """Emits the loop nest for one matched attention."""

    def __init__(self, found: Attention, tile: AttentionTile):
        self.found, self.tile = found, tile
        self.queries, self.keys = found.query.dom.extent, found.key.dom.extent
        self.depth, self.columns = as_int(found.depth.dom.extent) or 0, as_int(found.column.dom.extent) or 0
        self.width = tile.lanes * tile.vectors
        self.starts, self.column_lanes = vector_columns(self.columns, tile.lanes)
        self.kept = len(self.starts) * self.column_lanes
        self.batch = emit.product([iv.dom.extent for iv in found.batch])
        self.stager = Stager(found, tile.keys, self.width, tile.lanes)

    def work(self) -> Expr:
        """Multiply-adds of a call."""
        return self.batch * self.queries * self.keys * (self.depth + self.columns)

    def size(self) -> Expr:
        """Queries in a block."""
        lanes = self.tile.lanes
        full = emit.quotient(self.queries, lanes) * lanes
        return tirx.max(emit.const(lanes), tirx.min(emit.const(self.width), full))

    def task(self, position, size) -> Stmt:
        """A block of ``size`` queries with all keys, by its position in (batch, blocks)."""
        batch, block = emit.unflatten(position, [self.batch, emit.ceildiv(self.queries, size)])
        env = unravel(batch, self.found.batch)
        return emit.bind([block * size], lambda first: self._with_scratch(env, first, size))

    def _with_scratch(self, env: dict, first, size) -> Stmt:
        width = self.width
        square = self.tile.lanes * self.tile.lanes
        staged = self.stager.sizes()
        sizes = [*staged, square, self.depth * width, self.tile.keys * width, width * self.kept, width, width, width]
        count = tirx.min(size, self.queries - first)
        vectors = emit.ceildiv(count, self.tile.lanes)
        start = tirx.max(tirx.min(first, self.queries - vectors * self.tile.lanes), emit.const(0))

        def body(*buffers) -> Stmt:
            return emit.bind(
                [count, vectors, start],
                lambda *sizes: self._block(
                    _Block(env, first, *sizes),
                    _Scratch(list(buffers[: len(staged)]), *buffers[len(staged) :]),
                ),
            )

        return emit.scratch([([size], "float32") for size in sizes], body)

    def _block(self, block: _Block, scratch: _Scratch) -> Stmt:
        size = self.tile.keys

        def keys(b) -> Stmt:
            values = [b * size, tirx.min(emit.const(size), self.keys - b * size)]
            return emit.bind(values, lambda first, count: self._keys(block, scratch, first, count))

        blocks = emit.serial(emit.ceildiv(self.keys, size), keys, "keys")
        some = emit.seq(self._pack(block, scratch), self._start(block, scratch), blocks)
        return emit.when(self.keys > 0, some, self._without_keys(block))

    def _pack(self, block: _Block, scratch: _Scratch) -> Stmt:
        """Queries into lanes, square by square."""
        lanes, found = self.tile.lanes, self.found

        def at(lane, d) -> Expr:
            query = tirx.min(block.start + lane, self.queries - 1)
            return substitute(found.q, {**block.env, found.query.var: query, found.depth.var: d})

        def square(lane, d) -> Stmt:
            def row(i) -> Stmt:
                return emit.vectorized(lanes, lambda v: emit.store(scratch.square, at(lane + i, d + v), i * lanes + v))

            source = tirx.address_of(emit.load(scratch.square, 0))
            destination = tirx.address_of(emit.load(scratch.q, d * self.width + lane))
            return emit.seq(emit.serial(lanes, row), transpose(source, destination, self.width, lanes))

        def rest(lane, d) -> Stmt:
            return emit.store(scratch.q, at(lane, d), d * self.width + lane)

        squares = self.depth // lanes
        return emit.seq(
            emit.serial(
                block.vectors,
                lambda u: emit.serial(squares, lambda c: square(u * lanes, c * lanes)),
            ),
            emit.serial(
                block.vectors * lanes,
                lambda lane: emit.serial(self.depth - squares * lanes, lambda d: rest(lane, squares * lanes + d)),
            ),
        )

    def _start(self, block: _Block, scratch: _Scratch) -> Stmt:
        """No key seen, sums of nothing."""
        zero = tirx.const(0, "float32")

        def vector(j) -> Stmt:
            lowest = emit.store(scratch.highest, tirx.const(float("-inf"), "float32"), j)
            return emit.seq(lowest, emit.store(scratch.total, zero, j))

        def row(i) -> Stmt:
            size = emit.const(self.kept)
            return emit.chunks(size, self.tile.lanes, lambda j: emit.store(scratch.o, zero, i * size + j))

        rows = emit.serial(block.vectors * self.tile.lanes, row)
        return emit.seq(self._over_queries(self.tile.vectors, vector), rows)

    def _keys(self, block: _Block, scratch: _Scratch, first, count) -> Stmt:
        statements, keys = self.stager.stage(
            block.env, block.start, block.vectors, first, count, scratch.square, scratch.staged
        )
        weights = None
        for vectors in range(1, self.tile.vectors + 1):
            part = emit.seq(self._scores(block, vectors, scratch, keys), self._softmax(vectors, scratch, count))
            weights = emit.when(block.vectors >= vectors, part, weights)
        assert weights is not None
        return emit.seq(*statements, weights, self._weighted_sums(block, scratch, keys))

    # -- scores --------------------------------------------------------------------------------------------------

    def _scores(self, block: _Block, vectors: int, scratch: _Scratch, keys: Staged) -> Stmt:
        def tile(height: int, row: Callable) -> Stmt:
            return self._score_tile(block, vectors, scratch, keys, height, row)

        return tiles(keys.count, self.tile.accumulators // vectors, tile)

    def _score_tile(
        self, block: _Block, vectors: int, scratch: _Scratch, keys: Staged, height: int, row: Callable
    ) -> Stmt:
        found = self.found

        def each(body: Callable) -> Stmt:
            return emit.unrolled(height, lambda i: self._over_queries(vectors, lambda j: body(i, j)))

        def tile(acc) -> Stmt:
            def update(d, i, j) -> Stmt:
                at = {**block.env, self.found.key.var: keys.first + row(i), self.found.depth.var: d}
                product = substitute(keys.k, at) * emit.load(scratch.q, d * self.width + j)
                return emit.store(acc, emit.load(acc, i, j) + product, i, j)

            def result(i, j) -> Stmt:
                query = block.start + j
                if vectors == 1:  # there may be fewer queries than lanes
                    query = tirx.min(query, self.queries - 1)
                at = {found.query.var: query, found.key.var: keys.first + row(i), LANE: j}
                value = substitute(keys.score, {**block.env, **at, found.raw: emit.load(acc, i, j)})
                return emit.store(scratch.s, value, row(i) * self.width + j)

            return emit.seq(
                each(lambda i, j: emit.store(acc, tirx.const(0, "float32"), i, j)),
                emit.serial(self.depth, lambda d: each(lambda i, j: update(d, i, j))),
                each(result),
            )

        return emit.scratch([([height, vectors * self.tile.lanes], "float32")], tile)

    # -- softmax -------------------------------------------------------------------------------------------------

    def _softmax(self, vectors: int, scratch: _Scratch, count) -> Stmt:
        """Scores become weights relative to the highest score so far; of rows without any, weights of 0."""
        lowest = tirx.const(float("-inf"), "float32")

        def body(highest, total) -> Stmt:
            def at(key, j) -> Expr:
                return emit.load(scratch.s, key * self.width + j)

            def higher(key, j) -> Stmt:
                return emit.store(highest, tirx.max(emit.load(highest, j), at(key, j)), j)

            def shrink(j) -> Stmt:
                factor = tirx.exp(emit.load(scratch.highest, j) - emit.load(highest, j))
                kept = emit.load(scratch.total, j) * emit.load(scratch.shrink, j)
                return emit.seq(
                    emit.store(scratch.shrink, factor, j),
                    emit.store(total, kept, j),
                    emit.store(scratch.highest, emit.load(highest, j), j),
                )

            def finite(j) -> Stmt:
                value = emit.load(highest, j)
                return emit.store(highest, tirx.Select(value.equal(lowest), tirx.const(0, "float32"), value), j)

            def weight(key, j) -> Stmt:
                value = tirx.exp(at(key, j) - emit.load(highest, j))
                index = key * self.width + j
                return emit.seq(
                    emit.store(scratch.s, value, index),
                    emit.store(total, emit.load(total, j) + emit.load(scratch.s, index), j),
                )

            def over(statement: Callable) -> Stmt:
                return self._over_queries(vectors, statement)

            return emit.seq(
                over(lambda j: emit.store(highest, emit.load(scratch.highest, j), j)),
                emit.serial(count, lambda key: over(lambda j: higher(key, j))),
                over(finite),
                over(shrink),
                emit.serial(count, lambda key: over(lambda j: weight(key, j))),
                over(lambda j: emit.store(scratch.total, emit.load(total, j), j)),
            )

        width = vectors * self.tile.lanes
        return emit.scratch([([width], "float32"), ([width], "float32")], body)

    # -- weighted sums of values ---------------------------------------------------------------------------------

    def _weighted_sums(self, block: _Block, scratch: _Scratch, keys: Staged) -> Stmt:
        statements = []
        for vectors in self._column_groups():

            def tile(height: int, row: Callable, vectors=vectors) -> Stmt:
                return self._sum_tile(block, scratch, keys, height, row, vectors)

            height = max(self.tile.accumulators // len(vectors), 1)
            statements.append(tiles(block.count, height, tile, block.first - block.start))
        return emit.seq(*statements)

    def _sum_tile(
        self, block: _Block, scratch: _Scratch, keys: Staged, height: int, row: Callable, vectors: range
    ) -> Stmt:
        lanes = self.column_lanes

        def each(body: Callable) -> Stmt:
            """``body(row, position in the tile, position in the row of sums, column)``."""

            def vector(i, n: int) -> Stmt:
                first, kept, start = (n - vectors[0]) * lanes, n * lanes, self.starts[n]
                return emit.vectorized(lanes, lambda v: body(i, first + v, kept + v, start + v))

            return emit.unrolled(height, lambda i: emit.seq(*[vector(i, n) for n in vectors]))

        def tile(acc) -> Stmt:
            def load(i, j, kept, column) -> Stmt:
                value = emit.load(scratch.o, row(i) * self.kept + kept) * emit.load(scratch.shrink, row(i))
                return emit.store(acc, value, i, j)

            def update(key, i, j, kept, column) -> Stmt:
                at = {**block.env, self.found.key.var: keys.first + key, self.found.column.var: column}
                product = emit.load(scratch.s, key * self.width + row(i)) * substitute(keys.v, at)
                return emit.store(acc, emit.load(acc, i, j) + product, i, j)

            def keep(i, j, kept, column) -> Stmt:
                return emit.store(scratch.o, emit.load(acc, i, j), row(i) * self.kept + kept)

            def finish(i, j, kept, column) -> Stmt:
                at = {**block.env, self.found.query.var: block.start + row(i)}
                return store_result(self.found, at, column, emit.load(acc, i, j), emit.load(scratch.total, row(i)))

            return emit.seq(
                each(load),
                emit.serial(keys.count, lambda key: each(lambda *at: update(key, *at))),
                emit.when((keys.first + keys.count).equal(self.keys), each(finish), each(keep)),
            )

        return emit.scratch([([height, len(vectors) * lanes], "float32")], tile)

    def _without_keys(self, block: _Block) -> Stmt:
        """Sums of nothing."""
        zero, one = tirx.const(0, "float32"), tirx.const(1, "float32")

        def row(i) -> Stmt:
            at = {**block.env, self.found.query.var: block.first + i}
            return emit.seq(
                *[
                    emit.vectorized(self.column_lanes, lambda v, c=c: store_result(self.found, at, c + v, zero, one))
                    for c in self.starts
                ]
            )

        return emit.serial(block.count, row)

    # -- loops ---------------------------------------------------------------------------------------------------

    def _over_queries(self, vectors: int, body: Callable) -> Stmt:
        lanes = self.tile.lanes
        return emit.unrolled(vectors, lambda u: emit.vectorized(lanes, lambda v: body(u * lanes + v)))

    def _column_groups(self) -> list[range]:
        """The vectors of a row of columns in groups of like size, narrow enough for tiles of several rows."""
        count = len(self.starts)
        groups = -(-count // max(self.tile.accumulators // 5, 1))
        size = -(-count // groups)
        return [range(i, min(i + size, count)) for i in range(0, count, size)]
