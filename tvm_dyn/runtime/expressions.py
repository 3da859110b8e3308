"""Shape expressions as text, such as `"2*n + 1"` or `"max(h//2, 1)"`: parsed once, evaluated per shape."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max}


@dataclass(frozen=True)
class ShapeExpression:
    """An integer expression over the dims `names`: `+ - * // %`, `min(...)`, `max(...)`, parentheses."""

    text: str
    names: frozenset[str]
    _tree: ast.expr

    def evaluate(self, dims: Mapping[str, int]) -> int:
        """The value where each dim has the extent `dims[name]`; raises `ZeroDivisionError` as Python does."""
        return _evaluate(self._tree, dims)

    def __str__(self) -> str:
        return self.text


def parse_shape_expression(text: str) -> ShapeExpression | None:
    """Read `text`, which may come from a file; None where it is anything but a shape expression."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = _names(tree)
    return None if names is None else ShapeExpression(text, frozenset(names), tree)


def _names(node: ast.expr) -> set[str] | None:
    """The dims below `node`, or None where something else is there."""
    match node:
        case ast.Constant(value=int()):
            return set()
        case ast.Name(id=name):
            return {name}
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _union([left, right])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _names(operand)
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in _CALLS:
            return _union(args)
    return None


def _union(nodes: list[ast.expr]) -> set[str] | None:
    found = [_names(node) for node in nodes]
    return None if None in found else {name for names in found if names for name in names}


def _evaluate(node: ast.expr, dims: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return dims[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, dims), _evaluate(right, dims))
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, dims)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _CALLS[name](*[_evaluate(arg, dims) for arg in args])
    raise AssertionError(f"checked when parsed: {ast.dump(node)}")
