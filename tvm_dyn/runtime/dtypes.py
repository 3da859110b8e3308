"""Element types as TVM, numpy and DLPack see them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

# numpy knows these through ml_dtypes but cannot pass them through DLPack: their bits travel as integers.
_EXTENSIONS = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of TVM's dtype `name`; raises `TypeError` where numpy has none."""
    return np.dtype(_EXTENSIONS.get(name, name))


def carrier_dtype(name: str) -> str | None:
    """The unsigned dtype whose bits stand in for `name` in DLPack, or None where numpy passes it as it is."""
    return f"uint{8 * numpy_dtype(name).itemsize}" if name in _EXTENSIONS else None
