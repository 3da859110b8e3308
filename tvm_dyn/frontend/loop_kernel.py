"""Kernels written as loops, for operators whose steps depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.value import Value
from tvm_dyn.schedules import emit

Body = Callable[[list[Any], list[Any]], tirx.Stmt]


def emit_loops(
    ctx: Context, name: str, inputs: Sequence[Value], outputs: Sequence[tuple[Sequence[Any], str]], body: Body
) -> list[Value]:
    """Bind a kernel: `body(input buffers, output buffers)` gives the statement; outputs: (shape, dtype)."""

    def kernel(tensors: list[te.Tensor], shapes: list[list[Any]]) -> Any:
        # plain buffers: those of `te.extern` start at an unknown offset, others have a layout; FuseTIR
        # matches neither with those of other kernels
        dtypes = [dtype for _, dtype in outputs]
        return te.extern(
            shapes,
            tensors,
            lambda ins, outs: body(list(ins), list(outs)),
            name=name,
            dtype=dtypes,
            in_buffers=[tirx.decl_buffer(t.shape, t.dtype, t.op.name, layout=None) for t in tensors],
            out_buffers=[tirx.decl_buffer(s, d, name, layout=None) for s, d in zip(shapes, dtypes, strict=True)],
        )

    tensors = [ctx.tensor(v) for v in inputs]
    result = ctx.bb.call_te(kernel, tensors, [list(shape) for shape, _ in outputs], primfunc_name_hint=name)
    bound = ctx.bb.emit(result)
    if len(outputs) == 1:
        return [ctx.emit(bound)]
    return [ctx.emit(relax.TupleGetItem(bound, k)) for k in range(len(outputs))]


def loop_nest(extents: Sequence[Any], body: Callable[[Sequence[Any]], tirx.Stmt]) -> tirx.Stmt:
    """`body(place)` for every place of a tensor, in row-major order."""

    def nest(place: list[Any]) -> tirx.Stmt:
        if len(place) == len(extents):
            return body(place)
        extent = extents[len(place)]
        return emit.serial(extent, lambda i: nest([*place, i]), f"i{len(place)}")

    return nest([])
