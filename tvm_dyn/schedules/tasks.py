"""Loops over tasks: over all cores where there is work enough, which the extents of a call decide.

for task in parallel(n): ...   --->   if n > 1 and work(extents) >= enough: for task in parallel(n): ...
                                      else: for task in range(n): ...
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.target import Target
from tvm.tirx import Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import emit


def tasks(worth: Expr | bool, extent: Expr, body: emit.Body, target: Target) -> Stmt:
    """A loop over ``extent`` tasks; serial on one core, for a single task, and where it is not ``worth`` a second core.

    The body is there twice, which doubles the time that TVM takes over it: callers that know say True or False.
    """
    if worth is False or hardware.cores(target) == 1:
        return emit.serial(extent, body, "task")
    if worth is True:
        return emit.parallel(extent, body)
    return emit.when(tirx.all(worth, extent > 1), emit.parallel(extent, body), emit.serial(extent, body, "task"))


def enough_sums(count: Expr) -> Expr:
    """Whether so many multiply-adds are worth waking a second core."""
    return count >= hardware.PARALLEL_MIN_SUMS


def enough_elements(count: Expr, dtype: str) -> Expr:
    """Whether so many elements of a type, each computed by little more than moving it, are worth a second core."""
    return count >= hardware.PARALLEL_MIN_BYTES // hardware.dtype_bytes(dtype)
