"""Number the kernels of each dataflow block by fusion group: one backbone and what its schedule can take along.

    lv  = R.call_tir(cls.matmul, (x, w))                # group 0: the backbone
    lv1 = R.call_tir(cls.add, (lv, b))                  # group 0: epilogue
    lv2 = R.call_tir(cls.transpose, (y,))               # group 1: prologue
    lv3 = R.call_tir(cls.softmax, (lv2,))               # group 1: the backbone

The number is the attribute ``tvm_dyn.group`` of the call. Only the last kernel of a group has readers outside, so a
group can take that kernel's place. `FuseByDependence` makes one kernel of each.

A group grows forward from its backbone over kernels whose map of the results so far is regular enough, as far as a
single result is left (so values that are read twice, as in a GELU, are no obstacle); attention is a product whose rows
reach a second product. Then kernels without a backbone join the group of their readers, or start one of their own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

import tvm
from tvm import relax

from tvm_dyn.passes.dependence import Backbone, Operand, Relation, Work
from tvm_dyn.passes.operator_graph import Node, Read, operator_graph
from tvm_dyn.passes.outline import fuse
from tvm_dyn.passes.rewriting import rewrite_functions
from tvm_dyn.schedules import takes_attention

GROUP = "tvm_dyn.group"

_MAX_COPIES = 16
"""How often a value may be written out in the expressions of its readers: they grow exponentially otherwise."""

_POINTWISE = (Relation.IDENTITY, Relation.PERMUTE)


@tvm.transform.module_pass(opt_level=0, name="PartitionByBackbone")
class PartitionByBackbone:
    """Follows `AnnotateDependence`. Attention is one group where the rule for attention takes it."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, _Numbered(mod))


