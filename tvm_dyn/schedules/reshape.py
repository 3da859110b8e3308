"""Reshapes that did not become views: one flat copy, without the divisions of changed coordinates.

```
T_reshape[i, j] = x[(i*m + j) // (h*w), (i*m + j) // w % h, (i*m + j) % w]   ->   flat copy
```
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir.schedule import Schedule
from tvm.target import Target
from tvm.tirx import PrimFunc, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import leaf_blocks, stores
from tvm_dyn.schedules.tasks import enough_elements, tasks

_PIECE = 1 << 14
"""Elements a task copies."""


def apply(func: PrimFunc, target: Target) -> Schedule | None:
    """TVM names the block of a reshape; its two buffers hold the same elements in the same order."""
    sch = Schedule(func)
    blocks = [sch.get(block) for block in leaf_blocks(sch)]
    buffers = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    if len(blocks) != 1 or blocks[0].name_hint != "T_reshape" or len(buffers) != 2:
        return None
    source, result = buffers
    (store,) = stores(blocks[0].body)
    if not isinstance(store.value, TensorLoad) or not store.value.source.same_as(source):
        return None
    if not store.buffer.same_as(result) or not result.shape or not source.shape:
        return None
    return emit.kernel(func, _copy(source, result, target))


def _copy(source: tirx.Buffer, result: tirx.Buffer, target: Target) -> Stmt:
    dtype = str(result.dtype)
    lanes = hardware.lanes(target, dtype)

    def at(buffer: tirx.Buffer, index: Expr) -> list[Expr]:
        return [*[emit.const(0)] * (len(buffer.shape) - 1), index]

    def pieces(total: Expr) -> Stmt:
        def task(start: Expr, count: Expr) -> Stmt:
            return emit.chunks(
                count,
                lanes,
                lambda i: emit.store(result, source[tuple(at(source, start + i))], *at(result, start + i)),
            )

        return tasks(
            enough_elements(total, dtype),
            emit.ceildiv(total, _PIECE),
            lambda n: emit.bind(
                [n * _PIECE],
                lambda start: emit.bind([start, tirx.min(emit.const(_PIECE), total - start)], task),
            ),
            target,
        )

    return emit.bind([emit.product(list(result.shape))], pieces)
