"""Index arithmetic that the ranges of block axes make trivial.

    R[i, j, k] = X[((i*s + j)*64 + k) // 64 // s % b, ((i*s + j)*64 + k) // 64 % s, ((i*s + j)*64 + k) % 64]
    --->
    R[i, j, k] = X[i, j, k]                      # i < b, j < s, k < 64

Reshapes arrive in the first form. Quotients by symbolic extents cost an integer division per element and
keep the loop from being vectorized. (`remainders` deals with those that stay and that LLVM gets wrong.)
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir import Expr
from tvm.tirx import IterVar, PrimFunc

from tvm_dyn.schedules.common import changed


def simplify_indices(func: PrimFunc) -> PrimFunc:
    """Simplify quotients and remainders in every block of ``func`` with the extents of the block's axes."""

    def in_block(block: s_tir.SBlock) -> s_tir.SBlock:
        if not block.iter_vars:
            return block
        callbacks = _callbacks(list(block.iter_vars))
        return changed(block, body=tvm_ffi.structural_map(block.body, callbacks, order="post"))

    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlock, in_block), order="post"))


def simplify_quotients(root, axes: list[IterVar]):
    """``root`` with its quotients and remainders simplified for variables in the ranges of ``axes``."""
    return tvm_ffi.structural_map(root, _callbacks(axes), order="post")


def _callbacks(axes: list[IterVar]) -> list[tuple]:
    rules = _Rules(axes)
    return [(tirx.FloorDiv, rules.quotient), (tirx.FloorMod, rules.remainder)]


class _Rules:
    def __init__(self, axes: list[IterVar]):
        self._extents = [(iv.var, iv.dom.extent) for iv in axes]
        self._analyzer = sym.Analyzer()
        for iv in axes:
            self._analyzer.bind(iv.var, tvm.ir.Range(iv.dom.min, iv.dom.extent))

    def quotient(self, node: tirx.FloorDiv) -> Expr:
        value = self._analyzer.simplify(node.a)
        if self._below(value, node.b):
            return tirx.const(0, str(node.ty))
        parts = self._split(value, node.b)
        return parts[0] if parts else self._analyzer.simplify(tirx.floordiv(value, node.b))

    def remainder(self, node: tirx.FloorMod) -> Expr:
        value = self._analyzer.simplify(node.a)
        if self._below(value, node.b):
            return value
        parts = self._split(value, node.b)
        return parts[1] if parts else self._analyzer.simplify(tirx.floormod(value, node.b))

    def _below(self, value: Expr, bound: Expr) -> bool:
        """Whether ``value`` is an axis whose extent is ``bound``."""
        return any(value.same_as(v) and self._analyzer.can_prove_equal(e, bound) for v, e in self._extents)

    def _split(self, value: Expr, divisor: Expr) -> tuple[Expr, Expr] | None:
        """(q, r) where ``value`` reads ``q * divisor + r`` and r is below the divisor."""
        if isinstance(value, tirx.Mul):
            factor = self._other_factor(value, divisor)
            return (factor, tirx.const(0, str(value.ty))) if factor is not None else None
        if not isinstance(value, tirx.Add):
            return None
        for multiple, rest in ((value.a, value.b), (value.b, value.a)):
            factor = self._other_factor(multiple, divisor)
            if factor is not None and self._below(rest, divisor):
                return factor, rest
        return None

    def _other_factor(self, value: Expr, divisor: Expr) -> Expr | None:
        if not isinstance(value, tirx.Mul):
            return None
        if self._analyzer.can_prove_equal(value.b, divisor):
            return value.a
        return value.b if self._analyzer.can_prove_equal(value.a, divisor) else None