@relax.expr_functor.mutator
class _Numbered(relax.expr_functor.PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.source = mod
        self.numbers: dict[relax.Var, int] = {}
        self.next = 0

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        groups = partition(operator_graph(block, self.source), self._is_attention)
        for group in groups:
            self.numbers |= {node.var: self.next for node in group}
            self.next += 1
        return super().visit_dataflow_block_(block)

    def _is_attention(self, members: list[Node]) -> bool:
        return takes_attention(fuse(self.source, [relax.VarBinding(node.var, node.call) for node in members]))

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        number = self.numbers.get(binding.var)
        if number is not None:
            call = binding.value
            attrs = tvm.ir.make_node("ir.DictAttrs", **{GROUP: number})
            binding = relax.VarBinding(binding.var, relax.Call(call.op, call.args, attrs, call.ty_args))
        super().visit_var_binding_(binding)


def partition(nodes: list[Node], is_attention: Callable[[list[Node]], bool]) -> list[list[Node]]:
    """The groups of two and more nodes, each in program order. ``is_attention``: whether a run of nodes with two
    products, in order, has a kernel.
    """
    groups = _Groups()
    for node in nodes:
        if groups.of(node) is None and _starts_attention(node):
            members = _grow(node, _RowsOfProduct(node, groups))
            if _holds_two_products(members) and is_attention(members):
                groups.add(members)
    for kinds in ((Backbone.PRODUCT, Backbone.WINDOW), (Backbone.ROWS,)):
        for node in nodes:
            if groups.of(node) is None and node.dependence.backbone in kinds:
                grows = _Rows(node, groups) if Backbone.ROWS in kinds else _Pointwise(node, groups)
                groups.add(_grow(node, grows))
    for node in reversed(nodes):
        if groups.of(node) is None and node.dependence.backbone == Backbone.MAP:
            group = groups.common(node)
            if group is not None and _joins_readers(node, group):
                groups.join(node, group)
            elif not node.is_view:
                groups.add([node])
    return [sorted(g, key=lambda n: n.position) for g in groups.all() if len(g) > 1]


class _Groups:
    def __init__(self) -> None:
        self._of: dict[Node, set[Node]] = {}

    def of(self, node: Node) -> set[Node] | None:
        return self._of.get(node)

    def add(self, members: Iterable[Node]) -> None:
        group = set(members)
        self._of |= dict.fromkeys(group, group)

    def join(self, node: Node, group: set[Node]) -> None:
        group.add(node)
        self._of[node] = group

    def common(self, node: Node) -> set[Node] | None:
        """The group that holds all readers of a node."""
        found = [self._of.get(read.reader) for read in node.reads]
        if node.escapes or not found or found[0] is None or any(g is not found[0] for g in found):
            return None
        return found[0]

    def all(self) -> list[set[Node]]:
        return list({id(g): g for g in self._of.values()}.values())


# -- forward, from a backbone --------------------------------------------------------------------------------


def _grow(head: Node, accepts: Callable[[Node, set[Node]], bool]) -> list[Node]:
    """``head`` and the readers it takes along: the longest run after which only the last result is read outside."""
    taken, kept, seen = {head}, [head], {head}
    order = [head]
    queue: list[tuple[int, Node]] = []
    _push_readers(head, queue)
    while queue:
        _, node = heapq.heappop(queue)
        if node in seen:
            continue
        seen.add(node)
        if not accepts(node, taken):
            break  # what it reads stays open
        taken.add(node)
        order.append(node)
        if _open(taken) == [node]:
            kept = list(order)
        _push_readers(node, queue)
    return kept


def _push_readers(node: Node, queue: list[tuple[int, Node]]) -> None:
    for read in node.reads:
        heapq.heappush(queue, (read.reader.position, read.reader))


def _open(nodes: set[Node]) -> list[Node]:
    """The nodes whose result is read outside."""
    return [n for n in nodes if n.escapes or not n.reads or any(r.reader not in nodes for r in n.reads)]


class _Pointwise:
    """An epilogue: every element of the backbone's result becomes one element, at the same place or, in the end,
    with the axes in another order (a product writes its tiles anywhere)."""

    def __init__(self, head: Node, groups: _Groups):
        self.head, self.groups = head, groups

    def __call__(self, node: Node, taken: set[Node]) -> bool:
        if self.groups.of(node) is not None or node.is_view or node.dependence.backbone != Backbone.MAP:
            return False
        relations = [operand.relation for operand in node.maps_of(taken)]
        if all(relation == Relation.IDENTITY for relation in relations):
            return True
        product = self.head.dependence.backbone == Backbone.PRODUCT
        return product and relations == [Relation.PERMUTE] and _open({*taken, node}) == [node]


class _Rows:
    """Kernels that walk the rows of a reduction in step: each row stays in the cache from one to the next."""

    def __init__(self, head: Node, groups: _Groups, rows: int | None = None):
        self.rows = head.dependence.rows if rows is None else rows
        self.groups = groups

    def __call__(self, node: Node, taken: set[Node]) -> bool:
        kinds = (Backbone.MAP, Backbone.ROWS)
        if self.groups.of(node) is not None or node.is_view or node.dependence.backbone not in kinds:
            return False
        return all(self._in_step(operand) for operand in node.maps_of(taken))

    def _in_step(self, operand: Operand) -> bool:
        if self.rows == 0:
            return operand.relation == Relation.IDENTITY
        return operand.aligned >= self.rows and operand.relation != Relation.OPAQUE


class _RowsOfProduct(_Rows):
    """Attention: from the rows of one product to a second one, then the second one's epilogue."""

    def __init__(self, head: Node, groups: _Groups):
        super().__init__(head, groups, head.rank - 1)
        self.epilogue: _Pointwise | None = None

    def __call__(self, node: Node, taken: set[Node]) -> bool:
        if self.epilogue is not None:
            return self.epilogue(node, taken)
        if node.dependence.backbone != Backbone.PRODUCT:
            return super().__call__(node, taken)
        second = [operand for operand in node.maps_of(taken) if self._in_step(operand)]
        if self.groups.of(node) is not None or len(second) != 1 or len(node.maps_of(taken)) != 1:
            return False
        self.epilogue = _Pointwise(node, self.groups)
        return True


def _starts_attention(node: Node) -> bool:
    """Whether the node multiplies two results per batch (weights have no batch)."""
    return node.dependence.backbone == Backbone.PRODUCT and node.rank > 2 and node.dependence.rows > 0


def _holds_two_products(nodes: list[Node]) -> bool:
    return [n.dependence.backbone for n in nodes].count(Backbone.PRODUCT) == 2


# -- backward, kernels without a backbone --------------------------------------------------------------------


def _joins_readers(node: Node, group: set[Node]) -> bool:
    products = _holds_two_products(list(group))
    copies = sum(_copies(read.reader, group) for read in node.reads)
    return copies <= _MAX_COPIES and all(_may_inline(node, read, group, products) for read in node.reads)


def _copies(node: Node, group: set[Node]) -> int:
    """How often the group's result mentions a node when all others are written out in their readers."""
    inside = [read for read in node.reads if read.reader in group]
    return sum(_copies(read.reader, group) for read in inside) if inside else 1


def _may_inline(node: Node, read: Read, group: set[Node], attention: bool) -> bool:
    """Whether computing ``node`` where it is read costs less than storing its result."""
    relation, backbone, work = read.operand.relation, read.reader.dependence.backbone, node.dependence.work
    if relation == Relation.OPAQUE or backbone == Backbone.WINDOW:
        return False
    if attention and _feeds_product(read.reader):
        return _is_packed(node)
    if node.is_view:
        return False
    if backbone == Backbone.PRODUCT:
        return work == Work.MOVE and all(o.relation <= Relation.BROADCAST and o.contiguous for _, o in node.operands)
    if any(n.dependence.backbone == Backbone.WINDOW for n in group):
        return False  # the rule for windows knows epilogues only
    if backbone == Backbone.ROWS:
        rows = read.reader.dependence.rows
        in_step = 0 < rows <= read.operand.aligned and read.operand.relation == Relation.REDUCE
        return _is_regular(node) and (work < Work.COSTLY or in_step)
    return work < Work.COSTLY or (relation in _POINTWISE and len(node.reads) == 1)


def _feeds_product(node: Node) -> bool:
    """Whether a node is a product or only computes what products read."""
    backbone = node.dependence.backbone
    if backbone == Backbone.MAP and node.reads and not node.escapes:
        return all(_feeds_product(read.reader) for read in node.reads)
    return backbone == Backbone.PRODUCT


def _is_packed(node: Node) -> bool:
    """Whether attention, which reads its operands once to pack them, may compute ``node`` on the way: any move of
    elements (heads split off, transposed, repeated), and simple arithmetic. A view alone saves nothing.
    """
    relations = [operand.relation for _, operand in node.operands]
    if node.is_view:
        (producer,) = node.producers
        return producer is not None and len(producer.reads) == 1 and _is_moved(producer)
    limit = Relation.RESHAPE if node.dependence.work == Work.MOVE else Relation.BROADCAST
    return node.dependence.work < Work.COSTLY and all(relation <= limit for relation in relations)


def _is_moved(node: Node) -> bool:
    return node.dependence.backbone == Backbone.MAP and node.dependence.work == Work.MOVE


def _is_regular(node: Node) -> bool:
    """Whether rows of ``node`` can be computed in vectors."""
    return all(operand.contiguous and operand.relation != Relation.RESHAPE for _, operand in node.operands)
