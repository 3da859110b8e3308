"""Random shape expressions and sets of facts with all small assignments that satisfy them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.ir import prim

from tvm_dyn.symbolic import SymbolicFacts

Assignment = dict[ir.Var, int]
VARS: tuple[ir.Var, ...] = tuple(tirx.Var(name, "int64") for name in "abcd")
A, B, C, D = VARS


@dataclass
class World:
    """Facts, and assignments that satisfy them."""

    facts: SymbolicFacts | None
    assignments: list[Assignment]


def world(
    state: Callable[[SymbolicFacts], None], holds: Callable[..., bool], extents: Sequence[int]
) -> World:
    """Facts as told by ``state``, and the assignments of ``extents`` to the variables for which ``holds``."""
    facts = SymbolicFacts()
    for var in VARS:
        facts.declare(var)
    state(facts)
    tuples = [values for values in itertools.product(extents, repeat=4) if holds(*values)]
    rng = random.Random(7)
    rng.shuffle(tuples)
    assert len(tuples) > 10
    return World(facts, [dict(zip(VARS, values, strict=True)) for values in tuples[:60]])


def _every(*conditions: object) -> Callable[[SymbolicFacts], None]:
    def state(facts: SymbolicFacts) -> None:
        for condition in conditions:
            facts.assume(condition)

    return state


def _ranges(facts: SymbolicFacts) -> None:
    facts.declare(A, min=1, max=8)
    facts.declare(B, min=2, max=32, divisor=4)
    facts.declare(C, min=1)


def _in_ranges(a: int, b: int, c: int, d: int) -> bool:
    return 1 <= a <= 8 and 2 <= b <= 32 and b % 4 == 0 and c >= 1


def worlds() -> list[World]:
    """One world for each kind of fact, and some mixed ones."""
    small = (0, 1, 2, 3, 5, 8, 9)
    either = prim.Or(prim.Or(prim.EQ(A, B), prim.EQ(A, tirx.IntImm("int64", 1))), B == 1)
    signed = list(itertools.product((-7, -1, 0, 1, 2, 6), repeat=4))[::23]
    return [
        World(None, [dict(zip(VARS, values, strict=True)) for values in signed]),
        world(lambda facts: None, lambda *_: True, small),
        world(_ranges, _in_ranges, (0, 1, 4, 5, 8, 32)),
        world(_every(A == B, C >= 1), lambda a, b, c, d: a == b and c >= 1, small),
        world(_every(A + B == C), lambda a, b, c, d: a + b == c, range(10)),
        world(_every(A <= B, B < C), lambda a, b, c, d: a <= b < c, small),
        world(_every(A * B == C * D), lambda a, b, c, d: a * b == c * d, (0, 1, 2, 3, 4, 6)),
        world(_every(either), lambda a, b, c, d: a == b or a == 1 or b == 1, small),
        world(
            _every(A % 3 == 1, B == 2 * C + 1),
            lambda a, b, c, d: a % 3 == 1 and b == 2 * c + 1,
            (0, 1, 3, 4, 7, 9),
        ),
        world(
            _every(A * B == 3 * C * (D // 2), B == D // 2),
            lambda a, b, c, d: a * b == 3 * c * (d // 2) and b == d // 2,
            (0, 1, 2, 3, 6, 9),
        ),
        world(_every(A % 4 == 1, A // 4 == B), lambda a, b, c, d: a == 4 * b + 1, (0, 1, 2, 5, 9)),
        world(_every(A != B, C == 6), lambda a, b, c, d: a != b and c == 6, (0, 1, 2, 6)),
        world(_every(A == B // 2, D >= A), lambda a, b, c, d: a == b // 2 and d >= a, range(6)),
        world(
            _every(A * 2 == B * 3, C <= 4),
            lambda a, b, c, d: a * 2 == b * 3 and c <= 4,
            (0, 2, 3, 4, 6, 9),
        ),
        world(
            _every(A - A // 4 * 4 == 0, tirx.max(B, C) == D),
            lambda a, b, c, d: a % 4 == 0 and d == max(b, c),
            (0, 1, 4, 8),
        ),
    ]


_KINDS = (*"++-*", "k*", "//", "//", "%", "min", "max", "join", "select", "/v", "%v", "tdiv", "float")


def random_expr(rng: random.Random, depth: int) -> ir.Expr:
    """An integer expression of at most ``depth`` nested operations."""
    if depth == 0 or rng.random() < 0.12:
        constant = tirx.IntImm("int64", rng.choice((0, 1, 1, 2, 3, 4, -1, 7)))
        return rng.choice(VARS) if rng.random() < 0.75 else constant
    a, b = random_expr(rng, depth - 1), random_expr(rng, depth - 1)
    small = tirx.IntImm("int64", rng.choice((1, 2, 2, 3, 4, 6, 8)))
    kind = rng.choice(_KINDS)
    if kind in ("+", "-", "*"):
        return {"+": prim.Add, "-": prim.Sub, "*": prim.Mul}[kind](a, b)
    if kind in ("k*", "//", "%", "tdiv"):
        return {"k*": prim.Mul, "//": prim.FloorDiv, "%": prim.FloorMod, "tdiv": prim.Div}[kind](a, small)
    if kind in ("/v", "%v"):
        return (prim.FloorDiv if kind == "/v" else prim.FloorMod)(a, rng.choice(VARS))
    if kind in ("min", "max"):
        return (prim.Min if kind == "min" else prim.Max)(a, b)
    if kind == "join":
        return prim.Select(prim.EQ(a, tirx.IntImm("int64", 1)), b, a)
    if kind == "float":
        half = tirx.Cast("float32", a) * tirx.FloatImm("float32", rng.choice((0.5, 2.0, 0.25)))
        return tirx.Cast("int64", rng.choice((tirx.floor, tirx.ceil, tirx.trunc))(half))
    return prim.Select(random_condition(rng, depth - 1), a, b)


def random_condition(rng: random.Random, depth: int) -> ir.Expr:
    """A comparison of two random expressions, or two of them connected."""
    compare = rng.choice((prim.EQ, prim.NE, prim.LT, prim.LE, prim.GE, prim.GT))
    condition = compare(random_expr(rng, depth), random_expr(rng, depth))
    if rng.random() < 0.1:
        return rng.choice((prim.And, prim.Or))(condition, random_condition(rng, depth))
    return condition
