"""What a ``match_cast`` says: which dims it defines and which it compares."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import ir, relax

from tvm_dyn.passes.shape_types import dims_of


@dataclass
class Cast:
    """The dims of a pattern against those of a value.

    ``defined``: variables the cast would introduce for a dim that is already known; ``introduced``: variables
    it introduces for unknown dims; ``compared``: (pattern dim, value dim) pairs it checks; ``complete``:
    every dim of the value is known.
    """

    defined: dict[ir.Var, ir.Expr] = field(default_factory=dict)
    introduced: list[ir.Var] = field(default_factory=list)
    compared: list[tuple[ir.Expr, ir.Expr]] = field(default_factory=list)
    complete: bool = True


def unify(pattern: ir.Type, actual: ir.Type, scope: set[ir.Var], removed: dict[ir.Var, ir.Expr]) -> Cast:
    """Match the dims of ``pattern`` with those of ``actual``; variables in neither collection are new."""
    cast = Cast()
    pairs = list(_pairs(pattern, actual))
    for want, have in pairs:
        if not isinstance(want, ir.Var) or want in scope or want in removed or want in cast.introduced:
            continue
        if have is None:
            cast.introduced.append(want)
        else:
            cast.defined.setdefault(want, have)
    for variable in cast.introduced:
        cast.defined.pop(variable, None)
    cast.compared = [(want, have) for want, have in pairs if have is not None and not want.same_as(have)]
    cast.complete = all(have is not None for _, have in pairs) and not _gives_scalar_its_shape(pattern, actual)
    return cast


def _gives_scalar_its_shape(pattern: ir.Type, actual: ir.Type) -> bool:
    """Whether a tensor known by its rank 0 alone gets the shape (), which no pair of dims tells."""
    if isinstance(pattern, ir.TupleType) and isinstance(actual, ir.TupleType):
        return any(_gives_scalar_its_shape(p, a) for p, a in zip(pattern.fields, actual.fields, strict=False))
    return dims_of(pattern) == [] and dims_of(actual) is None


def _pairs(pattern: ir.Type, actual: ir.Type) -> list[tuple[ir.Expr, ir.Expr | None]]:
    if isinstance(pattern, ir.TupleType):
        same = isinstance(actual, ir.TupleType) and len(actual.fields) == len(pattern.fields)
        fields = list(actual.fields) if same else [relax.AnyType()] * len(pattern.fields)
        return [pair for p, a in zip(pattern.fields, fields, strict=True) for pair in _pairs(p, a)]
    wants, haves = dims_of(pattern), dims_of(actual)
    if wants is None:
        return []
    if haves is None or len(haves) != len(wants):
        return [(want, None) for want in wants]
    return list(zip(wants, haves, strict=True))
