"""RotaryEmbedding, TensorScatter, CausalConvWithState and BitCast against ONNX's reference at several extents."""

import numpy as np
import pytest
from graphs import normal, parse
from onnx.reference import ReferenceEvaluator

import tvm_dyn


def check(model, *calls) -> None:
    library, reference = tvm_dyn.compile(model), ReferenceEvaluator(model)
    names = [i.name for i in model.graph.input]
    for arrays in calls:
        wanted = reference.run(None, dict(zip(names, arrays, strict=True)))
        for got, want in zip(library(*arrays), wanted, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


ANGLES = np.arange(30)[:, None] / 10.0 ** np.arange(4)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ["heads", "flat", "partial"])
def test_rotation(form, interleaved):
    shape = {"heads": "b,2,s,8", "flat": "b,s,16", "partial": "b,2,s,12"}[form]
    attrs = {"heads": "", "flat": ", num_heads=2", "partial": ", rotary_embedding_dim=8"}[form]
    model = parse(
        f"g (float[{shape}] x, int64[b,s] p) => (float[{shape}] y) {{ "
        f"y = RotaryEmbedding<interleaved={interleaved}{attrs}>(x, c, s1, p) }}",
        opset=23,
        c=np.cos(ANGLES).astype("float32"),
        s1=np.sin(ANGLES).astype("float32"),
    )

    def call(b: int, s: int) -> list[np.ndarray]:
        dims = {"heads": (b, 2, s, 8), "flat": (b, s, 16), "partial": (b, 2, s, 12)}[form]
        return [normal(*dims), np.random.default_rng(s).integers(0, 30, (b, s))]

    check(model, call(1, 1), call(2, 7), call(3, 16))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_writing_into_a_cache(mode):
    model = parse(
        "g (float[b,2,m,4] c, float[b,2,s,4] u, int64[b] at) => (float[b,2,m,4] y) { "
        f'y = TensorScatter<mode="{mode}">(c, u, at) }}',
        opset=24,
    )
    calls = []
    for b, m, s in [(1, 1, 1), (2, 7, 3), (3, 16, 1)]:
        start = np.arange(b) + m - s if mode == "circular" else np.minimum(np.arange(b), m - s)
        calls.append([normal(b, 2, m, 4), normal(b, 2, s, 4, seed=1), start])
    check(model, *calls)


@pytest.mark.parametrize("past", [False, True])
def test_a_causal_convolution_carries_its_state(past):
    model = parse(
        f"g (float[b,6,t] x{', float[b,6,3] p' if past else ''}) => (float[b,6,t] y, float[b,6,3] q) {{ "
        f'y, q = CausalConvWithState<activation="silu">(x, w, c{", p" if past else ""}) }}',
        opset=27,
        w=normal(6, 1, 4),
        c=normal(6),
    )
    calls = [[normal(b, 6, t), normal(b, 6, 3, seed=1)] for b, t in [(1, 1), (2, 7), (3, 16)]]
    check(model, *[call if past else call[:1] for call in calls])


def test_bits_of_another_type():
    text = "g (float[n] x) => (int32[n] y, float[n] z) { y = BitCast<to=6>(x)\n z = BitCast<to=1>(y) }"
    model = parse(text, opset=26)
    check(model, [normal(1)], [normal(17)], [np.array([np.inf, -0.0, np.nan], "float32")])
