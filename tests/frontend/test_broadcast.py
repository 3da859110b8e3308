"""Dims that broadcast: equal or 1, decided by each call; anything else is an error that names the node and the dims."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn
from tvm_dyn.errors import CallError


def test_equal_or_one_is_decided_by_each_call():
    model = parse(
        "g (float[n,4] x, float[m,4] z, float[k] v) => (float[o] y, float[p] w) "
        "{ a = Add(x, z)\n b = Less(a, x)\n y = Where(b, a, z)\n w = Mul(a, v) }"
    )
    calls = [(3, 3, 4), (1, 5, 1), (5, 1, 4), (1, 1, 4), (0, 1, 4), (7, 7, 1)]
    library = assert_like_onnxruntime(
        model, *[[normal(n, 4), normal(m, 4, seed=1), normal(k)] for n, m, k in calls]
    )
    with pytest.raises(CallError, match=r"Add.*equal or 1") as caught:
        library(normal(3, 4), normal(2, 4), normal(4))
    assert caught.value.stage == "call"
    assert "3" in str(caught.value) and "2" in str(caught.value)


def test_a_join_absorbs_its_dims():
    model = parse(
        "g (float[n,2] x, float[m,2] z) => (float[o] y) { a = Add(x, z)\n b = Mul(a, x)\n y = Concat<axis=1>(a, b) }"
    )
    assert_like_onnxruntime(model, *[[normal(n, 2), normal(m, 2)] for n, m in ((2, 2), (1, 3), (3, 1))])


def test_a_table_sliced_to_the_length_bounds_the_length():
    model = parse(
        "g (float[b,s,4] x) => (float[o] y) { l = Shape<start=1, end=2>(x)\n"
        "t = Slice(table, zero, l, zero)\n y = Add(x, t) }",
        table=normal(8, 4),
        zero=np.array([0]),
    )
    library = assert_like_onnxruntime(model, *[[normal(2, s, 4)] for s in (1, 5, 8)])
    assert library.outputs[0].shape == ("b", "s", 4)
    with pytest.raises(CallError, match="Add"):
        library(normal(2, 9, 4))


@pytest.mark.parametrize("op", ["Min", "Max", "Sum", "Mean"])
def test_variadic_operators_broadcast(op):
    model = parse(f"g (float[n,4] x, float[m,4] z, float[1,k] v) => (float[o] y) {{ y = {op}(x, z, v) }}")
    assert_like_onnxruntime(
        model, [normal(3, 4), normal(1, 4), normal(1, 1)], [normal(1, 4), normal(2, 4), normal(1, 4)]
    )


def test_shifts_beyond_the_width_move_every_bit_out():
    model = parse(
        "g (int32[n] x, int32[n] s) => (int32[o] l, int32[p] r) "
        '{ l = BitShift<direction="LEFT">(x, s)\n r = BitShift<direction="RIGHT">(x, s) }'
    )
    library = tvm_dyn.compile(model)
    left, right = library(np.array([-8, 8, -8, 5], "int32"), np.array([1, 40, 32, -3], "int32"))
    assert left.tolist() == [-16, 0, 0, 0]
    assert right.tolist() == [-4, 0, -1, 0]


def test_float_modulo_follows_the_divisor_or_c():
    model = parse(
        "g (float[n] x, float[n] z) => (float[o] q, float[p] r) { q = Mod(x, z)\n r = Mod<fmod=1>(x, z) }", opset=27
    )
    x, z = np.array([-4.3, 7.2, 5.0, 4.3, -6.0], "float32"), np.array([2.1, -3.4, 8.0, -2.1, 3.0], "float32")
    python_like, c_like = tvm_dyn.compile(model)(x, z)
    np.testing.assert_allclose(python_like, np.mod(x, z), rtol=1e-5)
    np.testing.assert_allclose(c_like, np.fmod(x, z), rtol=1e-5)


def test_integer_arithmetic_follows_onnx():
    model = parse(
        "g (int64[n] x, int64[m] z) => (int64[o] q, int64[p] r, int64[s] t) "
        "{ q = Div(x, z)\n r = Mod(x, z)\n t = Mod<fmod=1>(x, z) }"
    )
    numbers = np.array([-7, -6, 5, 7, 9]), np.array([3, -3, 2, -2, 4])
    assert_like_onnxruntime(model, list(numbers), [numbers[0], np.array([3])])
