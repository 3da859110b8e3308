"""Convolutions of single pixels, as in squeeze-and-excitation blocks: dot products along the channels.

There is no row of pixels to fill vectors with.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.tasks import enough_sums, tasks
from tvm_dyn.schedules.tiles import Product

_ROWS = 4
"""Dot products side by side, which share the data and hide the latency of sums."""


def dot_products(product: Product, lanes: int, write: Callable[[Expr, Expr, Expr], Stmt], target: Target) -> Stmt:
    """``write(image, filter, sum)`` of every sum; a single pixel and tap per image."""
    rows = min(_ROWS, product.per_group)
    blocks = -(-product.per_group // rows)
    pixel = [emit.const(0)] * len(product.taps)
    whole = product.channels // lanes * lanes

    def task(n: Expr, group: Expr, block: Expr) -> Stmt:
        first = group * product.per_group + tirx.min(block * rows, emit.const(product.per_group - rows))

        def term(f: Expr, c: Expr) -> Expr:
            return product.data[(n, product.source(group, c), *pixel)] * product.weight(f, c, pixel)

        def body(first: Expr) -> Stmt:
            return emit.scratch(
                [([rows, lanes], product.dtype)],
                lambda acc: emit.seq(
                    *[emit.vectorized(lanes, lambda j, i=i: _clear(acc, i, j)) for i in range(rows)],
                    emit.serial(
                        whole // lanes,
                        lambda chunk: emit.seq(
                            *[
                                emit.vectorized(
                                    lanes, lambda j, i=i: _add(acc, i, j, term(first + i, chunk * lanes + j))
                                )
                                for i in range(rows)
                            ]
                        ),
                        "c",
                    ),
                    *[
                        emit.serial(
                            product.channels - whole,
                            lambda c, i=i: _add(acc, i, c, term(first + i, whole + c)),
                            "rest",
                        )
                        for i in range(rows if product.channels > whole else 0)
                    ],
                    *[_fold(acc, i, lanes) for i in range(rows)],
                    *[write(n, first + i, acc[i, 0]) for i in range(rows)],
                ),
            )

        return emit.bind([first], body)

    where = [product.batch, product.groups, blocks]
    return tasks(
        enough_sums(product.batch * (product.filters * product.channels)),
        product.batch * (product.groups * blocks),
        lambda index: emit.bind(emit.unflatten(index, where), task),
        target,
    )


def _clear(acc: Buffer, i: int, j: Expr) -> Stmt:
    return emit.store(acc, tirx.const(0.0, str(acc.dtype)), i, j)


def _add(acc: Buffer, i: int, j: Expr, value: Expr) -> Stmt:
    return emit.store(acc, acc[i, j] + value, i, j)


def _fold(acc: Buffer, i: int, lanes: int) -> Stmt:
    """Add the upper half of a row to the lower one until its first element holds the sum."""
    steps = []
    while lanes > 1:
        lanes //= 2
        steps.append(emit.vectorized(lanes, lambda j, half=lanes: _add(acc, i, j, acc[i, j + half])))
    return emit.seq(*steps)
