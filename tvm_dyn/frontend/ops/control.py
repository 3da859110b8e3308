"""If: both branches become blocks of the same function; a condition known at import leaves one branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from tvm import relax

from tvm_dyn.errors import UnsupportedOperatorError
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import Value

if TYPE_CHECKING:
    from tvm_dyn.frontend.importer import GraphImporter


def convert_if(importer: GraphImporter, node: Node) -> list[Value]:
    ctx, condition = importer.ctx, node.data()
    known = condition.known_elements()
    if known is not None and isinstance(known.reshape(-1)[0], bool | int):
        return importer.subgraph(node.attr("then_branch" if known.reshape(-1)[0] else "else_branch"))
    flag = ctx.bb.emit(relax.op.reshape(ctx.tensor(condition), ()))
    then, otherwise = (_branch(importer, node.attr(name)) for name in ("then_branch", "else_branch"))
    result = ctx.bb.emit(relax.If(flag, then, otherwise))
    if not isinstance(result.ty, relax.TupleType):
        raise UnsupportedOperatorError(f"{node.label}: its branches give values of different kinds")
    return [ctx.emit(relax.TupleGetItem(result, k)) for k in range(len(node.outputs))]


def _branch(importer: GraphImporter, graph: onnx.GraphProto) -> relax.SeqExpr:
    ctx, bb = importer.ctx, importer.ctx.bb
    with ctx.branch():
        bb._begin_binding_block()
        try:
            outputs: list[Any] = [ctx.tensor(v) for v in importer.subgraph(graph)]
            result = bb.emit(relax.Tuple(outputs))
        finally:
            block = bb._end_block()
    return relax.SeqExpr([block], result)
