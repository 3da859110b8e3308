"""Min and Max: NaN wins, and long chains stay small."""

import numpy as np
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn


def test_nan_in_any_operand_and_any_lane():
    library = tvm_dyn.compile(
        parse(
            "g (float[n] a, float[n] b, float[n] c) => (float[o] x, float[p] y){ x = Max(a, b, c)\n y = Min(a, b, c) }"
        )
    )
    values = np.array([np.nan, 1, -2, np.inf, -np.inf], "float32")
    for n in (1, 4, 33):
        for seed in range(5):
            a, b, c = np.random.default_rng(seed).choice(values, (3, n))
            largest, least = library(a, b, c)
            np.testing.assert_array_equal(largest, np.maximum(np.maximum(a, b), c))
            np.testing.assert_array_equal(least, np.minimum(np.minimum(a, b), c))


def test_a_chain_is_no_exponential_expression():
    count = 14
    inputs = ", ".join(f"float[n] x{k}" for k in range(count))
    chain = "\n".join(f" m{k} = Max(m{k - 1}, x{k})" for k in range(1, count))
    model = parse(f"g ({inputs}) => (float[o] m{count - 1}) {{ m0 = Relu(x0)\n{chain} }}")
    assert_like_onnxruntime(model, [normal(7, seed=k) for k in range(count)])
