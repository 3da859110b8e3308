"""Random arrays that a library accepts: for a first run, a smoke test or a timing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .errors import InvalidInputError
from .runtime.dtypes import numpy_dtype
from .runtime.executable import Library
from .runtime.expressions import parse_shape_expression
from .runtime.signature import DimInfo, TensorInfo


def random_inputs(
    library: Library,
    extents: Mapping[str, int] | None = None,
    *,
    given: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Arrays by input name: the `given` ones, the others random: floats in [0, 1), integers 0 or 1.

    extents: of symbolic dims; a dim left out takes what a given array has, else its smallest extent above 0.
    Raises `InvalidInputError` on a dim that the library does not have and on inputs of open rank.
    """
    arrays = dict(given or {})
    dims = _smallest(library)
    for name in extents or {}:
        if name not in dims:
            known = ", ".join(map(repr, dims)) or "none"
            raise InvalidInputError(f"the library has no symbolic dim {name!r}; it has {known}")
    dims |= _extents_of(library, arrays) | dict(extents or {})
    generator = np.random.default_rng(seed)
    for info in library.inputs:
        if info.name not in arrays:
            arrays[info.name] = _random_array(generator, info, dims)
    return arrays


def _smallest(library: Library) -> dict[str, int]:
    texts = (extent for info in library.inputs for extent in info.shape or () if isinstance(extent, str))
    names = {name for text in texts if (parsed := parse_shape_expression(text)) for name in parsed.names}
    dims = {}
    for name in sorted(names | library.dims.keys()):
        info = library.dims.get(name, DimInfo())
        dims[name] = -(-max(info.min, 1) // info.divisor) * info.divisor
    return dims


def _extents_of(library: Library, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {
        extent: size
        for info in library.inputs
        if info.name in arrays and info.shape is not None
        for extent, size in zip(info.shape, arrays[info.name].shape, strict=False)
        if isinstance(extent, str)
    }


def _random_array(generator: np.random.Generator, info: TensorInfo, dims: Mapping[str, int]) -> np.ndarray:
    if info.shape is None:
        raise InvalidInputError(f"input {info.name!r} has no known rank: pass an array")
    shape = [extent if isinstance(extent, int) else _evaluate(info, extent, dims) for extent in info.shape]
    dtype = numpy_dtype(info.dtype)
    if dtype.kind in "iub":
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.random(shape).astype(dtype)


def _evaluate(info: TensorInfo, text: str, dims: Mapping[str, int]) -> int:
    expression = parse_shape_expression(text)
    if expression is None:
        raise InvalidInputError(f"input {info.name!r} has the extent {text}: pass an array")
    return expression.evaluate(dims)
