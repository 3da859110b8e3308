"""Constant weights of channels-last convolutions as their kernels want them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.target import Target

from tvm_dyn import hardware
from tvm_dyn.schedules import winograd
from tvm_dyn.schedules.panel import PanelTile
from tvm_dyn.schedules.window import Axis


def pointwise(weight: np.ndarray) -> np.ndarray:
    """[c, f] of [f, c, 1, 1]."""
    return np.ascontiguousarray(weight.reshape(weight.shape[:2]).T)


def pack(weight: np.ndarray, axes: Sequence[Axis], target: Target) -> np.ndarray:
    """[panel, tap, c, column] of [f, c, ry, rx], zeros for columns beyond the last filter.

    Where Winograd's algorithm may pay, its transform of the weights follows as 36 more taps.
    """
    filters, channels = weight.shape[:2]
    columns = PanelTile.choose_columns(filters, str(weight.dtype), target)
    panels = -(-filters // columns)
    taps = weight.transpose(2, 3, 1, 0)
    if _may_filter(filters, channels, axes, target) and not _are_whole(weight):
        taps = np.concatenate([taps.reshape(-1, channels, filters), winograd.transformed(taps)])
    taps = taps.reshape(-1, channels, filters).astype(weight.dtype)
    padded = np.pad(taps, [(0, 0), (0, 0), (0, panels * columns - filters)])
    return np.ascontiguousarray(padded.reshape(-1, channels, panels, columns).transpose(2, 0, 1, 3))


def _are_whole(weight: np.ndarray) -> bool:
    """Whether the weights are whole numbers: sums with them may be meant to be exact."""
    return bool(np.array_equal(weight, np.rint(weight)))


def _may_filter(filters: int, channels: int, axes: Sequence[Axis], target: Target) -> bool:
    """3x3 windows of stride 1, with enough sums to each transform and with weights that stay in cache."""
    plain = all((axis.kernel, axis.stride, axis.dilation) == (3, 1, 1) for axis in axes)
    size = winograd.IN**2 * filters * channels * 4
    return (
        plain
        and min(filters, channels) >= hardware.lanes(target, "float32")
        and size <= (hardware.cache_bytes(target, 3) // 2)
    )


def with_transforms(panels: np.ndarray) -> np.ndarray:
    """Any panels [panel, tap, c, column] with what follows nine taps made the transform of these, as `pack` does."""
    if panels.ndim != 4 or panels.shape[1] != 9 + winograd.IN**2:
        return panels
    taps = panels[:, :9].transpose(1, 0, 2, 3)
    more = winograd.transformed(taps.reshape(3, 3, *taps.shape[1:])).astype(panels.dtype)
    return np.ascontiguousarray(np.concatenate([taps, more]).transpose(1, 0, 2, 3))
