"""Small models with constant weights, and a pool that makes times up instead of measuring."""

from __future__ import annotations

import itertools

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_dyn.tuning.records import variant_of


def mlp(depth: int = 96, hidden: int = 160, name: str = "n", layers: int = 1) -> tvm.IRModule:
    """relu(x @ w1) @ w2, ``layers`` times, for symbolic rows."""
    generator = np.random.default_rng(0)
    rows = tirx.Var(name, "int64")
    x = relax.Var("x", relax.TensorType([rows, depth], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            value: relax.Expr = x
            for _ in range(layers):
                w1 = relax.const(generator.standard_normal((depth, hidden)).astype("float32") / 10)
                w2 = relax.const(generator.standard_normal((hidden, depth)).astype("float32") / 10)
                value = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(value, w1))))
                value = builder.emit(relax.op.matmul(value, w2))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


class InventedTimes:
    """Wide panels are good for many rows, narrow ones for few; ``faulty``: panels that wide are wrong.

    stop_after: raises KeyboardInterrupt instead of another outcome.
    """

    def __init__(self, faulty: int = 0, stop_after: int | None = None):
        self.faulty, self.left, self.evaluated = faulty, stop_after, 0

    def evaluate(self, workload, traces, extents):
        for position, trace in enumerate(traces):
            if self.left is not None and self.evaluated == self.left:
                raise KeyboardInterrupt
            self.evaluated += 1
            variant = variant_of(trace)
            if variant.decisions["vectors"] == self.faulty:
                yield position, "wrong result"
                continue
            yield position, [self.seconds(variant, *values) for values in extents[position]]

    @staticmethod
    def seconds(variant, rows: int) -> float:
        vectors = variant.decisions["vectors"]
        return 1e-6 * (rows * (1 + 1 / vectors) + 4 * vectors) * (1 + variant.decisions["panel_major"] / 50)


class Clock:
    """Time that goes on by a second with each look."""

    def __init__(self):
        self.ticks = itertools.count()

    def __call__(self) -> float:
        return float(next(self.ticks))
