"""The loop nest of attention for a few queries, each on its own: keys and values stream by once.

    for task in parallel(batch * queries):
        for block of keys:
            for group of keys, one per lane:
                acc[key, :] += q[:] * k[key, :]            # vectors along the depth
                raw[key] = sum(lane, acc[key, lane])       # all keys of the group in one tree of shuffles
            s[key] = score(raw[key])
            m, m_old = max(m, max(key, s)), m
            s[key] = exp(s[key] - m);  l = l * exp(m_old - m) + sum(key, s)
            o[:] = o[:] * exp(m_old - m) + sum(key, s[key] * v[key, :])
        out[:] = o[:] / l

This is decoding with a cache. Vectors of queries would be empty but for a lane.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Stmt

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.attention_match import Attention
from tvm_dyn.schedules.attention_tile import AttentionTile, store_result, vector_columns
from tvm_dyn.schedules.common import as_int, substitute
from tvm_dyn.schedules.matmul_product import unravel

_DTYPE = "float32"
_LOWEST = tirx.const(float("-inf"), _DTYPE)


class AttentionRow:
    """Emits the work on one query: a position in (batch, query)."""

    def __init__(self, found: Attention, tile: AttentionTile):
        self.found, self.tile = found, tile
        self.keys = found.key.dom.extent
        self.depth, self.columns = as_int(found.depth.dom.extent) or 0, as_int(found.column.dom.extent) or 0

    def task(self, position) -> Stmt:
        """All keys for one query."""
        batch, query = emit.unflatten(
            position, [emit.product([iv.dom.extent for iv in self.found.batch]), self.found.query.dom.extent]
        )
        env = unravel(batch, self.found.batch) | {self.found.query.var: query}
        size, lanes = self.tile.row_keys, self.tile.lanes

        def body(raw, s, o, state) -> Stmt:
            def block(b) -> Stmt:
                values = [b * size, tirx.min(emit.const(size), self.keys - b * size)]
                return emit.bind(values, lambda first, count: self._block(env, raw, s, o, state, first, count))

            total = tirx.Select(self.keys > 0, tirx.const(0, _DTYPE), tirx.const(1, _DTYPE))
            return emit.seq(
                emit.store(state, _LOWEST, 0),
                emit.store(state, total, 1),
                self._over_columns(lambda j: emit.store(o, tirx.const(0, _DTYPE), j)),
                emit.serial(emit.ceildiv(self.keys, size), block, "keys"),
                self._over_columns(lambda j: store_result(self.found, env, j, emit.load(o, j), emit.load(state, 1))),
            )

        return emit.scratch(
            [([size + lanes], _DTYPE), ([size + lanes], _DTYPE), ([self.columns], _DTYPE), ([3], _DTYPE)], body
        )

    def _block(self, env: dict, raw, s, o, state, first, count) -> Stmt:
        lanes, found = self.tile.lanes, self.found

        def score(j) -> Stmt:
            value = substitute(found.score, {**env, found.raw: emit.load(raw, j), found.key.var: first + j})
            return emit.store(s, value, j)

        return emit.seq(
            emit.serial(emit.ceildiv(count, lanes), lambda g: self._group(env, raw, first, g * lanes)),
            emit.vectorized(lanes, lambda v: emit.store(s, _LOWEST, count + v)),
            emit.chunks(count, lanes, score),
            self._weights(s, state, emit.ceildiv(count, lanes)),
            self._sum(env, s, o, state, first, count),
        )

    def _group(self, env: dict, raw, first, start) -> Stmt:
        """The products of the query with as many keys as there are lanes."""
        lanes, width = self.tile.lanes, self._width()
        found = self.found

        def body(acc) -> Stmt:
            def each(statement: Callable) -> Stmt:
                return emit.unrolled(
                    lanes,
                    lambda i: emit.vectorized(width, lambda v: statement(i, v)),
                )

            def update(step, i, v) -> Stmt:
                key = tirx.min(first + start + i, self.keys - 1)
                point = {**env, found.depth.var: step * width + v, found.key.var: key}
                product = substitute(found.q, point) * substitute(found.k, point)
                index = i * width + v
                return emit.store(acc, emit.load(acc, index) + product, index)

            return emit.seq(
                each(lambda i, v: emit.store(acc, tirx.const(0, _DTYPE), i * width + v)),
                emit.serial(self.depth // width, lambda d: each(lambda i, v: update(d, i, v))),
                *_sums(acc, lanes, width),
                emit.vectorized(lanes, lambda v: emit.store(raw, emit.load(acc, v), start + v)),
            )

        return emit.scratch([([lanes * width], _DTYPE)], body)

    def _width(self) -> int:
        """Elements of a vector along the depth, which they divide."""
        width = self.tile.lanes
        while self.depth % width:
            width //= 2
        return width

    def _weights(self, s, state, vectors) -> Stmt:
        """Scores become weights relative to the highest score so far; ``state``: highest, sum, last shrinkage."""
        lanes = self.tile.lanes

        def body(highest, total) -> Stmt:
            def over(statement: Callable) -> Stmt:
                return emit.serial(vectors, lambda i: emit.vectorized(lanes, lambda v: statement(i * lanes + v, v)))

            def weight(j, v) -> Stmt:
                value = tirx.exp(emit.load(s, j) - emit.load(highest, v))
                return emit.seq(emit.store(s, value, j), emit.store(total, emit.load(total, v) + emit.load(s, j), v))

            top = _tree([emit.load(highest, v) for v in range(lanes)], tirx.max)

            def relative(top) -> Stmt:
                base = tirx.Select(top.equal(_LOWEST), tirx.const(0, _DTYPE), top)
                shrink = tirx.exp(emit.load(state, 0) - base)
                return emit.seq(
                    emit.store(state, shrink, 2),
                    emit.store(state, base, 0),
                    emit.vectorized(lanes, lambda v: emit.store(highest, emit.load(state, 0), v)),
                )

            added = _tree([emit.load(total, v) for v in range(lanes)], lambda a, b: a + b)
            return emit.seq(
                emit.vectorized(lanes, lambda v: emit.store(highest, emit.load(state, 0), v)),
                emit.vectorized(lanes, lambda v: emit.store(total, tirx.const(0, _DTYPE), v)),
                over(lambda j, v: emit.store(highest, tirx.max(emit.load(highest, v), emit.load(s, j)), v)),
                _bound(top, relative),
                over(weight),
                emit.store(state, emit.load(state, 1) * emit.load(state, 2) + added, 1),
            )

        return emit.scratch([([lanes], _DTYPE), ([lanes], _DTYPE)], body)

    def _sum(self, env: dict, s, o, state, first, count) -> Stmt:
        """Values weighted and summed, several keys at a time so that the sums do not wait for each other."""
        starts, lanes = vector_columns(self.columns, self.tile.lanes)
        together = max(self.tile.accumulators // len(starts), 1)
        size = len(starts) * lanes
        found = self.found

        def over(statement: Callable) -> Stmt:
            return emit.seq(
                *[
                    emit.vectorized(lanes, lambda v, n=n, c=c: statement(n * lanes + v, c + v))
                    for n, c in enumerate(starts)
                ]
            )

        def body(acc) -> Stmt:
            def update(key, u, j, column) -> Stmt:
                value = substitute(found.v, {**env, found.key.var: first + key, found.column.var: column})
                index = u * size + j
                return emit.store(acc, emit.load(acc, index) + emit.load(s, key) * value, index)

            def keys(key, n: int) -> Stmt:
                return emit.unrolled(n, lambda u: over(lambda j, c: update(key + u, u, j, c)))

            def result(j, column) -> Stmt:
                sums = [emit.load(acc, u * size + j) for u in range(together)]
                kept = emit.load(o, column) * emit.load(state, 2)
                return emit.store(acc, _tree(sums, lambda a, b: a + b) + kept, j)

            full = emit.quotient(count, together)
            zero = tirx.const(0, _DTYPE)
            return emit.seq(
                emit.unrolled(together, lambda u: over(lambda j, c: emit.store(acc, zero, u * size + j))),
                emit.serial(full, lambda i: keys(i * together, together)),
                emit.serial(count - full * together, lambda i: keys(full * together + i, 1)),
                over(result),
                over(lambda j, column: emit.store(o, emit.load(acc, j), column)),
            )

        return emit.scratch([([together * size], _DTYPE)], body)

    def _over_columns(self, statement: Callable) -> Stmt:
        starts, lanes = vector_columns(self.columns, self.tile.lanes)
        return emit.seq(*[emit.vectorized(lanes, lambda v, c=c: statement(c + v)) for c in starts])


def _sums(acc, count: int, width: int) -> list[Stmt]:
    """Sums of ``count`` vectors of ``width`` elements in ``acc``, left in its first ``count`` elements.

    Each step adds neighbours of a pair of vectors into one vector.
    """
    steps: list[Stmt] = []
    if width == 1:
        return steps
    vectors, even, odd = count, range(0, 2 * width, 2), range(1, 2 * width, 2)
    while vectors > count // width:
        for n in range(vectors // 2):
            pair = [emit.load(acc, tirx.Ramp(emit.const(i * width), 1, width)) for i in (2 * n, 2 * n + 1)]
            halves = [tirx.Shuffle(pair, [tirx.const(i, "int32") for i in lanes]) for lanes in (even, odd)]
            steps.append(emit.store(acc, halves[0] + halves[1], tirx.Ramp(emit.const(n * width), 1, width)))
        vectors //= 2
    return steps


def _tree(values: list[Expr], combine: Callable[[Expr, Expr], Expr]) -> Expr:
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def _bound(value: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
    var = tirx.Var("value", _DTYPE)
    return emit.seq(tirx.stmt.Bind(var, value), body(var))
