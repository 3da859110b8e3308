"""A range of elements in vectors: the loops around the innermost statement of a row.

for i in n // 64: four vectors    for i in n % 64 // 16: a vector    if n & 8: half a vector    if n & 4: ...
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx import Stmt

from tvm_dyn.schedules import emit

VECTORS = 4
"""Vectors in a step of the main loop."""


def sweep(extent, lanes: int, update: Callable, together: bool = False) -> Stmt:
    """``update(lane, k)`` for every k, in order of lanes: four vectors at a time, then one, then halves of one.

    Nothing overlaps: a load of what two earlier stores left has to wait until both have reached the cache. Lanes
    are constants, so that they stay in registers. together: take each step of a long computation on all four
    vectors, as the steps of one wait for each other.
    """
    width = lanes * VECTORS
    vector = width if together else lanes

    def vectors(wide, left) -> Stmt:
        def part(size: int) -> Stmt:
            start = extent - tirx.truncmod(left, emit.const(2 * size))
            present = tirx.truncmod(left, emit.const(2 * size)) >= size
            return emit.when(present, emit.vectorized(size, lambda v: update(v, start + v)))

        return emit.seq(
            emit.serial(
                wide,
                lambda i: emit.unrolled(
                    width // vector,
                    lambda u: emit.vectorized(vector, lambda v: update(u * vector + v, i * width + u * vector + v)),
                ),
            ),
            emit.serial(
                emit.quotient(extent - wide * width, lanes),
                lambda i: emit.vectorized(lanes, lambda v: update(v, wide * width + i * lanes + v)),
            ),
            *[part(lanes >> n) for n in range(1, lanes.bit_length())],
        )

    remainder = tirx.truncmod(extent, emit.const(lanes))
    return emit.bind([emit.quotient(extent, width), remainder], vectors)
