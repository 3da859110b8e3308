"""Integer value propagation: shape subgraphs are evaluated on symbols while the graph is walked.

    Shape(x) -> Gather(0) -> Unsqueeze -> Concat(.., -1) -> Reshape   =>   [batch, seq, 8, 16], no tensor at run time

Every rule takes the operands' elements (object arrays of numbers and prim expressions) and gives the result's elements,
or None where the operator's result is not a fixed small number of elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import tirx

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.value import MAX_ELEMENTS, Value, from_elements, object_array
from tvm_dyn.symbolic import simplify

Rule = Callable[[Context, Node, list[Any]], Any]
_RULES: dict[str, Rule] = {}


def evaluate(ctx: Context, node: Node) -> list[Value] | None:
    """The outputs of a node whose operands are known as numbers or symbols; None when it is not shape arithmetic."""
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    if rule is None or not any(v is not None and v.elements is not None for v in node.inputs):
        return None
    operands = [None if v is None else v.known_elements() for v in node.inputs]
    if any(o is None and v is not None for o, v in zip(operands, node.inputs, strict=True)):
        return None
    result = rule(ctx, node, operands)
    if result is None:
        return None
    # numpy hands out the object itself where it would be a 0-d array
    results = [np.asarray(r, dtype=object) for r in (result if isinstance(result, list) else [result])]
    if any(r.size > MAX_ELEMENTS for r in results):
        return None
    dtype = _result_dtype(node)
    return [from_elements(r, dtype) for r in results]


def _result_dtype(node: Node) -> str:
    if node.op_type == "Cast":
        return str(onnx.helper.tensor_dtype_to_np_dtype(node.attr("to")))
    if node.op_type in _COMPARE or node.op_type in ("And", "Or", "Not"):
        return "bool"
    if node.op_type in ("Shape", "Size"):
        return "int64"
    return node.data(1 if node.op_type in ("Where", "CastLike") else 0).dtype


def _rule(*op_types: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(op_types, rule))
        return rule

    return register


def _symbolic(*items: Any) -> bool:
    return any(isinstance(i, tvm.ir.Expr) for i in items)


def _tidy(ctx: Context, item: Any) -> Any:
    """Integers are simplified; a float stays as computed until it is cast back, when the whole detour goes."""
    is_integer = isinstance(item, tvm.ir.Expr) and "int" in str(item.ty.dtype)
    return simplify(item, ctx.facts) if is_integer else item


def _prim(item: Any, like: str) -> Any:
    return item if isinstance(item, tvm.ir.Expr) else tirx.const(item, like)


# -- elementwise ---------------------------------------------------------------------------------------------


def _div(a: Any, b: Any, dtype: str) -> Any:
    if "float" in dtype:
        return a / b
    if not _symbolic(a, b):
        return math.trunc(a / b) if abs(a) < 2**52 else a // b
    return tirx.floordiv(a, b)  # dims and strides: not negative


def _mod(a: Any, b: Any, dtype: str) -> Any:
    return a % b if not _symbolic(a, b) else tirx.floormod(a, b)


def _min(a: Any, b: Any, dtype: str) -> Any:
    return tirx.min(_prim(a, dtype), _prim(b, dtype)) if _symbolic(a, b) else min(a, b)


def _max(a: Any, b: Any, dtype: str) -> Any:
    return tirx.max(_prim(a, dtype), _prim(b, dtype)) if _symbolic(a, b) else max(a, b)


_BINARY: dict[str, Callable[[Any, Any, str], Any]] = {
    "Add": lambda a, b, _: a + b,
    "Sub": lambda a, b, _: a - b,
    "Mul": lambda a, b, _: a * b,
    "Div": _div,
    "Mod": _mod,
    "Min": _min,
    "Max": _max,
}


@_rule(*_BINARY)
def _binary(ctx: Context, node: Node, operands: list[Any]) -> Any:
    function, dtype = _BINARY[node.op_type], node.data().dtype

    def apply(a: Any, b: Any) -> Any:
        a, b = (_prim(a, dtype), _prim(b, dtype)) if _symbolic(a, b) else (a, b)
        return _tidy(ctx, function(a, b, dtype))

    result = operands[0]
    for other in operands[1:]:
        result = np.frompyfunc(apply, 2, 1)(result, other)
    return np.asarray(result, dtype=object)


_COMPARE = {"Equal": "==", "Less": "<", "LessOrEqual": "<=", "Greater": ">", "GreaterOrEqual": ">="}


@_rule(*_COMPARE)
def _compare(ctx: Context, node: Node, operands: list[Any]) -> Any:
    dtype = node.data().dtype
    return np.frompyfunc(lambda a, b: decide(ctx, node.op_type, _prim(a, dtype), _prim(b, dtype)), 2, 1)(*operands)


def decide(ctx: Context, op_type: str, a: Any, b: Any) -> Any:
    """A comparison as True, False, or the condition where the facts do not tell."""
    conditions = {
        "Equal": (a == b, None),
        "Less": (a < b, a >= b),
        "LessOrEqual": (a <= b, a > b),
        "Greater": (a > b, a <= b),
        "GreaterOrEqual": (a >= b, a < b),
    }
    condition, opposite = conditions[op_type]
    if op_type == "Equal":
        if ctx.facts.prove_equal(a, b):
            return True
        return False if ctx.facts.known_unequal(a, b) else tirx.EQ(a, b)
    if ctx.facts.prove(condition):
        return True
    return False if ctx.facts.prove(opposite) else condition


@_rule("And", "Or")
def _logical(ctx: Context, node: Node, operands: list[Any]) -> Any:
    symbolic = tirx.all if node.op_type == "And" else tirx.any
    decisive = node.op_type == "Or"

    def apply(a: Any, b: Any) -> Any:
        for known, other in ((a, b), (b, a)):
            if not _symbolic(known):
                return decisive if bool(known) == decisive else other
        return symbolic(a, b)

    return np.frompyfunc(apply, 2, 1)(*operands)


@_rule("Not")
def _not(ctx: Context, node: Node, operands: list[Any]) -> Any:
    return np.frompyfunc(lambda a: tirx.Not(a) if _symbolic(a) else not a, 1, 1)(operands[0])


@_rule("Where")
def _where(ctx: Context, node: Node, operands: list[Any]) -> Any:
    dtype = node.data(1).dtype

    def apply(condition: Any, a: Any, b: Any) -> Any:
        if not _symbolic(condition):
            return a if condition else b
        return _tidy(ctx, tirx.Select(condition, _prim(a, dtype), _prim(b, dtype)))

    return np.frompyfunc(apply, 3, 1)(*operands)


_UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {  # (on prim expressions, on numbers)
    "Neg": (lambda a: -a, lambda a: -a),
    "Abs": (tirx.abs, abs),
    "Floor": (tirx.floor, math.floor),
    "Ceil": (tirx.ceil, math.ceil),
    "Round": (tirx.nearbyint, round),
    "Identity": (lambda a: a, lambda a: a),
    "Sqrt": (tirx.sqrt, math.sqrt),
}


@_rule(*_UNARY)
def _unary(ctx: Context, node: Node, operands: list[Any]) -> Any:
    symbolic, number = _UNARY[node.op_type]
    kind = float if "float" in node.data().dtype else int

    def apply(a: Any) -> Any:
        return _tidy(ctx, symbolic(a)) if _symbolic(a) else kind(number(a))

    return np.frompyfunc(apply, 1, 1)(operands[0])


@_rule("Cast", "CastLike")
def _cast(ctx: Context, node: Node, operands: list[Any]) -> Any:
    dtype = _result_dtype(node)
    if dtype not in ("int64", "int32", "float32", "float64", "bool", "float16"):
        return None

    def apply(a: Any) -> Any:
        if not _symbolic(a):
            return np.asarray(a).astype(dtype).item()
        if dtype == "bool":
            return decide_nonzero(ctx, a)
        return _tidy(ctx, a.astype(dtype))

    return np.frompyfunc(apply, 1, 1)(operands[0])


def decide_nonzero(ctx: Context, a: Any) -> Any:
    if str(a.ty.dtype) == "bool":
        return a
    zero = decide(ctx, "Equal", a, tirx.const(0, a.ty.dtype))
    return not zero if isinstance(zero, bool) else tirx.Not(zero)


# -- structure -----------------------------------------------------------------------------------------------


def _axes(node: Node, operands: list[Any], position: int = 1) -> list[int] | None:
    axes = node.attr("axes")
    if axes is None and len(operands) > position and operands[position] is not None:
        axes = [int(a) for a in operands[position].reshape(-1)]
    return axes


@_rule("Gather")
def _gather(ctx: Context, node: Node, operands: list[Any]) -> Any:
    if _symbolic(*operands[1].flat):
        return None
    return np.take(operands[0], operands[1].astype("int64"), axis=node.attr("axis", 0))


@_rule("Slice")
def _slice(ctx: Context, node: Node, operands: list[Any]) -> Any:
    if node.opset < 10:
        starts, ends = node.attr("starts"), node.attr("ends")
        axes, steps = node.attr("axes"), None
    else:
        if any(o is not None and _symbolic(*o.flat) for o in operands[1:]):
            return None
        starts, ends, axes, steps = ([*(None if o is None else o.reshape(-1) for o in operands[1:]), None, None])[:4]
    index = [slice(None)] * operands[0].ndim
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        reaches_front = step < 0 and end < -operands[0].shape[axis]
        index[axis] = slice(int(start), None if reaches_front else int(end), int(step))
    return operands[0][tuple(index)]


@_rule("Concat")
def _concat(ctx: Context, node: Node, operands: list[Any]) -> Any:
    return np.concatenate(operands, axis=node.attr("axis", 0))


@_rule("Squeeze")
def _squeeze(ctx: Context, node: Node, operands: list[Any]) -> Any:
    axes = _axes(node, operands)
    return np.squeeze(operands[0], axis=None if axes is None else tuple(axes))


@_rule("Unsqueeze")
def _unsqueeze(ctx: Context, node: Node, operands: list[Any]) -> Any:
    return np.expand_dims(operands[0], tuple(_axes(node, operands) or []))


@_rule("Reshape", "Expand", "Tile")
def _reshape(ctx: Context, node: Node, operands: list[Any]) -> Any:
    if len(operands) < 2 or _symbolic(*operands[1].flat):
        return None
    target = [int(t) for t in operands[1]]
    if node.op_type == "Tile":
        return np.tile(operands[0], target)
    if node.op_type == "Expand":
        return np.broadcast_to(operands[0], np.broadcast_shapes(operands[0].shape, tuple(target)))
    if not node.attr("allowzero", 0):
        target = [operands[0].shape[i] if t == 0 else t for i, t in enumerate(target)]
    return operands[0].reshape(target)


@_rule("Transpose")
def _transpose(ctx: Context, node: Node, operands: list[Any]) -> Any:
    return np.transpose(operands[0], node.attr("perm"))


@_rule("Flatten")
def _flatten(ctx: Context, node: Node, operands: list[Any]) -> Any:
    axis = node.attr("axis", 1)
    axis = axis + operands[0].ndim if axis < 0 else axis
    return operands[0].reshape(math.prod(operands[0].shape[:axis]), -1)


@_rule("Split")
def _split(ctx: Context, node: Node, operands: list[Any]) -> Any:
    axis, count = node.attr("axis", 0), len(node.outputs)
    sizes = node.attr("split") or ([int(s) for s in operands[1]] if len(operands) > 1 else None)
    if sizes is None:
        sizes = [-(-operands[0].shape[axis] // count)] * count
    return np.split(operands[0], np.cumsum(sizes)[:-1], axis=axis)


@_rule("Pad")
def _pad(ctx: Context, node: Node, operands: list[Any]) -> Any:
    if operands[0].ndim != 1 or node.attr("mode", "constant") != "constant" or len(operands) > 3:
        return None
    before, after = (int(p) for p in operands[1]) if len(operands) > 1 else node.attr("pads")
    fill = operands[2].reshape(-1)[0] if len(operands) > 2 and operands[2] is not None else 0
    if before < 0 or after < 0:
        return None
    return np.concatenate([object_array([fill] * before), operands[0], object_array([fill] * after)])


@_rule("ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax")
def _reduce(ctx: Context, node: Node, operands: list[Any]) -> Any:
    axes, dtype = _axes(node, operands), node.data().dtype
    if not axes and node.attr("noop_with_empty_axes", 0):
        return operands[0]
    axes = sorted(a % operands[0].ndim for a in axes) if axes else list(range(operands[0].ndim))
    function = {"ReduceProd": "Mul", "ReduceSum": "Add", "ReduceMin": "Min", "ReduceMax": "Max"}[node.op_type]
    if any(operands[0].shape[a] == 0 for a in axes):
        return None

    def apply(a: Any, b: Any) -> Any:
        a, b = (_prim(a, dtype), _prim(b, dtype)) if _symbolic(a, b) else (a, b)
        return _tidy(ctx, _BINARY[function](a, b, dtype))

    result = operands[0]
    for axis in axes:
        result = np.frompyfunc(apply, 2, 1).reduce(result, axis=axis, keepdims=True)
    return result if node.attr("keepdims", 1) else np.squeeze(np.asarray(result, dtype=object), axis=tuple(axes))


@_rule("Range")
def _range(ctx: Context, node: Node, operands: list[Any]) -> Any:
    start, limit, step = (o.reshape(-1)[0] for o in operands)
    if _symbolic(step) or not isinstance(step, int) or step == 0:
        return None
    count = _tidy(ctx, limit - start) if _symbolic(start, limit) else limit - start
    if not isinstance(count, int):
        return None
    count = max(0, -(-count // step))
    return object_array([_tidy(ctx, start + i * step) for i in range(min(count, MAX_ELEMENTS + 1))])
