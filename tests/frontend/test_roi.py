"""Pooling over regions of interest against onnxruntime."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn


def _regions(count: int) -> np.ndarray:
    rng = np.random.default_rng(count)
    corner = rng.uniform(-3, 12, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(0.1, 14, (count, 2))], 1).astype("float32")


@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(ratio: int):
    """Without a sampling ratio the number of samples depends on the regions."""
    attributes = f"output_height=3, output_width=2, spatial_scale=0.5, sampling_ratio={ratio}"
    model = parse(
        "g (float[n,2,h,w] x, float[r,4] rois, int64[r] image) =>"
        "(float[a,b,c,d] y, float[e,f,g,i] z, float[j,k,l,m] u) {"
        f" y = RoiAlign<{attributes}>(x, rois, image)\n"
        f' z = RoiAlign<{attributes}, mode="max">(x, rois, image)\n'
        f' u = RoiAlign<{attributes}, coordinate_transformation_mode="output_half_pixel">(x, rois, image) }}'
    )
    calls = [[normal(2, 2, h, w), _regions(r), np.arange(r) % 2] for h, w, r in ((7, 9, 4), (5, 12, 1))]
    library = assert_like_onnxruntime(model, *calls)
    assert library(normal(1, 2, 5, 5), np.zeros((0, 4), "float32"), np.zeros(0, "int64"))[0].shape == (
        0,
        2,
        3,
        2,
    )


def test_max_roi_pool():
    model = parse(
        "g (float[n,2,h,w] x, float[r,5] rois) => (float[a,b,c,d] y)"
        "{ y = MaxRoiPool<pooled_shape=[2,3], spatial_scale=0.5>(x, rois) }"
    )
    calls = []
    for h, w, r in ((7, 9, 4), (12, 5, 1)):
        image = (np.arange(r) % 2).astype("float32")[:, None]
        calls.append([normal(2, 2, h, w), np.concatenate([image, np.round(_regions(r))], 1)])
    assert_like_onnxruntime(model, *calls)
    assert tvm_dyn.compile(model)(calls[0][0], np.zeros((0, 5), "float32"))[0].shape == (0, 2, 2, 3)
