"""Expressions over extents as Python functions: divisions of either kind, beyond what a float holds."""

import pytest
from tvm import tirx

from tvm_dyn.tiers.extents import extent_function

N = tirx.Var("n", "int64")


@pytest.mark.parametrize("value", [-7, -4, 0, 5, 2**62 + 1])
@pytest.mark.parametrize("divisor", [-3, 1, 2])
def test_integer_division_rounds_towards_zero(value, divisor):
    quotient = abs(value) // abs(divisor) * (1 if (value < 0) == (divisor < 0) else -1)
    assert extent_function(tirx.truncdiv(N, tirx.const(divisor, "int64")))({N: value}) == quotient
    assert extent_function(tirx.truncmod(N, tirx.const(divisor, "int64")))({N: value}) == value - divisor * quotient


def test_floats_divide_as_floats():
    half = tirx.Div(N.astype("float64"), tirx.const(2.0, "float64"))
    assert extent_function(half)({N: 1}) == 0.5
