"""What a converter may do: emit Relax, read shapes and contents, state assumptions, align operands to broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx

from tvm_dyn.errors import InvalidModelError, ModelImportError
from tvm_dyn.frontend.extents import extent_of, is_one, prim
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.symbols import SymbolTable
from tvm_dyn.frontend.value import MAX_ELEMENTS, Value, object_array
from tvm_dyn.symbolic import broadcast_dim, free_vars, simplify, to_text
from tvm_dyn.symbolic.facts import SymbolicFacts

# Run-time integers pass through TVM's shape values, which must not be negative.
_OFFSET = 1 << 40


class Unified(Exception):
    """Two input dims turned out to be one: the import starts over with one symbol less."""


class Context:
    """The state of one import, shared by all converters.

    bb: the block builder of `main`. facts: what is known of the symbols at this point of the program.
    entry_checks: `(condition, values, message)` of assumptions on input dims, checked when `main` is entered.
    declared_ranks: the ranks that the model states for values by name; not every value has one.
    rounds_activations: whether the model quantizes what it computes, as DynamicQuantizeLinear does.
    """

    def __init__(self, symbols: SymbolTable, opsets: dict[str, int]):
        self.bb = relax.BlockBuilder()
        self.symbols = symbols
        self.opsets = opsets
        self.facts = SymbolicFacts()
        for symbol in symbols.free():
            self.facts.declare(symbol.var, symbol.fact)
        self.entry_checks: list[tuple[Any, list[Any], str]] = []
        self.declared_ranks: dict[str, int] = {}
        self.rounds_activations = False
        self.node: Node | None = None
        self._branch_depth = 0
        self._tensors: dict[int, tuple[Value, relax.Expr]] = {}
        self._fresh = 0

    # -- emit ---------------------------------------------------------------------------------------------

    def emit(self, expr: relax.Expr) -> Value:
        """Bind an expression; a tensor whose extents Relax cannot tell gets a fresh symbol for each."""
        var = expr if isinstance(expr, relax.Var) else self.bb.emit(expr)
        if isinstance(var.ty, relax.TensorType):
            var = self._with_shape(var)
        return Value(expr=var)

    def emit_te(self, function: Callable[..., te.Tensor], *args: Any, name: str | None = None) -> Value:
        """Bind a tensor expression computed from tensors and prim expressions.

        Symbols that the body uses without being a dim of an argument have to be passed as arguments.
        """
        return self.emit(self.bb.call_te(function, *args, primfunc_name_hint=name or function.__name__))

    def _with_shape(self, var: relax.Var) -> relax.Var:
        if var.ty.ndim < 0:
            raise ModelImportError(f"{self.label}: the rank of its result depends on run-time values")
        shape = var.ty.shape
        if isinstance(shape, relax.ShapeExpr):
            return self._with_ordered_sums(var, list(shape.values))
        dims = [self.fresh_symbol("d") for _ in range(var.ty.ndim)]
        return self.bb.match_cast(var, relax.TensorType(dims, var.ty.dtype))

    def _with_ordered_sums(self, var: relax.Var, dims: list[Any]) -> relax.Var:
        """Concat infers `1 + n` where the same extent is `n + 1` elsewhere; FuseTIR takes them for two extents."""
        analyzer = tvm.sym.Analyzer()
        ordered = [analyzer.simplify(d) for d in dims]
        same = [tvm_ffi.structural_equal(a, b) for a, b in zip(dims, ordered, strict=True)]
        target = [d if kept else simplify(o) for d, o, kept in zip(dims, ordered, same, strict=True)]
        return self.tensor(self.cast_shape(Value(expr=var), target))

    def fresh_symbol(self, hint: str) -> tirx.Var:
        """A new symbol for an extent that only the run knows (>= 0)."""
        self._fresh += 1
        return tirx.Var(f"{hint}_rt{self._fresh}", "int64")

    # -- read ---------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        return self.node.label if self.node else "the graph"

    def tensor(self, value: Value) -> relax.Expr:
        """The value as a Relax tensor."""
        if value.expr is not None:
            return value.expr
        cached = self._tensors.get(id(value))
        if cached is None:
            expr = relax.const(value.const, str(value.const.dtype)) if value.is_const else self._from_elements(value)
            if self._branch_depth:  # a binding made inside a branch is not visible outside it
                return expr
            self._tensors[id(value)] = cached = (value, expr)
        return cached[1]

    def _from_elements(self, value: Value) -> relax.Expr:
        shape, dtype = value.elements.shape, value.element_dtype

        def shape_values(items: list[Any]) -> te.Tensor:
            typed = [i.astype(dtype) if isinstance(i, tvm.ir.Expr) else tirx.const(i, dtype) for i in items]

            def at(*index: Any) -> Any:
                flat: Any = tirx.const(0, "int64")
                for position, extent in zip(index, shape, strict=True):
                    flat = flat * extent + position
                result = typed[-1]
                for k in range(len(typed) - 2, -1, -1):
                    result = tirx.Select(flat == k, typed[k], result)
                return result

            return te.compute(shape, at, name="shape_values")

        return self.emit_te(shape_values, list(value.elements.flat)).expr

    def shape(self, value: Value) -> list[Any]:
        """The extents: ints and prim expressions."""
        if value.is_const:
            return list(value.const.shape)
        if value.elements is not None:
            return list(value.elements.shape)
        shape = value.expr.ty.shape
        if not isinstance(shape, relax.ShapeExpr):
            raise ModelImportError(f"{self.label}: an operand has no known rank")
        return [extent_of(d) for d in shape.values]

    def rank(self, value: Value) -> int:
        return len(self.shape(value))

    def elements(self, value: Value, *, signed: bool = True) -> np.ndarray:
        """The content of a small integer tensor as an object array of ints and prim expressions.

        What only the run knows is bound to fresh symbols. `signed=False` states that it holds no negative number.
        """
        known = value.known_elements()
        if known is not None:
            return known
        shape = self.shape(value)
        if not all(isinstance(d, int) for d in shape) or math.prod(shape) > MAX_ELEMENTS:
            raise ModelImportError(
                f"{self.label}: an operand that describes a shape must have a small fixed size, but it is {shape}"
            )
        return self._runtime_elements(value, tuple(shape), signed)

    def _runtime_elements(self, value: Value, shape: tuple[int, ...], signed: bool) -> np.ndarray:
        size = math.prod(shape)
        if size == 0:
            return object_array([], shape)
        flat = relax.op.reshape(relax.op.astype(self.tensor(value), "int64"), (size,))
        if signed:
            flat = relax.op.add(flat, relax.const(_OFFSET, "int64"))
        symbols = [self.fresh_symbol("v") for _ in range(size)]
        self.bb.match_cast(self.bb.emit(relax.op.tensor_to_shape(self.bb.emit(flat))), relax.ShapeType(symbols))
        # Impure, and so a border between dataflow blocks: within one, FuseOps moves users ahead of the match_cast.
        nonnegative = tirx.all(*[symbol >= 0 for symbol in symbols]) if size > 1 else symbols[0] >= 0
        self.bb.emit(assertion(nonnegative, [], f"{self.label}: a run-time extent is negative"))
        items = [s - _OFFSET for s in symbols] if signed else symbols
        return object_array(items, shape)

    def opaque(self, extents: Sequence[Any]) -> list[Any]:
        """Extents as fresh symbols, for expressions of run-time values that would only grow from use to use."""
        items = object_array(list(extents))
        return list(self._runtime_elements(Value(expr=self._from_elements(Value(elements=items))), items.shape, False))

    def scalar(self, value: Value, *, signed: bool = True) -> Any:
        """The one integer that a value holds."""
        array = self.elements(value, signed=signed)
        if array.size != 1:
            raise InvalidModelError(f"{self.label}: expected one number, got a tensor of shape {array.shape}")
        return array.reshape(-1)[0]

    def const(self, value: Value | None, what: str) -> np.ndarray:
        """The array of a value that has to be known at import."""
        if value is None or not value.is_const:
            raise ModelImportError(f"{self.label}: {what} must be a constant")
        return value.array

    # -- assume -------------------------------------------------------------------------------------------

    def require_equal(self, left: Any, right: Any, what: str) -> Any:
        """State left == right (extents); returns the simpler side.

        Proved at import, or made true by unifying two input symbols, or checked once at run time.
        Raises InvalidModelError when it can never hold.
        """
        left, right = extent_of(left), extent_of(right)
        simpler = min((left, right), key=lambda dim: len(to_text(dim)))
        if self.facts.prove_equal(left, right):
            return simpler
        message = f"{self.label}: {what} must be equal: {to_text(left)} and {to_text(right)}"
        if self.facts.known_unequal(left, right):
            raise InvalidModelError(message)
        if not self._branch_depth and (solution := self.symbols.solve(left, right)):
            self.symbols.unify(*solution, why=message)
            raise Unified(message)
        self.require(prim(left) == prim(right), [left, right], message)
        return simpler

    def require(self, condition: Any, values: Sequence[Any], message: str) -> None:
        """State a condition on extents: proved, or checked once at run time with `message` and the values."""
        if self.facts.prove(condition):
            return
        inputs = {s.var for s in self.symbols.free()}
        check = (condition, [v for v in values if isinstance(v, tvm.ir.Expr)], message)
        if set(free_vars(condition)) <= inputs and not self._branch_depth:
            self.entry_checks.append(check)
        else:
            self.bb.emit(assertion(*check))
        self.facts.assume(condition)

    # -- broadcast ----------------------------------------------------------------------------------------

    def broadcast_shape(self, *shapes: Sequence[Any]) -> list[Any]:
        """The numpy broadcast of shapes; what is not proved equal or 1 becomes a run-time check."""
        rank = max(map(len, shapes))
        padded = [[1] * (rank - len(s)) + list(s) for s in shapes]
        result = padded[0]
        for other in padded[1:]:
            joined: dict[int, Any] = {}
            pairs = [(extent_of(a), extent_of(b)) for a, b in zip(result, other, strict=True)]
            # axes that can only be equal go first: what they tell may decide the others
            for axis in sorted(range(rank), key=lambda k: not self._only_equal(*pairs[k])):
                joined[axis] = self._broadcast_dim(*pairs[axis])
            result = [joined[axis] for axis in range(rank)]
        return result

    def _only_equal(self, a: Any, b: Any) -> bool:
        """Whether dims can broadcast only as equals: neither can be 1 while the other is not."""
        never_one = [self.facts.known_unequal(d, 1) for d in (a, b)]
        return all(no or self._one_means_equal(d, a, b) for d, no in zip((a, b), never_one, strict=True))

    def _broadcast_dim(self, a: Any, b: Any) -> Any:
        if is_one(b) or self.facts.prove_equal(a, b):
            return b if isinstance(b, int) and not is_one(b) else a
        if is_one(a):
            return b
        if self._only_equal(a, b):
            return self.require_equal(a, b, "dims that broadcast")
        never_one = [self.facts.known_unequal(d, 1) for d in (a, b)]
        joined = a if never_one[0] else b if never_one[1] else simplify(broadcast_dim(a, b, self.facts), self.facts)
        if any(self.facts.prove_equal(joined, d) for d in (a, b)) and not any(never_one):
            return joined  # one absorbs the other: they were joined before
        alternatives = [prim(a) == prim(b)] + [prim(d) == 1 for d, no in zip((a, b), never_one, strict=True) if not no]
        text = f"{self.label}: dims that broadcast must be equal or 1: {to_text(a)} and {to_text(b)}"
        self.require(tirx.any(*alternatives), [a, b], text)
        self.facts.assume_compatible(a, b)
        return joined

    def _one_means_equal(self, dim: Any, a: Any, b: Any) -> bool:
        """Whether `dim == 1` implies `a == b`, as for min(s, 512) and s: then the two can only broadcast as equals."""
        facts = self.facts.clone()
        while isinstance(dim, tvm.ir.prim.Min) and isinstance(dim.b, tirx.IntImm) and dim.b.value > 1:
            dim = dim.a  # min(s, 512) == 1 only where s == 1
        facts.assume(prim(dim) == 1)
        return facts.prove_equal(a, b)

    def broadcast_to(self, value: Value, shape: Sequence[Any]) -> Value:
        """Align an operand with a broadcast shape, so that every dim is the constant 1 or provably the result's.

        Dims that turn out to be 1 only at run time are expanded by a kernel of their own (which fuses).
        """
        own = self.shape(value)
        offset = len(shape) - len(own)
        unproved = [
            axis
            for axis, dim in enumerate(own)
            if not is_one(dim) and not self.facts.prove_equal(dim, shape[axis + offset])
        ]
        if not unproved:
            return self.cast_shape(value, [d if is_one(d) else shape[axis + offset] for axis, d in enumerate(own)])
        return self.expand(value, [dim if is_one(dim) else shape[axis + offset] for axis, dim in enumerate(own)])

    def expand(self, value: Value, target: Sequence[Any]) -> Value:
        """Numpy's broadcast_to; an extent is 1 or the target's, decided at run time where it is not known.

        `target` may have more dims than the value.
        """
        own = self.shape(value)
        offset = len(target) - len(own)
        equal = [self.facts.prove_equal(d, target[axis + offset]) for axis, d in enumerate(own)]

        def broadcast_to(x: te.Tensor, own_dims: list[Any], extents: list[Any]) -> te.Tensor:
            def at(*index: Any) -> Any:
                picked = []
                for axis, dim in enumerate(own_dims):
                    here = index[axis + offset]
                    if is_one(dim):
                        here = tirx.const(0, "int64")
                    elif not equal[axis]:
                        here = tirx.if_then_else(prim(dim) == 1, tirx.const(0, "int64"), here)
                    picked.append(here)
                return x(*picked)

            return te.compute(extents, at, name="broadcast_to")

        return self.emit_te(broadcast_to, self.tensor(value), own, list(target))

    def cast_shape(self, value: Value, shape: Sequence[Any]) -> Value:
        """The same tensor with its extents written as `shape`, which are known to be equal; free at run time."""
        own = self.shape(value)
        if all(tvm_ffi.structural_equal(prim(a), prim(b)) for a, b in zip(own, shape, strict=True)):
            return value
        # not a match_cast: CanonicalizeBindings recurses without end where `shape` mentions the symbol it replaces
        return Value(expr=self.bb.emit(relax.op.reshape(self.tensor(value), relax.ShapeExpr([prim(d) for d in shape]))))

    def elementwise(self, name: str, function: Callable[..., Any], *values: Value) -> Value:
        """An elementwise kernel with numpy broadcasting: `function` takes and gives scalars as prim expressions."""
        operands, shape = self.align(*values)

        def compute(tensors: list[te.Tensor], extents: list[Any]) -> te.Tensor:
            def at(*index: Any) -> Any:
                picks = []
                for tensor in tensors:
                    here = index[len(index) - len(tensor.shape) :]
                    one = [
                        tirx.const(0, "int64") if is_one(extent_of(d)) else i
                        for d, i in zip(tensor.shape, here, strict=True)
                    ]
                    picks.append(tensor(*one))
                return function(*picks)

            return te.compute(extents, at, name=name)

        return self.emit_te(compute, operands, list(shape), name=name)

    def align(self, *values: Value) -> tuple[list[relax.Expr], list[Any]]:
        """Operands of an elementwise operator as tensors that Relax can broadcast, and the result's shape."""
        shape = self.broadcast_shape(*(self.shape(v) for v in values))
        return [self.tensor(self.broadcast_to(v, shape)) for v in values], shape

    # -- branches -----------------------------------------------------------------------------------------

    def branch(self) -> _Branch:
        """Enter the body of a branch: assumptions and facts stay inside it."""
        return _Branch(self)


class _Branch:
    def __init__(self, ctx: Context):
        self._ctx = ctx

    def __enter__(self) -> None:
        self._facts = self._ctx.facts
        self._ctx.facts = self._facts.clone()
        self._ctx._branch_depth += 1

    def __exit__(self, *_: object) -> None:
        self._ctx.facts = self._facts
        self._ctx._branch_depth -= 1


def assertion(condition: Any, values: Sequence[Any], message: str) -> relax.Expr:
    """An R.assert_op on extents, which carries the extents that its message is about."""
    text = message.replace("{", "{{").replace("}", "}}")
    return relax.op.assert_op(relax.prim_value(condition), [relax.prim_value(v) for v in values], text)
