"""Modules of one function, for tests of passes, and what the pipeline fuses them to."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.relax import Expr
from tvm.target import Target

from tvm_dyn import pipeline
from tvm_dyn.hardware import host_target


def module(graph: Callable[..., Expr | tuple[Expr, ...]], *shapes, dtype: str = "float32") -> tvm.IRModule:
    """The dataflow ``graph(emit, *inputs)``, its inputs of these shapes; a tuple's members are the results."""
    inputs = [relax.Var(f"x{k}", relax.TensorType(list(shape), dtype)) for k, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            results = graph(builder.emit, *inputs)
            results = results if isinstance(results, tuple) else (results,)
            outputs = [builder.emit_output(result) for result in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def fused(mod: tvm.IRModule, target: Target | None = None) -> tvm.IRModule:
    """What the phases before decisions and schedules make of a module."""
    return pipeline.fused(mod, target or host_target())
