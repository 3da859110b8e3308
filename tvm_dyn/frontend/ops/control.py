"""If: both branches become blocks of the same function; a condition known at import leaves one branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import tvm
from tvm import relax, tirx

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import Value
from tvm_dyn.symbolic import to_text

if TYPE_CHECKING:
    from tvm_dyn.frontend.importer import GraphImporter


def convert_if(importer: GraphImporter, node: Node) -> list[Value]:
    ctx, condition = importer.ctx, node.data()
    elements = condition.known_elements()
    known = None if elements is None else elements.reshape(-1)[0]
    if isinstance(known, bool | int):
        return importer.subgraph(node.attr("then_branch" if known else "else_branch"))
    flag = ctx.bb.emit(relax.op.reshape(ctx.tensor(condition), ()))
    cases = (("then_branch", known), ("else_branch", None if known is None else tirx.Not(known)))
    then, otherwise = (_branch(importer, node.attr(name), fact) for name, fact in cases)
    if _kinds(then) != _kinds(otherwise):
        return _assume(importer, node, known)
    result = ctx.bb.emit(relax.If(flag, then, otherwise))
    return [ctx.emit(relax.TupleGetItem(result, k)) for k in range(len(node.outputs))]


def _branch(importer: GraphImporter, graph: onnx.GraphProto, fact: Any) -> relax.SeqExpr:
    """The branch as a block of its own; `fact` is the condition on extents under which it runs, if there is one."""
    ctx, bb = importer.ctx, importer.ctx.bb
    with ctx.branch():
        if fact is not None:
            ctx.facts.assume(fact)
        bb._begin_binding_block()
        try:
            outputs: list[Any] = [ctx.tensor(v) for v in importer.subgraph(graph)]
            result = bb.emit(relax.Tuple(outputs))
        finally:
            block = bb._end_block()
    return relax.SeqExpr([block], result)


def _kinds(branch: relax.SeqExpr) -> list[tuple[int, str]]:
    """Rank and dtype of each result: both branches must agree on them, as Relax types have a fixed rank."""
    return [(field.ndim, str(field.dtype)) for field in branch.body.ty.fields]


def _assume(importer: GraphImporter, node: Node, condition: Any) -> list[Value]:
    """Branches of different ranks: the first one, with the condition as a requirement on the input's dims.

    Exporters write `squeeze(axis)` as "if the extent is 1: Squeeze, else: Identity"; what follows fits one rank only.
    """
    ctx = importer.ctx
    if condition is None:
        raise UnsupportedOperatorError(
            f"{node.label}: its branches give values of different ranks, which only the run tells"
        )
    if isinstance(condition, tvm.ir.prim.EQ):
        ctx.require_equal(
            condition.a, condition.b, "what its condition compares, as the other branch gives another rank"
        )
    else:
        text = f"{node.label}: only inputs with {to_text(condition)} fit, as the other branch gives another rank"
        ctx.require(condition, [], text)
    return importer.subgraph(node.attr("then_branch"))
