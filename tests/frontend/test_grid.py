"""GridSample and AffineGrid against the reference evaluator and onnxruntime."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse
from onnx.reference import ReferenceEvaluator

import tvm_dyn

_PADDINGS = ("zeros", "border", "reflection")
_KINDS = [
    *[(mode, padding, align) for mode in ("linear", "nearest") for padding in _PADDINGS for align in (0, 1)],
    *[("cubic", padding, align) for padding, align in (("zeros", 1), ("border", 0), ("reflection", 0))],
]


def test_grid_sample_in_every_mode():
    """The reference evaluator decides: onnxruntime differs for cubic with border."""
    lines = [
        f' y{k} = GridSample<mode="{mode}", padding_mode="{padding}", align_corners={align}>(x, grid)'
        for k, (mode, padding, align) in enumerate(_KINDS)
    ]
    outputs = ", ".join(f"float[a{k},b{k},c{k},d{k}] y{k}" for k in range(len(_KINDS)))
    head = f"g (float[n,2,h,w] x, float[n,o,p,2] grid) => ({outputs})"
    model = parse(head + " {" + "\n".join(lines) + "}", opset=20)
    library, evaluator = tvm_dyn.compile(model), ReferenceEvaluator(model)
    for n, h, w, o, p in ((1, 4, 5, 3, 2), (2, 7, 3, 1, 11)):
        x, grid = normal(n, 2, h, w), (1.1 * normal(n, o, p, 2)).astype("float32")
        for got, want in zip(library(x, grid), evaluator.run(None, {"x": x, "grid": grid}), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_grid_sample_in_a_volume():
    model = parse(
        "g (float[n,1,d,h,w] x, float[n,o,p,q,3] grid) => (float[a,b,c,e,f] y) { y = GridSample(x, grid) }",
        opset=20,
    )
    assert_like_onnxruntime(
        model, [normal(1, 1, 3, 4, 5), normal(1, 2, 3, 2, 3)], [normal(2, 1, 2, 2, 7), normal(2, 1, 1, 5, 3)]
    )


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid_of_a_symbolic_size(align: int):
    model = parse(
        "g (float[n,2,3] theta, float[n,c,h,w] x) => (float[a,b,d,e] y) {"
        f" s = Shape(x)\n grid = AffineGrid<align_corners={align}>(theta, s)\n y = GridSample(x, grid) }}",
        opset=20,
    )
    calls = [[normal(n, 2, 3), normal(n, 2, h, w)] for n, h, w in ((1, 4, 5), (2, 7, 3), (1, 2, 11))]
    assert_like_onnxruntime(model, *calls)
