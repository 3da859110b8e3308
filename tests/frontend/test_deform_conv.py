"""DeformConv against the sum that defines it, in float64."""

import itertools

import numpy as np
import pytest
from graphs import normal, parse

import tvm_dyn


def sample(image: np.ndarray, y: float, x: float) -> float:
    """Bilinear, 0 outside."""
    top, left, value = int(np.floor(y)), int(np.floor(x)), 0.0
    for i, j in itertools.product((top, top + 1), (left, left + 1)):
        if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
            value += image[i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
    return value


def expected(x, w, offset, mask, stride: int, pad: int, group: int, offset_group: int) -> np.ndarray:
    n, channels, height, width = x.shape
    filters, depth, rows, cols = w.shape
    out = [(extent + 2 * pad - k) // stride + 1 for extent, k in ((height, rows), (width, cols))]
    result = np.zeros((n, filters, *out))
    for b, f, oy, ox, c, ky, kx in itertools.product(*map(range, (n, filters, *out, depth, rows, cols))):
        channel = f // (filters // group) * depth + c
        tap = (channel // (channels // offset_group)) * rows * cols + ky * cols + kx
        dy, dx = offset[b, 2 * tap : 2 * tap + 2, oy, ox]
        value = sample(x[b, channel], oy * stride - pad + ky + dy, ox * stride - pad + kx + dx)
        result[b, f, oy, ox] += w[f, c, ky, kx] * value * (1 if mask is None else mask[b, tap, oy, ox])
    return result


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("group", "offset_group", "stride", "pad"), [(1, 1, 1, 1), (2, 2, 2, 0)])
def test_sums_of_sampled_elements(masked, group, offset_group, stride, pad):
    tail, info = (", , m", f", float[n,{9 * offset_group},p,q] m") if masked else ("", "")
    model = parse(
        f"g (float[n,4,h,w] x, float[n,{18 * offset_group},p,q] o{info}) => (float[n,6,p,q] y) {{ "
        f"y = DeformConv<group={group}, offset_group={offset_group}, strides=[{stride},{stride}], "
        f"pads=[{pad},{pad},{pad},{pad}], kernel_shape=[3,3]>(x, w, o{tail}) }}",
        opset=19,
        w=normal(6, 4 // group, 3, 3),
    )
    weights = normal(6, 4 // group, 3, 3).astype("float64")
    library = tvm_dyn.compile(model)
    for n, h, w in [(1, 3, 3), (2, 5, 7)]:
        places = [(extent + 2 * pad - 3) // stride + 1 for extent in (h, w)]
        x, offset = normal(n, 4, h, w), 2 * normal(n, 18 * offset_group, *places)
        mask = normal(n, 9 * offset_group, *places) if masked else None
        (got,) = library(x, offset, *([mask] if masked else []))
        want = expected(x, weights, offset, mask, stride, pad, group, offset_group)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
