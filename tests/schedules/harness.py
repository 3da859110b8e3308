"""Compile a small Relax graph through the pipeline, and run it at several shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_dyn import pipeline
from tvm_dyn.hardware import host_target
from tvm_dyn.schedules import schedule_prim_func

TARGET = host_target()
_FUSE = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
)


def dim(name: str) -> tirx.Var:
    """A symbolic extent."""
    return tirx.Var(name, "int64")


def module(inputs: Sequence[tuple], graph: Callable) -> tvm.IRModule:
    """The module of ``graph(bb, *inputs)``; inputs are (shape, dtype), shapes with symbols."""
    bb = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(inputs)]
    with bb.function("main", params):
        with bb.dataflow():
            result = bb.emit_output(graph(bb, *params))
        bb.emit_func_output(result)
    return bb.finalize()


def fused(inputs: Sequence[tuple], graph: Callable) -> tvm.IRModule:
    """The same after fusion."""
    return _FUSE(module(inputs, graph))


def prim_funcs(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    """The PrimFuncs of a module."""
    return [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]


def scheduled(inputs: Sequence[tuple], graph: Callable) -> list[tirx.PrimFunc]:
    """The scheduled PrimFuncs of a graph."""
    return [schedule_prim_func(func, TARGET) for func in prim_funcs(fused(inputs, graph))]


class Compiled:
    """A graph compiled with our schedules; call it with numpy arrays."""

    def __init__(self, inputs: Sequence[tuple], graph: Callable, target=TARGET):
        self._vm = relax.VirtualMachine(pipeline.build(module(inputs, graph), target), tvm.cpu())

    def __call__(self, *arrays: np.ndarray):
        result = self._vm["main"](*[tvm.runtime.tensor(a) for a in arrays])
        if isinstance(result, tvm.runtime.Tensor):
            return result.numpy()
        return [r.numpy() for r in result]


def random(shape, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Fresh random values: normal for floats, the small integers for others."""
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0 if dtype.startswith("u") else -100, 100, shape).astype(dtype)
