"""Symbolic shapes: the algebra of shape expressions and the decision procedure over known facts."""

from .algebra import (
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
from .facts import SymbolicFacts

__all__ = [
    "SymbolicFacts",
    "as_int",
    "broadcast_dim",
    "check_on_samples",
    "divide_exact",
    "evaluate",
    "free_vars",
    "simplify",
    "substitute",
    "to_text",
]
