"""The kernels and views of a dataflow block and who reads whose result."""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
from tvm import relax

from tvm_dyn.passes.dependence import ATTRIBUTE, Backbone, Dependence, Operand, Relation, Work
from tvm_dyn.passes.rewriting import CALL_TIR, RESHAPE


@dataclass(frozen=True, eq=False)
class Read:
    """``reader`` takes a result as its ``operand``."""

    reader: Node
    operand: Operand


@dataclass(eq=False)
class Node:
    """One call_tir with one result, or a view, which costs nothing where it is and is an index map inside a kernel.

    position: its place in the block. operands: its tensor arguments with the kernel's maps of them. producers: the
    node behind each operand, None where there is none. reads: who reads the result. escapes: whether anything but
    a node reads it.
    """

    position: int
    var: relax.Var
    call: relax.Call
    dependence: Dependence
    operands: list[tuple[relax.Expr, Operand]]
    producers: list[Node | None] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    escapes: bool = False

    @property
    def is_view(self) -> bool:
        return self.call.op == RESHAPE

    @property
    def rank(self) -> int:
        return len(self.var.ty.shape.values)

    def maps_of(self, nodes: set[Node]) -> list[Operand]:
        """How this node reads the results of ``nodes``."""
        return [
            operand for producer, (_, operand) in zip(self.producers, self.operands, strict=True) if producer in nodes
        ]


def operator_graph(block: relax.DataflowBlock, mod: tvm.IRModule) -> list[Node]:
    """The annotated kernels of ``block`` in order; a result that any other binding reads escapes."""
    nodes: dict[relax.Var, Node] = {}
    for position, binding in enumerate(block.bindings):
        value = binding.value
        node = _node(position, binding, mod)
        for var in relax.analysis.free_vars(value):
            producer = nodes.get(var)
            if producer is not None and (node is None or not any(var.same_as(a) for a, _ in node.operands)):
                producer.escapes = True
        if node is None:
            continue
        for argument, operand in node.operands:
            producer = nodes.get(argument) if isinstance(argument, relax.Var) else None
            node.producers.append(producer)
            if producer is not None:
                producer.reads.append(Read(node, operand))
        node.escapes = not isinstance(binding.var, relax.DataflowVar)
        nodes[binding.var] = node
    return list(nodes.values())


def _node(position: int, binding: relax.Binding, mod: tvm.IRModule) -> Node | None:
    call = binding.value
    if not isinstance(binding, relax.VarBinding) or not isinstance(call, relax.Call) or not _has_dims(binding.var):
        return None
    if call.op == RESHAPE and _has_dims(call.args[0]):
        return Node(position, binding.var, call, _VIEW, [(call.args[0], _VIEW.operands[0])])
    func = mod[call.args[0]] if call.op == CALL_TIR else None
    attribute = func.attrs.get(ATTRIBUTE) if func is not None and func.attrs else None
    if attribute is None:
        return None
    dependence = Dependence.from_attribute(attribute)
    arguments = [a for a in call.args[1].fields if isinstance(a.ty, relax.TensorType)]
    if len(arguments) != len(dependence.operands):
        return None
    return Node(position, binding.var, call, dependence, list(zip(arguments, dependence.operands, strict=True)))


def _has_dims(tensor: relax.Expr) -> bool:
    return isinstance(tensor.ty, relax.TensorType) and isinstance(tensor.ty.shape, relax.ShapeExpr)


_VIEW = Dependence(Backbone.MAP, Work.MOVE, (Operand(Relation.RESHAPE, aligned=0, contiguous=False),))
