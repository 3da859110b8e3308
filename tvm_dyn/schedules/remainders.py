"""Remainders of loop variables by powers of two, out of sight of LLVM's loop vectorizer, which gets them wrong.

    for j: Y[i, j] = X[i % 3 * 4 + j % 4]   --->   for j: Y[i, j] = X[i % 3 * 4 + umul.fix(j % 4, 1)]

LLVM 20 to 22 reads ``j % 2**n`` as an n-bit counter that may wrap around (for n = 1, as one of step -1, which is no
trouble). Where the vectorizer would like to walk such an address in a straight line, it assumes that the counter
does not wrap, and leaves that to a check at run time. But it drops the check where it has a wider counter of at
least the same start and step to check already: "{i % 3 * 4,+,1}<i32> does not wrap" passes for "{0,+,1}<i2> does
not wrap" (`SCEVWrapPredicate::implies`; llvm/llvm-project issue 191382, mended by pull request 191498). So it loads
X[i % 3 * 4 + j] straight on. What it takes, as seen with LLVM 22.1.0:

* a loop that the vectorizer looks at: one without loops inside, or whose inner loops are short enough to vanish;
* in it, an address with ``j % 2**n``, n >= 2, where j goes beyond 2**n;
* a wider counter whose check is needed: index arithmetic in 32 bits (TVM's choice where all extents are constants)
  from a start such as ``i % 3 * 4`` or ``i / 3 * 4``, or, also on symbolic extents, a second remainder
  (X[j % 4] + X[j % 16] is wrong from 8 to 16 columns).

AVX-512 is not to blame, wide registers only make more loops worth it: the loop above goes wrong for plain x86-64
too. ``umul.fix(x, 1, 0)`` is x, as a product of fixed-point numbers. LLVM knows nothing about it before it selects
instructions, when it costs nothing; unlike other barriers it may still be hoisted and vectorized.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir import Expr
from tvm.tirx import ForKind, PrimFunc

from tvm_dyn.schedules.common import as_int, collect, loads

_WIDTHS = ("int32", "int64")


def hide_remainders(func: PrimFunc) -> PrimFunc:
    """Put every scalar remainder by 4, 8, 16, ... that changes inside ``func`` behind ``llvm.umul.fix``.

    Remainders of loaded values stay, as LLVM cannot take them for straight lines, and those of loops too short to
    wrap around.
    """
    changing, vectors = _variables(func)
    ranges = _ranges(func)

    def hide(node: Expr) -> Expr:
        divisor = as_int(node.b)
        if divisor is None or divisor < 4 or divisor & (divisor - 1) or str(node.ty) not in _WIDTHS:
            return node
        used = [hash(v) for v in collect(node.a, tirx.Var)]
        if vectors.intersection(used) or not changing.intersection(used) or loads(node.a):
            return node
        if ranges.const_int_bound(node.a).max_value < divisor:
            return node
        return _hidden(node)

    return func.with_body(tvm_ffi.structural_map(func.body, [(kind, hide) for kind in _REMAINDERS], order="post"))


_REMAINDERS = (tirx.FloorMod, tirx.Mod)


def _hidden(value: Expr) -> Expr:
    bits = str(value.ty).removeprefix("int")
    one, scale = tirx.const(1, str(value.ty)), tirx.const(0, "int32")
    return tirx.call_llvm_pure_intrin(str(value.ty), f"llvm.umul.fix.i{bits}", value, one, scale)


def _variables(func: PrimFunc) -> tuple[set[int], set[int]]:
    """Variables that change inside the function, and those that are lanes of a vector, or depend on one."""
    changing: list = []
    vectors: list = []

    def bound(root, found: list) -> None:
        found += [loop.loop_var for loop in collect(root, tirx.For)]
        found += [node.var for kind in (tirx.stmt.Bind, tirx.Let) for node in collect(root, kind)]
        found += [iv.var for block in collect(root, s_tir.SBlock) for iv in block.iter_vars]

    bound(func.body, changing)
    for loop in collect(func.body, tirx.For):
        if loop.kind == ForKind.VECTORIZED:
            bound(loop, vectors)
    return {hash(v) for v in changing}, {hash(v) for v in vectors}


def _ranges(func: PrimFunc) -> sym.Analyzer:
    """What loops of constant extent say about their variables."""
    analyzer = sym.Analyzer()
    for loop in collect(func.body, tirx.For):
        if as_int(loop.extent) is not None:
            analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    for block in collect(func.body, s_tir.SBlock):
        for axis in block.iter_vars:
            if as_int(axis.dom.extent) is not None:
                analyzer.bind(axis.var, axis.dom)
    return analyzer
