"""Random programs: the same operations in `tvm_dyn.lazy` and in numpy give the same arrays."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvm_dyn import lazy as xp

DTYPES = ["float32", "float64", "int32", "int64", "bool"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-40, 3e38, 0.5]

# Every one of these rounds as numpy does: bits are compared.
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum"]
COMPARE = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
LOGICAL = ["logical_and", "logical_or", "logical_xor"]
UNARY = ["negative", "abs", "square", "sign", "sqrt", "floor", "ceil", "trunc", "round"]
REDUCE = ["sum", "max", "min", "any", "all", "argmax", "mean", "prod"]
SMOOTH = ["exp", "log", "tanh"]


@st.composite
def shapes(draw):
    extents = st.sampled_from([0, 1, 2, 3, 5, 16, 17, 65])
    return tuple(draw(st.lists(extents, min_size=0, max_size=3)))


def make(rng, shape, dtype):
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("int"):
        return rng.integers(-9, 9, shape).astype(dtype)
    values = np.asarray(rng.standard_normal(shape) * 3, dtype)
    return np.where(rng.random(shape) < 0.1, rng.choice(np.asarray(SPECIAL, dtype), shape), values)


def view(draw, array):
    """Some other look at the array: transposed, cut, or reversed."""
    kind = draw(st.sampled_from(["whole", "transposed", "strided", "reversed", "newaxis"]))
    if kind == "transposed":
        return lambda a: a.T
    if kind == "strided" and array.ndim:
        return lambda a: a[..., ::2]
    if kind == "reversed" and array.ndim:
        return lambda a: a[::-1]
    if kind == "newaxis":
        return lambda a: a[..., None]
    return lambda a: a


class Program:
    """Pairs of equal arrays, one of numpy and one of ours, that grow by an operation at a time."""

    def __init__(self, draw):
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        base = draw(shapes())
        self.pairs = []
        for _ in range(draw(st.integers(1, 3))):
            shape = tuple(1 if draw(st.booleans()) and n > 1 else n for n in base)
            array = make(self.rng, shape[draw(st.integers(0, len(shape))) :], draw(st.sampled_from(DTYPES)))
            self.pairs.append((array, xp.asarray(array)))

    def pick(self, kinds="fiub"):
        able = [pair for pair in self.pairs if pair[0].dtype.kind in kinds]
        return self.draw(st.sampled_from(able)) if able else None

    def step(self):
        kind = self.draw(st.sampled_from(["binary", "compare", "unary", "view", "where", "scalar", "cast", "reduce"]))
        getattr(self, kind)()

    def apply(self, name, *pairs, **options):
        try:
            with np.errstate(all="ignore"):
                expected = np.asarray(getattr(np, name)(*[pair[0] for pair in pairs], **options))
        except (ValueError, TypeError) as error:
            with pytest.raises(type(error)):
                np.asarray(getattr(xp, name)(*[pair[1] for pair in pairs], **options))
            return
        self.pairs.append((expected, getattr(xp, name)(*[pair[1] for pair in pairs], **options)))

    def binary(self):
        a, b = self.pick("fi"), self.pick("fi")
        if a and b:
            self.apply(self.draw(st.sampled_from(BINARY)), a, b)

    def compare(self):
        self.apply(self.draw(st.sampled_from(COMPARE)), self.pick(), self.pick())

    def unary(self):
        a = self.pick("fi")
        if a:
            self.apply(self.draw(st.sampled_from(UNARY)), a)

    def view(self):
        a = self.pick()
        look = view(self.draw, a[0])
        self.pairs.append((look(a[0]), look(a[1])))

    def where(self):
        a, b, c = self.pick("b"), self.pick("fi"), self.pick("fi")
        if a and b and c:
            self.apply("where", a, b, c)

    def scalar(self):
        a = self.pick("fi")
        if a:
            number = self.draw(st.sampled_from([2, -1, 3]))
            self.pairs.append((a[0] * number + 1, a[1] * number + 1))

    def cast(self):
        a = self.pick("ib")
        if a:
            dtype = self.draw(st.sampled_from(["float32", "float64", "int64", "bool"]))
            self.pairs.append((a[0].astype(dtype), a[1].astype(dtype)))

    def reduce(self):
        """Totals are rounded in another order: they are compared, and never computed with."""
        a = self.pick()
        axis = self.draw(st.sampled_from([None, 0, -1]))
        name = self.draw(st.sampled_from(REDUCE))
        if a[0].size == 0 or (axis is not None and not a[0].ndim):
            return
        with np.errstate(all="ignore"):
            expected = np.asarray(getattr(np, name)(a[0], axis=axis))
            size = np.abs(a[0]).astype("float64")
            scale = np.sum(size, axis=axis) if name in ("sum", "mean") else np.abs(expected)
        found = getattr(xp, name)(a[1], axis=axis).numpy()
        assert found.shape == expected.shape and found.dtype == expected.dtype, name
        finite = np.isfinite(expected) & np.isfinite(scale)
        if name in ("sum", "mean", "prod"):
            error = np.abs(np.where(finite, found, 0).astype("f8") - np.where(finite, expected, 0))
            rtol = 1e-13 if found.dtype == "float64" else 1e-5
            assert np.all(error <= rtol * np.where(finite, scale, 0)), name
        else:
            np.testing.assert_array_equal(found, expected, err_msg=name)


@st.composite
def programs(draw):
    program = Program(draw)
    for _ in range(draw(st.integers(1, 9))):
        program.step()
    return program


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_a_random_program_gives_the_bits_of_numpy(program):
    for expected, found in reversed(program.pairs):
        array = found.numpy()
        assert array.shape == expected.shape and array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 5000])
def test_transcendental_functions(name, size):
    x = np.random.default_rng(size).standard_normal(size).astype("float32") * 20
    x[: min(size, len(SPECIAL))] = SPECIAL[: min(size, len(SPECIAL))]
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x.astype("float64")).astype("float32")
    np.testing.assert_allclose(getattr(xp, name)(xp.asarray(x)).numpy(), expected, rtol=1e-6, atol=1e-44)
