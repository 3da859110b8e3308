"""Facts about the symbolic dims of one Relax function: what its signature states, and their record.

The record is the function attribute `ATTRIBUTE`, JSON text for later passes. What it says holds in every call
that returns: part of it may rest on checks that run inside the function::

    {"ranges": {"n": [1, 512]}, "residues": {"n": [8, 0]}, "equalities": {"m": "n"}, "nonnegative": ["s - n"]}
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tvm import ir, relax
from tvm.ir import prim

from tvm_dyn.passes.shape_types import dims_of, symbolic_vars
from tvm_dyn.symbolic import SymbolicFacts, to_text

ATTRIBUTE = "tvm_dyn.shape_facts"
SIGNATURE = "tvm_dyn.signature"


class FunctionFacts:
    """``checked`` follows from types, checks and definitions alone; ``known`` also trusts what was promised.

    Promises are the ranges and divisors of the signature: they may simplify shapes, but they never
    justify the removal of a check.
    """

    def __init__(self, known: SymbolicFacts, checked: SymbolicFacts):
        self.known = known
        self.checked = checked

    @staticmethod
    def of_function(func: relax.Function) -> FunctionFacts:
        facts = FunctionFacts(SymbolicFacts(default_min=None), SymbolicFacts(default_min=None))
        for param in func.params:
            facts.enter(param)
        facts._promise(func)
        return facts

    def both(self) -> tuple[SymbolicFacts, SymbolicFacts]:
        return self.known, self.checked

    def clone(self) -> FunctionFacts:
        return FunctionFacts(self.known.clone(), self.checked.clone())

    def enter(self, var: ir.Var) -> None:
        """Every dim of a run-time checked type is a non-negative number."""
        if isinstance(var.ty, ir.PrimType):
            return
        fields = var.ty.fields if isinstance(var.ty, ir.TupleType) else [var.ty]
        dims = [dim for field in fields for dim in dims_of(field) or []]
        for facts in self.both():
            for dim in dims:
                if isinstance(dim, ir.Var):
                    facts.declare(dim)
            for dim in dims:
                if not isinstance(dim, ir.Var | prim.IntImm):
                    facts.assume(prim.GE(dim, prim.IntImm("int64", 0)))

    def assume(self, condition: ir.Expr) -> None:
        for facts in self.both():
            facts.assume(condition)

    def define(self, var: ir.Var, value: ir.Expr) -> None:
        for facts in self.both():
            facts.define(var, value)

    def _promise(self, func: relax.Function) -> None:
        variables = {var.name: var for param in func.params for var in symbolic_vars(param.ty)}
        promised = json.loads(str(func.attrs.get(SIGNATURE, "{}"))).get("dims", {}) if func.attrs else {}
        for name, dim in promised.items():
            if name in variables:
                minimum, maximum, divisor = dim.get("min", 0), dim.get("max"), dim.get("divisor", 1)
                self.known.declare(variables[name], min=minimum, max=maximum, divisor=divisor)
        for attribute, key in (("tir_var_lower_bound", "min"), ("tir_var_upper_bound", "max")):
            for name, bound in (func.attrs.get(attribute, {}) if func.attrs else {}).items():
                if str(name) in variables:
                    self.known.declare(variables[str(name)], **{"min": None, "max": None, key: int(bound)})


def record(func: Any, facts: SymbolicFacts) -> relax.Function:
    """Write what is known onto the function.

    The bounds stay with us: given them, TVM plans memory for the largest of all shapes (measured on a sentence encoder
    with room for 512 tokens: 8.3 times what 64 need).
    """
    names = Counter(leaf.node.name for leaf in facts.order)
    unique = [leaf for leaf in facts.order if names[leaf.node.name] == 1]
    ranges = {leaf.node.name: list(facts.leaf_range(leaf)) for leaf in unique if leaf not in facts.equations}
    content: dict[str, Any] = {
        "ranges": ranges,
        "residues": {leaf.node.name: list(facts.residues[leaf]) for leaf in unique if leaf in facts.residues},
        "equalities": {v.name: to_text(e) for v, e in facts.equalities().items() if names[v.name] == 1},
        "nonnegative": [to_text(expr) for expr in facts.inequalities()],
    }
    return func.with_attr(ATTRIBUTE, json.dumps(content, sort_keys=True))
