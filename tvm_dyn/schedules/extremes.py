"""Maxima and minima of floats start from infinity, not from the largest finite number as in TVM.

    with T.init(): y[i] = T.min_value("float32")      with T.init(): y[i] = T.float32("-inf")
    y[i] = max(y[i], x[i, k])                    ->   y[i] = max(y[i], x[i, k])

The maximum of values that are all -inf, such as the scores of a row that is masked out, is -inf.
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import BufferStore, PrimFunc

from tvm_dyn.schedules.common import collect

_SIGN = {tirx.Max: "-inf", tirx.Min: "inf"}


def start_at_infinity(func: PrimFunc) -> PrimFunc:
    """Exchange the initial value of reductions by `max` and `min`."""
    initial = {
        block.init: BufferStore(block.init.buffer, tirx.const(float(sign), value.ty), block.init.indices)
        for block in collect(func.body, s_tir.SBlock)
        if isinstance(block.init, BufferStore)
        and isinstance(block.body, BufferStore)
        and isinstance(value := block.init.value, tirx.FloatImm)
        and (sign := _SIGN.get(type(block.body.value)))
    }
    if not initial:
        return func

    def exchange(store: BufferStore) -> BufferStore:
        return initial.get(store, store)

    return func.with_body(tvm_ffi.structural_map(func.body, (BufferStore, exchange)))
