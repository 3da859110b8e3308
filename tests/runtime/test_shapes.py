"""Shapes against a signature: what fits passes, what does not is named; expressions mean what in Python."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_dyn.errors import InvalidInputError
from tvm_dyn.runtime.expressions import parse_shape_expression
from tvm_dyn.runtime.shapes import ShapeChecker
from tvm_dyn.runtime.signature import DimInfo, Signature, TensorInfo

SIGNATURE = Signature(
    inputs=(
        TensorInfo("ids", "int64", ("batch", "seq")),
        TensorInfo("past", "float32", ("batch", 4, "past", 8)),
        TensorInfo("mask", "int64", ("batch", "past + seq")),
        TensorInfo("free", "float32", None),
        TensorInfo("image", "float32", (3, "h")),
    ),
    outputs=(),
    dims={
        "batch": DimInfo(
            1, 32, aliases=("N", "batch"), why=("dim 'N' must equal 'batch': node 'Add_1' (Add)",)
        ),
        "seq": DimInfo(1, None),
        "h": DimInfo(32, 1024, 32, aliases=("p2o.DynamicDimension.0",)),
    },
)
GOOD = ((2, 3), (2, 4, 5, 8), (2, 8), (1, 2, 3), (3, 64))


def with_shape(index, shape):
    return [*GOOD[:index], shape, *GOOD[index + 1 :]]


def test_what_fits_passes():
    checker = ShapeChecker(SIGNATURE)
    checker.check(GOOD)
    assert checker.extents(GOOD) == {"batch": 2, "seq": 3, "past": 5, "h": 64}


MISFITS = [
    (0, (2,), "input 'ids' has rank 1, shape (2,), but must have rank 2, shape (batch, seq); reshape it"),
    (
        1,
        (2, 5, 5, 8),
        "input 'past', axis 1 is 5, but the model fixes it to 4; pass the shape (batch, 4, past, 8)",
    ),
    (
        1,
        (3, 4, 5, 8),
        "input 'past', axis 0 is 3, but input 'ids', axis 0 is 2: both are dim 'batch' "
        "(written 'N' in the model) and must be equal; dim 'N' must equal 'batch': node 'Add_1' (Add); "
        "pass 2 in both or 3 in both",
    ),
    (
        2,
        (2, 9),
        "input 'mask', axis 1 is 9, but must be past + seq = 8 where past = 5, seq = 3; pass 8 there",
    ),
    (0, (2, 0), "input 'ids', axis 1: dim 'seq' is 0, below its minimum 1; pass at least 1"),
    (4, (3, 1056), "dim 'h' (written 'p2o.DynamicDimension.0' in the model) is 1056, above its maximum 1024"),
    (4, (3, 65), "is 65, not a multiple of 32; pad it to 96 or compile with another divisor"),
]


@pytest.mark.parametrize("index, shape, message", MISFITS, ids=[m[:30] for _, _, m in MISFITS])
def test_a_misfit_is_named(index, shape, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        ShapeChecker(SIGNATURE).check(with_shape(index, shape))


@pytest.mark.parametrize("shape", [(), (0,), (7, 7, 7, 7, 7)])
def test_an_input_of_open_rank_takes_any_shape(shape):
    ShapeChecker(SIGNATURE).check(with_shape(3, shape))


NAMES = ("a", "b", "c")
LEAVES = st.one_of(st.sampled_from(NAMES), st.integers(0, 9).map(str))
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        inner.map(lambda text: f"-({text})"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, st.lists(st.integers(0, 40), min_size=3, max_size=3))
def test_expressions_mean_what_python_means(text, values):
    dims = dict(zip(NAMES, values, strict=True))
    expression = parse_shape_expression(text)
    assert expression is not None
    assert expression.names == set(re.findall("[abc]", text.replace("max", "").replace("min", "")))
    try:
        expected = eval(text, {"min": min, "max": max}, dims)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            expression.evaluate(dims)
    else:
        assert expression.evaluate(dims) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a +",
        "__import__('os')",
        "a.b",
        "a[0]",
        "a ** b",
        "1.5",
        "lambda: 0",
        "abs(a)",
        "min()",
        "a\0",
        "'x'",
    ],
)
def test_anything_else_is_no_expression(text):
    assert parse_shape_expression(text) is None


def test_a_shape_beyond_the_grammar_is_left_to_the_compiled_code():
    signature = Signature((TensorInfo("x", "float32", ("a", "b if a == 1 else a")),), ())
    ShapeChecker(signature).check([(3, 99)])
