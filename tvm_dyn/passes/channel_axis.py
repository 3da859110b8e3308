"""Which axis of each buffer of a kernel runs over channels, and the same kernel with that axis last."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, sym, tirx
from tvm.s_tir.schedule import Schedule
from tvm.tirx import Buffer, IndexMap, IterVar, PrimFunc

from tvm_dyn.schedules.common import all_blocks, as_int, collect, loads, stores, substitute, uses_var


@dataclass(frozen=True)
class ChannelAxes:
    """For each parameter that is read, the axis that follows the result's axis 1; None where it has none."""

    operands: tuple[int | None, ...]
    inner: dict[str, int]


class _Mixed(Exception):
    """Channels meet each other."""


def channel_axes(func: PrimFunc) -> ChannelAxes | None:
    """The axes of a kernel with one result, None where axis 1 of the result is not computed channel by channel."""
    try:
        return _Axes(func).found()
    except (_Mixed, s_tir.ScheduleError, RuntimeError):
        return None


class _Axes:
    def __init__(self, func: PrimFunc):
        self.func = func
        self.buffers = [p for p in func.params if isinstance(p, Buffer)]
        self.axes: dict[Buffer, int | None] = {}

    def found(self) -> ChannelAxes:
        result = self.buffers[-1]
        if len(result.shape) < 3:
            raise _Mixed
        self.axes[result] = 1
        sch = Schedule(self.func)
        blocks = [sch.get(block) for block in all_blocks(sch)]
        if not blocks or len(collect(self.func.body, s_tir.SBlock)) != len(blocks) + 1:
            raise _Mixed
        for block in reversed(blocks):
            self._visit(block)
        operands = self.buffers[:-1]
        inner = {
            b.name: a for b, a in self.axes.items() if not any(b.same_as(p) for p in self.buffers) and a is not None
        }
        return ChannelAxes(tuple(self.axes.get(b) for b in operands), inner)

    def _visit(self, block: s_tir.SBlock) -> None:
        """A block whose result's channel axis is known tells the axes of what it reads."""
        written = stores(block.body)
        if len({s.buffer for s in written}) != 1:
            raise _Mixed
        (store,) = written
        axis = self.axes.get(store.buffer)
        spatial = [iv.var for iv in block.iter_vars if iv.iter_type == IterVar.DataPar]
        if axis is None or not all(any(i.same_as(v) for v in spatial) for i in store.indices):
            raise _Mixed
        channel = store.indices[axis]
        single = {iv.var: tirx.const(0, "int64") for iv in block.iter_vars if as_int(iv.dom.extent) == 1}
        single = {v: zero for v, zero in single.items() if not v.same_as(channel)}
        for load in loads(block.body):
            indices = [sym.Analyzer().simplify(substitute(index, single)) for index in load.indices]
            used = [d for d, index in enumerate(indices) if uses_var(index, [channel])]
            if len(used) > 1 or (used and not self._in_order(indices[used[0]], channel)):
                raise _Mixed
            self._note(load.source, used[0] if used else None)

    def _in_order(self, index, channel: tirx.Var) -> bool:
        """Whether an index is the channel but for an offset, as it is for parts of a concatenation."""
        offset = sym.Analyzer().simplify(index - channel)
        return not uses_var(
            offset, [iv.var for block in collect(self.func.body, s_tir.SBlock) for iv in block.iter_vars]
        )

    def _note(self, buffer: Buffer, axis: int | None) -> None:
        known = next((b for b in self.axes if b.same_as(buffer)), None)
        if known is not None and self.axes[known] != axis:
            raise _Mixed
        self.axes[buffer if known is None else known] = axis


def _to_end(rank: int, axis: int) -> list[int]:
    return [*[a for a in range(rank) if a != axis], axis]


def _index_map(rank: int, order: list[int]) -> IndexMap:
    return IndexMap.from_func(lambda *i: [i[a] for a in order], ndim=rank)


def moved_last(func: PrimFunc, axes: ChannelAxes) -> PrimFunc:
    """The kernel with the channel axis of each buffer, and of each nest, moved to the end."""
    sch = Schedule(func)
    buffers = [p for p in func.params if isinstance(p, Buffer)]
    wanted = {b.name: a for b, a in zip(buffers, [*axes.operands, 1], strict=True) if a is not None} | axes.inner
    for block in all_blocks(sch):
        node = sch.get(block)
        regions = [("write", i, r) for i, r in enumerate(node.writes)] + [
            ("read", i, r) for i, r in enumerate(node.reads)
        ]
        for kind, number, region in regions:
            buffer = region.source
            axis = wanted.pop(buffer.name, None)
            if axis is not None and axis != len(buffer.shape) - 1:
                order = _to_end(len(buffer.shape), axis)
                sch.transform_layout(block, (kind, number), _index_map(len(order), order))
    for block in all_blocks(sch):
        node = sch.get(block)
        spatial = sum(iv.iter_type == IterVar.DataPar for iv in node.iter_vars)
        order = [*_to_end(spatial, 1), *range(spatial, len(node.iter_vars))]
        sch.transform_block_layout(block, _index_map(len(order), order))
    moved = sch.mod["main"]
    return moved.without_attr("global_symbol") if moved.attrs and "global_symbol" in moved.attrs else moved
