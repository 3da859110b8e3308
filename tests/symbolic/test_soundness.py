"""Every claim of the algebra and of the decision procedure holds on every small assignment."""

import logging
import random

import pytest
from expressions import VARS, World, random_condition, random_expr, worlds
from tvm import ir
from tvm.ir import prim

from tvm_dyn.symbolic import as_int, simplify
from tvm_dyn.symbolic.algebra import evaluate, to_text
from tvm_dyn.symbolic.evaluation import Undefined

WORLDS = worlds()


def values_of(expr: ir.Expr, world: World) -> list[tuple[dict, int]]:
    found = []
    for values in world.assignments:
        try:
            found.append((values, evaluate(expr, values)))
        except Undefined:
            continue
    return found


def check_simplify(world: World, expr: ir.Expr) -> None:
    result = simplify(expr, world.facts)
    for values, expected in values_of(expr, world):
        assert evaluate(result, values) == expected, f"{expr} -> {result} at {values}"


def check_idempotent(world: World, expr: ir.Expr) -> None:
    once = simplify(expr, world.facts)
    twice = simplify(once, world.facts)
    assert to_text(once) == to_text(twice), f"{expr} -> {once} -> {twice}"


def check_text(world: World, expr: ir.Expr) -> None:
    source = to_text(expr)
    if "T." in source:
        return
    for values, expected in values_of(expr, world):
        names = {var.name: value for var, value in values.items()}
        assert eval(source, {"min": min, "max": max}, names) == expected, f"{expr} -> {source} at {values}"


def check_bound(world: World, expr: ir.Expr) -> None:
    low, high = world.facts.bound(expr)
    divisor, remainder = world.facts.modular(expr)
    for values, value in values_of(expr, world):
        assert low is None or low <= value, f"{expr} >= {low} at {values}"
        assert high is None or value <= high, f"{expr} <= {high} at {values}"
        assert (value - remainder) % divisor == 0 if divisor else value == remainder, f"{expr} at {values}"


def check_prove(world: World, condition: ir.Expr) -> bool:
    proved = world.facts.prove(condition)
    if proved:
        for values, value in values_of(condition, world):
            assert value, f"{condition} at {values}"
    return proved


def run(count: int, seed: int, caplog) -> dict[str, int]:
    rng = random.Random(seed)
    proofs = {"claims": 0, "true": 0}
    with caplog.at_level(logging.ERROR):
        for index in range(count):
            world = WORLDS[index % len(WORLDS)]
            expr = random_expr(rng, rng.choice((1, 2, 2, 3)))
            check_simplify(world, expr)
            check_idempotent(world, expr)
            if world.facts is None:
                check_text(world, expr)
                continue
            check_bound(world, expr)
            condition = random_condition(rng, rng.choice((0, 1, 1, 2)))
            holds = all(value for _, value in values_of(condition, world))
            proofs["true"] += holds
            proofs["claims"] += check_prove(world, condition)
            other = random_expr(rng, 2)
            if world.facts.known_unequal(expr, other):
                assert all(value for _, value in values_of(prim.NE(expr, other), world)), (expr, other)
    assert not caplog.records, caplog.records[0].getMessage()
    return proofs


def test_random_expressions(caplog):
    proofs = run(2600, 1, caplog)
    # The procedure must also be of use: most of the simple conditions that hold everywhere are proved.
    assert proofs["claims"] > 0.6 * proofs["true"], proofs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_random_expressions(seed, caplog):
    run(10_000, seed, caplog)


def test_constant_expressions_are_ints():
    a, b, *_ = VARS
    assert as_int((4 * a * b) // (a * b)) == 4
    assert as_int(a - a) == 0
    assert as_int(a) is None
