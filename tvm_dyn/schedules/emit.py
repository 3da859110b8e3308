"""Small constructors for kernels that are written out as loops instead of being scheduled."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tvm import s_tir, sym, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import Schedule
from tvm.tirx import ForKind, PrimFunc, Stmt

from tvm_dyn.schedules.common import as_int, collect

Body = Callable[[Expr], Stmt]
At = Callable[..., tuple[tirx.Buffer, Expr]]
"""Coordinates -> a flat buffer and the index in it."""


def const(value: int) -> Expr:
    """An index constant."""
    return tirx.const(value, "int64")


def index(value: Expr | int) -> Expr:
    """A number that is known now, or when the kernel runs."""
    return const(value) if isinstance(value, int) else value


def _loop(extent: Expr | int, body: Body, kind: ForKind, name: str) -> Stmt:
    var = tirx.Var(name, "int64")
    return tirx.For(var, const(0), index(extent), kind, body(var))


def serial(extent: Expr | int, body: Body, name: str = "i") -> Stmt:
    """A loop; TVM cannot bound what a loop without iterations accesses, so such a one is left out."""
    known = extent if isinstance(extent, int) else as_int(simplify(extent))
    if known == 0:
        return tirx.Evaluate(const(0))
    if known == 1 and isinstance(extent, int):
        return body(const(0))
    return _loop(extent, body, ForKind.SERIAL, name)


def parallel(extent: Expr | int, body: Body, name: str = "task") -> Stmt:
    return _loop(extent, body, ForKind.PARALLEL, name)


def unrolled(extent: int, body: Body, name: str = "u") -> Stmt:
    return body(const(0)) if extent == 1 else _loop(extent, body, ForKind.UNROLLED, name)


def vectorized(lanes: int, body: Body, name: str = "j") -> Stmt:
    return body(const(0)) if lanes == 1 else _loop(lanes, body, ForKind.VECTORIZED, name)


def seq(*stmts: Stmt) -> Stmt:
    """The statements one after another; a single one stands for itself, none does nothing."""
    if not stmts:
        return tirx.Evaluate(const(0))
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(list(stmts))


def bind(values: list[Expr], body: Callable[..., Stmt], rename: bool = False) -> Stmt:
    """``body`` of the values, each computed once; constants are passed on as they are, as are variables
    without ``rename``.
    """
    statements: list[Stmt] = []
    names: list[Expr] = []
    for value in values:
        if as_int(value) is not None or (isinstance(value, tirx.Var) and not rename):
            names.append(value)
            continue
        names.append(tirx.Var(f"v{len(names)}", "int64"))
        statements.append(tirx.stmt.Bind(names[-1], _opaque(value)))
    return seq(*statements, body(*names))


def _opaque(value: Expr, dtype: str = "int64") -> Expr:
    """The value, hidden from TVM's simplifier.

    Most TIR passes put definitions back in place, expand the products of symbolic extents that come out, and
    solve the inequalities of conditions: it takes seconds, and kernels grow to megabytes of index
    arithmetic. LLVM drops the call first thing.
    """
    bits = 1 if dtype == "bool" else 64
    return tirx.call_llvm_intrin(dtype, f"llvm.expect.i{bits}", value, tirx.const(1, dtype))


def scratch(kinds: list[tuple[list, str]], body: Callable[..., Stmt]) -> Stmt:
    """``body`` of buffers of the given (shape, dtype) that live as long as it runs; they start undefined.

    TVM allocates at the start of the outermost parallel loop around (without one, of the function): extents
    may not depend on anything that is defined further in.
    """
    buffers = [
        tirx.decl_buffer([const(s) if isinstance(s, int) else s for s in shape], dtype, f"scratch{n}")
        for n, (shape, dtype) in enumerate(kinds)
    ]
    # Naming the pointer makes TVM take the buffer as it is: a union of all symbolic regions that are
    # accessed costs it seconds and is no smaller.
    named = [tirx.Evaluate(buffer.data) for buffer in buffers]
    return seq(*[tirx.AllocBuffer(buffer) for buffer in buffers], *named, body(*buffers))


def rows_of(buffer: tirx.Buffer, *extents: Expr | int) -> At:
    """Multi-dimensional coordinates of a flat buffer; the outermost extent is not needed.

    TVM's own flattening would put the definition of every symbolic extent into every index.
    """

    def at(*coordinates: Expr, lane: Expr | int = 0) -> tuple[tirx.Buffer, Expr]:
        first, *rest = coordinates
        steps = zip(rest, extents, strict=True)
        start = _opaque(functools.reduce(lambda index, step: index * step[1] + step[0], steps, first))
        if isinstance(lane, tirx.Ramp):
            return buffer, span(start + lane.base, int(lane.lanes))
        return buffer, start + lane

    return at


def span(start: Expr, lanes: int) -> Expr:
    """The indices of a vector from ``start`` on."""
    return start if lanes == 1 else tirx.Ramp(start, const(1), lanes)


def quotient(a: Expr | int, b: Expr | int) -> Expr:
    """``a / b`` of numbers that are not negative.

    Truncating division: TVM takes seconds to find out that a floor division may truncate.
    """
    return tirx.truncdiv(index(a), index(b))


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    """``a / b`` of numbers that are not negative, rounded up."""
    return quotient(a + (b - 1), b)


def unflatten(index: Expr, extents: list[Expr | int]) -> list[Expr]:
    """Coordinates of a row-major ``index``; the first extent is not needed, extents of 1 cost no division."""
    coordinates: list[Expr] = []
    for extent in reversed(extents[1:]):
        if as_int(extent) == 1:
            coordinates.append(const(0))
            continue
        # Never 0: TVM makes an error of a division by what a branch proves to be 0, though the loop is empty.
        extent = const(extent) if isinstance(extent, int) else tirx.max(extent, const(1))
        coordinates.append(tirx.truncmod(index, extent))
        index = tirx.truncdiv(index, extent)
    return [index, *reversed(coordinates)]


def product(extents: list[Expr | int]) -> Expr:
    """The product of index extents; 1 of none."""
    return math.prod(extents, start=const(1)) if extents else const(1)


def chunks(extent: Expr, lanes: int, body: Body) -> Stmt:
    """``body`` of every index below ``extent``, in vectors (see `pieces`)."""
    return pieces(extent, lanes, lambda start, width: vectorized(width, lambda j: body(start + j)))


def pieces(extent: Expr, lanes: int, body: Callable[[Expr, int], Stmt]) -> Stmt:
    """``body(start, width)`` of pieces that cover ``extent``, at most ``lanes`` wide.

    The last piece starts early enough to end at ``extent``, so ``body`` runs twice for some indices and has
    to be idempotent. Extents below a vector take narrower pieces.
    """
    known = as_int(extent)
    widths = [w for w in (lanes, lanes // 4) if w > 1]
    if known is not None:
        return _pieces(extent, max([w for w in widths if w <= known], default=1), body)
    stmt = _pieces(extent, 1, body)
    for width in reversed(widths):
        stmt = when(extent >= width, _pieces(extent, width, body), stmt)
    return stmt


def _pieces(extent: Expr, width: int, body: Callable[[Expr, int], Stmt]) -> Stmt:
    if width == 1:
        return serial(extent, lambda start: body(start, 1))

    def piece(chunk: Expr) -> Stmt:
        return bind([tirx.min(chunk * width, extent - width)], lambda start: body(start, width))

    return serial(ceildiv(extent, width), piece)


def kernel(func: PrimFunc, body: Stmt) -> Schedule:
    """A schedule of ``func`` with its body exchanged for ``body``; parameters and attributes stay."""
    block = s_tir.SBlock([], [], [], "root", body)
    return Schedule(func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block)))


def rebuild(func: PrimFunc, body: Stmt) -> PrimFunc:
    """``func`` with ``body`` as its whole body; buffers of its root block stay if ``body`` uses them."""
    used = collect(body, tirx.Var)
    buffers = [b for b in func.body.block.alloc_buffers if any(b.same_as(v) for v in used)]
    block = s_tir.SBlock([], [], [], "root", body, alloc_buffers=buffers)
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), block))


def load(buffer: tirx.Buffer, *indices: Expr | int) -> Expr:
    """``buffer[indices]``."""
    return tirx.BufferLoad(buffer, [index(i) for i in indices])


def store(buffer: tirx.Buffer, value: Expr, *indices: Expr | int) -> Stmt:
    """``buffer[indices] = value``."""
    return tirx.BufferStore(buffer, value, [index(i) for i in indices])


def store_at(place: tuple[tirx.Buffer, Expr], value: Expr) -> Stmt:
    """Store to a place that `rows_of` gave."""
    return tirx.BufferStore(place[0], value, [place[1]])


def simplify(expr: Expr) -> Expr:
    """``expr`` in TVM's simplest form."""
    return sym.Analyzer().simplify(expr)


def when(condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    """``if condition: then else: otherwise``, decided now where the condition is constant."""
    condition = simplify(condition)
    if not isinstance(condition, tirx.IntImm):
        return tirx.IfThenElse(_opaque(condition, "bool"), then, otherwise)
    return then if condition.value else otherwise or tirx.Evaluate(const(0))
