"""Reductions of a row in vectors: a total for each lane, halved until one is left.

    totals[0:64] = identity                                 # four vectors
    for n in range(extent // 64): totals[:] = combine(totals[:], row[n * 64 : n * 64 + 64])
    totals[0:32] = combine(totals[0:32], totals[32:64]) ... # then single vectors, then single elements
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Stmt

from tvm_dyn.runtime.bytecode.blocks import Block
from tvm_dyn.runtime.bytecode.isa import Body
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.emit import const

VECTORS = 4
"""Vectors of float32 that are computed at once."""


@dataclass(frozen=True)
class Fold:
    """A reduction: what it starts from, how an element joins a total, and elements to a vector."""

    dtype: str
    identity: float | int
    combine: Body
    lanes: int

    def emit(
        self,
        block: Block,
        extent: Expr,
        element: Callable[[Expr], Expr],
        before: Callable[[Expr], Stmt] | None = None,
    ) -> Expr:
        """The total of ``element(i)`` for i below ``extent``; ``before(i)`` runs before the element is read."""
        wide = self.lanes * VECTORS
        totals, total = block.scratch(wide, self.dtype), block.scratch(1, self.dtype)
        identity = tirx.const(self.identity, self.dtype)
        vectors = block.let(emit.quotient(extent, wide), "vectors")
        done = block.let(vectors * wide, "done")
        single = block.let(emit.quotient(extent - done, self.lanes), "single")
        rest = block.let(done + single * self.lanes, "rest")

        def clear(inside: Block, width: int) -> None:
            inside.add(emit.vectorized(width, lambda j: tirx.BufferStore(totals, identity, [j])))

        def join(inside: Block, start: Expr, width: int) -> None:
            if before is not None:
                prepare = before
                inside.add(emit.vectorized(width, lambda j: prepare(start + j)))
            inside.add(
                emit.vectorized(
                    width,
                    lambda j: tirx.BufferStore(totals, self.combine(totals[j], element(start + j)), [j]),
                )
            )

        def in_vectors(inside: Block) -> None:
            clear(inside, wide)
            inside.loop(vectors, lambda innermost, n: join(innermost, n * wide, wide))
            self._halve(inside, totals, wide, self.lanes)

        def across(inside: Block) -> None:
            self._halve(inside, totals, self.lanes, 1)
            inside.store(total, totals[const(0)], 0)

        def last(inside: Block, n: Expr) -> None:
            if before:
                inside.add(before(rest + n))
            inside.store(total, self.combine(total[const(0)], element(rest + n)), 0)

        block.store(total, identity, 0)
        block.when(vectors > 0, in_vectors)
        block.when(vectors < 1, lambda inside: clear(inside, self.lanes))
        block.loop(single, lambda inside, n: join(inside, done + n * self.lanes, self.lanes))
        block.when(extent >= self.lanes, across)
        block.loop(extent - rest, last)
        return block.let(total[const(0)], "total")

    def _halve(self, block: Block, totals: tirx.Buffer, lanes: int, until: int) -> None:
        while lanes > until:
            lanes //= 2
            half = lanes
            block.add(
                emit.vectorized(
                    lanes,
                    lambda j, half=half: tirx.BufferStore(totals, self.combine(totals[j], totals[j + half]), [j]),
                )
            )
