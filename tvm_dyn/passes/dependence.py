"""How the result of a kernel depends on each of its operands, read off its loops.

The iteration map of an operand gives, for one element of the result, the elements that are read to compute it. It
decides what fuses: see `PartitionByBackbone`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, sym, tirx
from tvm.tirx import Buffer, PrimFunc

from tvm_dyn.schedules.backbone import Backbone, kind
from tvm_dyn.schedules.common import SCHEDULED, as_int, is_costly, loads, stores, substitute, uses_var
from tvm_dyn.schedules.stage import Stage, parse

ATTRIBUTE = "tvm_dyn.dependence"


class Relation(enum.IntEnum):
    """Kinds of iteration maps, from the most to the least regular.

    IDENTITY: the element at the same place. PERMUTE: one element, axes in another order. BROADCAST: one element,
    some axes missing. RESHAPE: elements at places computed from the indices (slices, concatenations, merged axes).
    REDUCE: a whole range of elements. OPAQUE: places that depend on data.
    """

    IDENTITY = 0
    PERMUTE = 1
    BROADCAST = 2
    RESHAPE = 3
    REDUCE = 4
    OPAQUE = 5


class Work(enum.IntEnum):
    """What one element costs: a copy, simple arithmetic, or a transcendental function or division."""

    MOVE = 0
    CHEAP = 1
    COSTLY = 2


@dataclass(frozen=True)
class Operand:
    """The map of one operand.

    aligned: how many leading axes the operand and the result walk in step. contiguous: whether neighbours along the
    last axis of the result read neighbours along the last axis of the operand, or one and the same element.
    """

    relation: Relation
    aligned: int
    contiguous: bool


@dataclass(frozen=True)
class Dependence:
    """What is known of one kernel; ``operands`` in the order of its tensor parameters."""

    backbone: Backbone
    work: Work
    operands: tuple[Operand, ...] = ()

    @property
    def rows(self) -> int:
        """Leading axes of the result that no reduction crosses."""
        return min((o.aligned for o in self.operands if o.relation == Relation.REDUCE), default=0)

    def to_attribute(self) -> dict[str, Any]:
        """As an attribute of a function."""
        maps = [[o.relation.name.lower(), o.aligned, o.contiguous] for o in self.operands]
        return {"backbone": self.backbone.value, "work": self.work.name.lower(), "operands": maps}

    @staticmethod
    def from_attribute(attribute: Mapping[str, Any]) -> Dependence:
        """What `to_attribute` wrote."""
        maps = tuple(
            Operand(Relation[str(kind).upper()], int(aligned), bool(contiguous))
            for kind, aligned, contiguous in attribute["operands"]
        )
        return Dependence(Backbone(str(attribute["backbone"])), Work[str(attribute["work"]).upper()], maps)


_UNKNOWN = Dependence(Backbone.OPAQUE, Work.COSTLY)


def dependence(func: PrimFunc) -> Dependence:
    """The dependence of a kernel with one result; a kernel that is not plain loop nests is OPAQUE."""
    if not isinstance(func.body, s_tir.SBlockRealize) or (func.attrs and func.attrs.get(SCHEDULED, False)):
        return _UNKNOWN
    stages = parse(func)
    if not stages:
        return _UNKNOWN
    tensors = [p for p in func.params if isinstance(p.ty, tirx.BufferType)]
    maps = _Maps(stages, tensors)
    if maps.result is None:
        return _UNKNOWN
    operands = tuple(maps.operand(t) for t in tensors if not t.same_as(maps.result))
    return Dependence(kind(stages), _work(stages), operands)


def _work(stages: list[Stage]) -> Work:
    if any(is_costly(stage.body) for stage in stages):
        return Work.COSTLY
    values = [store.value for stage in stages for store in stores(stage.body)]
    moves = all(len(found := loads(value)) == 1 and found[0].same_as(value) for value in values)
    return Work.MOVE if moves else Work.CHEAP


@dataclass(frozen=True)
class _Access:
    """Elements ``indices`` of a parameter, reduction axes among them if ``reduced``; None where data decides."""

    source: Buffer
    indices: list | None
    reduced: bool


class _Maps:
    """The accesses to parameters behind each element of the result."""

    def __init__(self, stages: list[Stage], tensors: list):
        self._tensors = tensors
        self._writers: dict[Any, Stage] = {}
        self._known: dict[Any, list[_Access]] = {}
        self._analyzer = sym.Analyzer()
        self.result = self._find_result(stages)
        if self.result is not None:
            self._axes = [iv.var for iv in self._writers[self.result].spatial]
            self._accesses = self._behind(self.result)

    def _find_result(self, stages: list[Stage]) -> Any:
        """The parameter that is written, None unless it is one and every buffer has one writer, element by element."""
        for stage in stages:
            written = stores(stage.body)
            if len(written) != 1 or written[0].buffer in self._writers or not _writes_in_order(stage, written[0]):
                return None
            self._writers[written[0].buffer] = stage
        results = [t for t in self._tensors if t in self._writers]
        return results[0] if len(results) == 1 else None

    def _behind(self, buffer: Any) -> list[_Access]:
        """Accesses for the element of ``buffer`` at the axes of its writer."""
        if buffer not in self._known:
            self._known[buffer] = []  # the reduction's read of its own sum
            self._known[buffer] = self._of_stage(self._writers[buffer], buffer)
        return self._known[buffer]

    def _of_stage(self, stage: Stage, buffer: Any) -> list[_Access]:
        found: list[_Access] = []
        reduction = [iv.var for iv in stage.reduction]
        for load in loads(stage.body):
            if load.source.same_as(buffer):
                continue
            indices = None if any(loads(i) for i in load.indices) else list(load.indices)
            reduced = indices is not None and uses_var(indices, reduction)
            if load.source not in self._writers:
                found.append(_Access(load.source, indices, reduced))
                continue
            writer = self._writers[load.source]
            found += [_through(access, writer, indices, reduced) for access in self._behind(load.source)]
        return found

    def operand(self, buffer: Any) -> Operand:
        """The least regular of the maps through which the result reads ``buffer``."""
        accesses = [a for a in self._accesses if a.source.same_as(buffer)]
        relation = max((self._relation(a) for a in accesses), default=Relation.OPAQUE)
        aligned = min((self._aligned(a) for a in accesses), default=0)
        return Operand(relation, aligned, all(self._contiguous(a) for a in accesses))

    def _relation(self, access: _Access) -> Relation:
        if access.indices is None:
            return Relation.OPAQUE
        if access.reduced:
            return Relation.REDUCE
        dims = list(access.source.shape)
        if self._aligned(access) == len(dims) == len(self._axes):
            return Relation.IDENTITY
        found = [next((n for n, v in enumerate(self._axes) if v.same_as(i)), None) for i in access.indices]
        axes = [n for n in found if n is not None]
        plain = len(set(axes)) == len(axes) and all(
            as_int(dims[d]) == 1 if n is None else self._same_extent(dims[d], n) for d, n in enumerate(found)
        )
        if not plain:
            return Relation.RESHAPE
        missing = [n for n in range(len(self._axes)) if n not in axes and as_int(self._extent(n)) != 1]
        return Relation.BROADCAST if missing else Relation.PERMUTE

    def _aligned(self, access: _Access) -> int:
        dims = list(access.source.shape)
        count = 0
        for index, dim in zip(access.indices or [], dims, strict=False):
            if count == len(self._axes) or not self._same_extent(dim, count):
                break
            if not index.same_as(self._axes[count]) and as_int(dim) != 1:
                break
            count += 1
        return count

    def _contiguous(self, access: _Access) -> bool:
        if not access.indices or not self._axes:
            return True
        *outer, last = access.indices
        moving = self._axes[-1]
        return not uses_var(outer, [moving]) and (last.same_as(moving) or not uses_var(last, [moving]))

    def _extent(self, axis: int) -> Any:
        return self.result.shape[axis]

    def _same_extent(self, dim: Any, axis: int) -> bool:
        return self._analyzer.can_prove_equal(dim, self._extent(axis))


def _writes_in_order(stage: Stage, store: tirx.BufferStore) -> bool:
    axes = [iv.var for iv in stage.spatial]
    return len(axes) == len(store.indices) and all(i.same_as(v) for i, v in zip(store.indices, axes, strict=True))


def _through(access: _Access, writer: Stage, indices: list | None, reduced: bool) -> _Access:
    """An access behind a buffer's element, for the element that is read at ``indices``."""
    if access.indices is None or indices is None:
        return _Access(access.source, None, False)
    point = {iv.var: index for iv, index in zip(writer.spatial, indices, strict=True)}
    moved = [substitute(index, point) for index in access.indices]
    moves = uses_var(access.indices, [iv.var for iv in writer.spatial])
    return _Access(access.source, moved, access.reduced or (reduced and moves))
