"""Small Relax modules and arrays that several runtime tests build."""

import numpy as np
import tvm
from tvm import relax

import tvm_dyn


def compile_outputs(build, *params: relax.Var, num_threads=1) -> tvm_dyn.Library:
    """Compile the function of `params` whose outputs `build` gives as expressions."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        with builder.dataflow():
            outputs = [builder.emit_output(builder.normalize(value)) for value in build(*params)]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return tvm_dyn.compile(builder.get(), num_threads=num_threads)


def param(name: str, dtype: str, *shape: object) -> relax.Var:
    """A parameter whose string extents are new symbolic dims."""
    dims = {extent: tvm.tirx.Var(extent, "int64") for extent in shape if isinstance(extent, str)}
    return relax.Var(name, relax.TensorType([dims.get(extent, extent) for extent in shape], dtype))


def aligned(shape, dtype="float32", offset=0) -> np.ndarray:
    """Random values at an address that is `offset` bytes past a multiple of 64."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.empty(size + 128, np.uint8)
    start = -buffer.ctypes.data % 64 + offset
    array = buffer[start : start + size].view(dtype).reshape(shape)
    array[...] = np.random.default_rng(size).standard_normal(shape)
    return array
