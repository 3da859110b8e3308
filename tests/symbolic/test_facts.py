"""The decision procedure: what it must prove, and what it must not."""

from dataclasses import dataclass

from expressions import A, B, C, D
from tvm import tirx

from tvm_dyn.symbolic import SymbolicFacts, simplify, to_text


@dataclass
class Range:
    min: int = 0
    max: int | None = None
    divisor: int = 1


def facts_with(*conditions) -> SymbolicFacts:
    facts = SymbolicFacts()
    for var in (A, B, C, D):
        facts.declare(var)
    for condition in conditions:
        facts.assume(condition)
    return facts


def test_range_and_divisor():
    facts = SymbolicFacts()
    facts.declare(A, Range(1, 512))
    facts.declare(B, Range(32, 1000, 32))
    assert facts.bound(2 * A + 1) == (3, 1025)
    assert facts.bound(B) == (32, 992)
    assert facts.modular(B + 4) == (32, 4)
    assert facts.prove(A >= 1) and not facts.prove(A >= 2)
    assert to_text(simplify(B // 32 * 32, facts)) == "b"
    assert to_text(simplify(B // 16, facts)) == "b//16"
    assert simplify(B % 8, facts) == 0
    assert facts.known_unequal(B, 33)


def test_slice_lengths():
    facts = SymbolicFacts()
    facts.declare(A, min=1)
    last = tirx.IntImm("int64", 2**63 - 1)
    assert simplify(tirx.min(last, A) - tirx.min(tirx.max(A - 1, 0), A), facts) == 1
    # An empty dim has no last element.
    assert to_text(simplify(A - tirx.min(tirx.max(A - 1, 0), A), facts_with())) == "min(a, 1)"


def test_equal_dims_take_the_older_symbol():
    facts = facts_with(B == C, A == B)
    assert {str(v): str(e) for v, e in facts.equalities().items()} == {"b": "a", "c": "a"}
    assert facts.prove_equal(C, A)


def test_affine_relations():
    facts = facts_with(C + A == D)
    assert facts.prove(D >= A)
    assert facts.prove_equal(D - C, A)
    assert not facts.prove(C >= 1)


def test_products_and_quotients():
    facts = facts_with(A * B == C * D)
    assert facts.prove_equal(4 * A * B, 4 * D * C)
    facts = facts_with(A == B * C // 8)
    assert to_text(facts.canonical(B * C // 8 + 1)) == "a + 1"
    facts = facts_with(tirx.floormod(A, 2) == 0, A // 2 == 3)
    assert facts.canonical(A) == 6


def test_later_equations_reach_earlier_facts():
    facts = facts_with(A * B == 3 * C * (D // 2), B == D // 2)
    assert facts.prove_equal(3 * C * B, A * B)


def test_inequalities_between_dims():
    facts = facts_with(A <= B, B <= C)
    assert facts.prove(A <= B + D)
    assert to_text(facts.canonical(tirx.min(A, B))) == "a"
    facts = facts_with(A <= B, B <= A)
    assert facts.prove_equal(A, B)


def test_proof_by_cases():
    facts = facts_with()
    assert facts.prove(tirx.max(A, B) + tirx.min(A, B) == A + B)
    assert facts.prove(tirx.min(A, B) <= tirx.max(A, C))
    assert not facts.prove(tirx.min(A, B) == A)


def test_nothing_is_assumed_of_undeclared_scalars():
    facts = SymbolicFacts(default_min=None)
    assert not facts.prove(A >= 0)
    assert facts.bound(A) == (None, None)


def test_clone_is_independent():
    facts = facts_with(A == B)
    other = facts.clone()
    other.assume(B == C)
    assert other.prove_equal(A, C) and not facts.prove_equal(A, C)
