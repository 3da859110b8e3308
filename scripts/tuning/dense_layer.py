"""The model of the scripts beside it: one product with constant weights."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx


def dense(rows: int | tirx.Var, depth: int, columns: int) -> tvm.IRModule:
    """float32 (rows, depth) times a constant (depth, columns)."""
    x = relax.Var("x", relax.TensorType([rows, depth], "float32"))
    weight = relax.const(np.random.default_rng(0).standard_normal((depth, columns)).astype("float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, weight))
        builder.emit_func_output(result)
    return builder.get()
