"""Float64 references of convolutions and pooling, by definition and without any cleverness."""

from __future__ import annotations

import itertools

import numpy as np


def windows(x: np.ndarray, kernel, strides, dilations) -> np.ndarray:
    """[n, c, *outputs, *kernel] of an already padded [n, c, *spatial]."""
    rank = x.ndim - 2
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, rank + 2)))
    outputs = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilations)
    return view[(slice(None), slice(None), *outputs, *taps)]


def pad(x: np.ndarray, padding, value: float = 0.0) -> np.ndarray:
    """Pad the spatial axes; padding is all befores, then all afters."""
    rank = x.ndim - 2
    return np.pad(
        x.astype("float64"),
        [(0, 0), (0, 0), *zip(padding[:rank], padding[rank:], strict=True)],
        constant_values=value,
    )


def conv(x, weight, strides, padding, dilations, groups) -> np.ndarray:
    rank = x.ndim - 2
    view = windows(pad(x, padding), weight.shape[2:], strides, dilations)
    weight = weight.astype("float64")
    filters, channels = weight.shape[0] // groups, weight.shape[1]
    parts = [
        np.tensordot(
            view[:, g * channels : (g + 1) * channels],
            weight[g * filters : (g + 1) * filters],
            axes=([1, *range(rank + 2, 2 * rank + 2)], [1, *range(2, rank + 2)]),
        )
        for g in range(groups)
    ]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def conv_transpose(x, weight, strides, padding, output_padding, groups) -> np.ndarray:
    """Every input scatters the kernel; padding trims the result (same number on both sides)."""
    rank = x.ndim - 2
    kernel, channels, filters = weight.shape[2:], weight.shape[0] // groups, weight.shape[1]
    extents = [(i - 1) * s + k + o for i, s, k, o in zip(x.shape[2:], strides, kernel, output_padding, strict=True)]
    out = np.zeros((x.shape[0], groups * filters, *extents))
    for g, tap in itertools.product(range(groups), itertools.product(*map(range, kernel))):
        part = np.tensordot(
            x[:, g * channels : (g + 1) * channels].astype("float64"),
            weight[(slice(g * channels, (g + 1) * channels), slice(None), *tap)].astype("float64"),
            axes=([1], [0]),
        )
        where = [slice(t, t + (i - 1) * s + 1, s) for t, i, s in zip(tap, x.shape[2:], strides, strict=True)]
        out[(slice(None), slice(g * filters, (g + 1) * filters), *where)] += np.moveaxis(part, -1, 1)
    trim = [slice(p, e - p) for p, e in zip(padding, extents, strict=True)]
    return out[(slice(None), slice(None), *trim)] if rank else out


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
