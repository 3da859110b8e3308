"""DFT and STFT against numpy's transforms in float64: any length, known at import or not."""

import numpy as np
import pytest
from graphs import normal, parse

import tvm_dyn

LENGTHS = (1, 2, 7, 16, 33)


def parts(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1).astype("float32")


def whole(x: np.ndarray) -> np.ndarray:
    return x[..., 0].astype("float64") + 1j * x[..., 1]


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_transforms_of_a_symbolic_axis():
    model = parse(
        "g (float[b,n,3,1] x, float[b,n,3,2] z) "
        "=> (float[b,n,3,2] a, float[b,k,3,2] half, float[b,n,3,2] c, float[b,n,3,2] d) { "
        "a = DFT(x, , axis)\n half = DFT<onesided=1>(x, , axis)\n c = DFT(z, , axis)\n d = DFT<inverse=1>(z, , axis) }",
        opset=20,
        axis=np.array(1),
    )
    library = tvm_dyn.compile(model)
    for n in LENGTHS:
        x, z = normal(2, n, 3, 1), normal(2, n, 3, 2)
        real = x[..., 0].astype("float64")
        wanted = (np.fft.fft(real, axis=1), np.fft.rfft(real, axis=1), np.fft.fft(whole(z), axis=1))
        results = library(x, z)
        for got, want in zip(results, (*wanted, np.fft.ifft(whole(z), axis=1)), strict=True):
            close(got, parts(want))


@pytest.mark.parametrize("length", [8, 15, 20])
def test_a_given_length_cuts_or_pads(length):
    model = parse(
        "g (float[b,n,1] x) => (float[b,k,2] y) { y = DFT<onesided=1>(x, size, axis) }",
        opset=20,
        size=np.array(length),
        axis=np.array(1),
    )
    library = tvm_dyn.compile(model)
    for n in LENGTHS:
        x = normal(2, n, 1)
        close(library(x)[0], parts(np.fft.rfft(x[..., 0].astype("float64"), length, axis=1)))


def test_the_way_back_to_real_numbers():
    text = "g (float[b,k,2] x) => (float[b,n,1] y) { y = DFT<onesided=1, inverse=1>(x, , axis) }"
    model = parse(text, opset=20, axis=np.array(1))
    library = tvm_dyn.compile(model)
    for bins in (2, 5, 17):
        x = normal(3, bins, 2)
        close(library(x)[0], np.fft.irfft(whole(x), axis=1)[..., None])


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time_transform(onesided):
    window = np.hanning(16).astype("float32")
    model = parse(
        f"g (float[b,t,1] x) => (float[b,f,k,2] y) {{ y = STFT<onesided={onesided}>(x, step, window) }}",
        opset=17,
        step=np.array(5),
        window=window,
    )
    library = tvm_dyn.compile(model)
    for time in (16, 20, 21, 64):
        x = normal(2, time, 1)
        frames = np.stack([x[:, s : s + 16, 0] * window for s in range(0, time - 15, 5)], 1).astype("float64")
        close(library(x)[0], parts(np.fft.rfft(frames) if onesided else np.fft.fft(frames)))
