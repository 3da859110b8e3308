"""Code: super-instructions, registers, sections, and what the listing says."""

import numpy as np
import pytest
from programs import COLUMN, ONE, ROW, TILE, chain, normal, run

from tvm_dyn.runtime.bytecode.encode import encode
from tvm_dyn.runtime.bytecode.recipe import Operand, Recipe, Step


def mnemonics(recipe):
    return [[line.split()[0] for line in section] for section in encode(recipe).listing]


def test_pairs_become_super_instructions():
    recipe = chain("float32", [TILE, ONE, ONE, TILE], ("add", (0, 1)), ("relu", (4,)), ("mul", (5, 2)), ("add", (6, 3)))
    assert mnemonics(recipe) == [[], ["add_relu.f32.vs", "mul_add.f32.vsv"], []]


def test_a_result_with_two_readers_is_not_joined():
    recipe = chain("float32", [TILE, TILE], ("add", (0, 1)), ("relu", (2,)), ("mul", (3, 2)))
    assert mnemonics(recipe)[1] == ["add.f32", "relu.f32", "mul.f32"]


def test_a_result_that_is_an_output_is_not_joined():
    recipe = chain("float32", [TILE, TILE], ("add", (0, 1)), ("relu", (2,)))
    both = Recipe(recipe.inputs, (), recipe.steps, (2, 3))
    assert mnemonics(both)[1] == ["add.f32", "relu.f32"]
    a, b = normal(9, 5), normal(9, 5, seed=1)
    total, positive = run(both, 9, 5, [a, b], [np.empty((9, 5), "f4"), np.empty((9, 5), "f4")])
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(positive, np.maximum(a + b, 0))


def test_joined_instructions_round_as_separate_ones():
    a, b, c = (normal(1, 5000, seed=seed) for seed in range(3))
    recipe = chain("float32", [TILE, TILE, TILE], ("mul", (0, 1)), ("sub", (3, 2)))
    assert mnemonics(recipe)[1] == ["mul_sub.f32"]
    np.testing.assert_array_equal(run(recipe, 1, 5000, [a, b, c], [np.empty_like(a)])[0], a * b - c)


def test_registers_are_used_again():
    steps = [("exp", (0,))] + [("exp", (n,)) for n in range(1, 20)]
    assert encode(chain("float32", [TILE], *steps)).registers == 1


def test_a_register_of_another_kind_is_not_overwritten_while_it_is_read():
    """The column that a row's result is computed from may not lie where the result goes."""
    steps = (
        Step("rmax", (0,), "float32", "float32", COLUMN),
        Step("neg", (1,), "float32", "float32", COLUMN),
        Step("add", (0, 2), "float32", "float32", TILE),
        Step("exp", (3,), "float32", "float32", TILE),
    )
    x = normal(40, 25)
    found = run(Recipe((Operand("float32", TILE),), (), steps, (4,)), 40, 25, [x], [np.empty_like(x)])[0]
    np.testing.assert_allclose(found, np.exp(x - x.max(1, keepdims=True)), rtol=1e-6)


def test_numbers_are_spread_once_where_no_form_takes_them():
    steps = (Step("where", (0, 1, 2), "int64", "int64", TILE),)
    recipe = Recipe((Operand("bool", TILE), Operand("int64", ONE), Operand("int64", TILE)), (), steps, (3,))
    assert mnemonics(recipe) == [["copy.i64.s"], ["where.i64"], []]


def test_totals_over_rows_finish_after_the_last_tile():
    steps = (Step("rsum", (0, 1), "float32", "float32", ROW),)
    recipe = Recipe((Operand("float32", TILE),), ((0.0, "float32"),), steps, (2,))
    init, body, finish = mnemonics(recipe)
    assert (init, body, finish) == (["copy.f32.s"], ["add.f32"], ["copy.f32"])
    for rows, columns in [(0, 3), (1, 1), (5, 1024), (3000, 7), (3, 5000)]:
        x = normal(rows, columns)
        found = run(recipe, rows, columns, [x], [np.empty(columns, "f4")])[0]
        np.testing.assert_allclose(found, x.astype("f8").sum(0), rtol=1e-5, atol=1e-4)


def test_the_listing_names_memory_and_registers():
    text = encode(chain("float32", [TILE, ROW], ("add", (0, 1)), ("exp", (2,)))).disassemble()
    assert text.splitlines()[0] == "body:"
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["add.f32", "r0,", "m0,", "m1", "rows"],
        ["exp.f32", "m2,", "r0", "flat"],
    ]


def test_a_group_with_too_many_slots_is_refused():
    inputs = tuple(Operand("float32", TILE) for _ in range(300))
    with pytest.raises(ValueError, match="split it"):
        encode(Recipe(inputs, (), (Step("add", (0, 1), "float32", "float32", TILE),), (300,)))
