"""Canonical forms of the expressions that importers meet."""

import pytest
from expressions import A, B, C, D
from tvm import tirx

from tvm_dyn.symbolic import (
    SymbolicFacts,
    as_int,
    broadcast_dim,
    check_on_samples,
    divide_exact,
    evaluate,
    free_vars,
    simplify,
    substitute,
    to_text,
)

INT64_MAX = tirx.IntImm("int64", 2**63 - 1)


def f32(expr):
    return tirx.Cast("float32", expr)


def i64(expr):
    return tirx.Cast("int64", expr)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ((4 * A * B) // (A * B), "4"),
        ((A * 16) // 16, "a"),
        ((2 * A + 6) // 2, "a + 3"),
        ((A - 1) // 2 + 1, "(a + 1)//2"),
        (((A - 1) // 2) // 2 + 1, "(a + 3)//4"),
        (-((-A) // 4), "(a + 3)//4"),
        (A - A // 2, "(a + 1)//2"),
        (A % 4 + 4 * (A // 4), "a"),
        (tirx.min(INT64_MAX, A), "a"),
        (tirx.min(A, A - 1), "a - 1"),
        (tirx.max(tirx.min(A, B), A), "a"),
        (A + B - tirx.min(A, B), "max(a, b)"),
        (i64(2.0 * f32(A)), "2*a"),
        (i64(tirx.floor(f32(A) * 0.5)), "a//2"),
        (i64(tirx.ceil(f32(A) / 3.0)), "(a + 2)//3"),
        (i64(tirx.floor(f32(A) / f32(B))), "a//b"),
        (tirx.Select(A == 1, B, A), "(b if a == 1 else a)"),
        ((A + B) * (A - B), "a*a - b*b"),
        ((A * C + B * C) // (A + B), "c"),
    ],
)
def test_canonical_text(expr, text):
    assert to_text(expr) == text
    assert check_on_samples(expr, simplify(expr))


def test_inexact_float_detour_is_left_alone():
    expr = i64(tirx.floor(f32(A) * 0.3))
    assert evaluate(simplify(expr), {A: 10}) == evaluate(expr, {A: 10})
    assert "T.floor" in str(simplify(expr))


def test_truncating_division_needs_signs():
    expr = tirx.truncdiv(A, tirx.IntImm("int64", 2))
    assert evaluate(simplify(expr), {A: -3}) == -1
    assert to_text(simplify(expr, SymbolicFacts())) == "a//2"


def test_join_laws():
    joined = broadcast_dim(A, B)
    assert to_text(broadcast_dim(joined, A)) == to_text(joined)
    assert to_text(broadcast_dim(A, joined)) == to_text(joined)
    assert to_text(broadcast_dim(joined, joined)) == to_text(joined)
    assert to_text(broadcast_dim(A, broadcast_dim(B, C))) == to_text(broadcast_dim(joined, C))
    assert broadcast_dim(A, 1) is not None and to_text(broadcast_dim(A, 1)) == "a"
    assert to_text(broadcast_dim(1, A)) == "a"
    facts = SymbolicFacts()
    facts.assume_compatible(A, B)
    assert facts.prove_equal(broadcast_dim(A, B), broadcast_dim(B, A))
    facts.assume_compatible(C, 8)
    assert as_int(broadcast_dim(C, 8, facts)) == 8
    assert not SymbolicFacts().prove_equal(broadcast_dim(A, B), broadcast_dim(B, A))


def test_divide_exact():
    assert to_text(divide_exact(8 * A * B, 4 * B)) == "2*a"
    assert divide_exact(A, B) is None
    assert divide_exact(3 * A, 2) is None
    assert divide_exact(A, 0) is None


def test_substitute_is_simultaneous():
    assert to_text(substitute(A + 2 * B, {A: B, B: A})) == "2*a + b"
    assert [var.name for var in free_vars(A * B + A)] == ["a", "b"]


def test_errors_are_clear():
    with pytest.raises(ArithmeticError, match="division by zero"):
        evaluate(A // B, {A: 1, B: 0})
    with pytest.raises(KeyError):
        evaluate(A + D, {A: 1})
