"""The walk of `PropagateSymbolicShapes` over one function: bindings in order, facts as they come to hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import prim

from tvm_dyn.passes.shape_casts import unify
from tvm_dyn.passes.shape_facts import FunctionFacts
from tvm_dyn.passes.shape_requirements import Requirement, requirements
from tvm_dyn.passes.shape_types import dims_of, map_dims, narrower, same_kind, symbolic_vars, with_dims
from tvm_dyn.passes.shape_values import ShapeValues
from tvm_dyn.symbolic import free_vars, simplify, substitute, to_text

_KEEPS_OPERANDS = tuple(
    f"relax.{name}" for name in ("call_tir", "call_tir_inplace", "call_dps_packed", "call_pure_packed")
)


class FunctionShapes:
    """Rewrites one function; ``facts`` are those that hold at the binding at hand, in the end at its return.

    ``renamed`` maps functions to those of a narrower type; ``may_assert`` says that the function may become
    impure. ``checks_added`` counts the checks that the rewritten function has and the original had not.
    """

    def __init__(self, func: relax.Function, renamed: dict[ir.GlobalVar, ir.GlobalVar], may_assert: bool):
        self.func = func
        self.facts = FunctionFacts.of_function(func)
        self.checks_added = 0
        self._renamed = renamed
        self._may_assert = may_assert or not func.is_pure
        self._asserted = False
        self._values = ShapeValues()
        self._builder = relax.BlockBuilder()
        self._remap: dict[ir.Var, ir.Expr] = {}
        self._retyped: dict[ir.Var, ir.Var] = {}  # operands cast to canonical dims in the current block
        self._removed: dict[ir.Var, ir.Expr] = {}  # dims that lost their definition, and what they are
        self._scope = {var for param in func.params for var in symbolic_vars(param.ty)}
        self._scope |= {param for param in func.params if isinstance(param.ty, ir.PrimType)}
        self._scope_above: set[ir.Var] = set()  # dims defined ahead of the current block
        self._hoisted: list[relax.Binding] = []  # checks to run ahead of the current block

    def rewrite(self) -> relax.Function:
        """The function with unified, simplified and narrowed shapes."""
        self._builder.begin_scope(list(self.func.params))
        body = self._seq(_seq_of(self.func.body))
        self._builder.end_scope()
        is_pure = self.func.is_pure and not self._asserted
        return relax.Function(self.func.params, body, None, is_pure, self.func.attrs)

    # ---- blocks

    def _seq(self, seq: relax.SeqExpr) -> relax.SeqExpr:
        blocks: list[relax.BindingBlock] = []
        for block in seq.blocks:
            blocks.extend(self._block(block))
        new: Any = self._builder.normalize(relax.SeqExpr(blocks, self._expr(seq.body)))
        return new

    def _block(self, block: relax.BindingBlock) -> list[relax.BindingBlock]:
        outer = self._scope_above, self._hoisted, self._retyped
        self._scope_above, self._hoisted, self._retyped = set(self._scope), [], {}
        if isinstance(block, relax.DataflowBlock):
            self._builder._begin_dataflow_block()
        else:
            self._builder._begin_binding_block()
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                self._match_cast(binding)
            elif isinstance(binding, relax.VarBinding):
                self._var_binding(binding)
        new = self._builder._end_block()
        blocks = [relax.BindingBlock(self._hoisted)] if self._hoisted else []
        self._scope_above, self._hoisted, self._retyped = outer
        return [*blocks, new] if new.bindings else blocks

    def _if(self, value: relax.If) -> ir.Expr:
        condition = self._expr(value.cond)
        branches = []
        for branch, holds in ((value.true_branch, True), (value.false_branch, False)):
            with self._branch(condition, holds):
                branches.append(self._seq(_seq_of(branch)))
        return relax.If(condition, *branches)

    @contextmanager
    def _branch(self, condition: ir.Expr, holds: bool) -> Iterator[None]:
        """Facts, casts and dims of one branch end with it."""
        outer = self.facts, self._scope, self._retyped
        self.facts, self._scope, self._retyped = self.facts.clone(), set(self._scope), dict(self._retyped)
        if ir.is_prim_expr(condition):
            self.facts.assume(condition if holds else prim.Not(condition))
        self._builder.begin_scope(list(self.func.params))
        yield
        self._builder.end_scope()
        self.facts, self._scope, self._retyped = outer

    # ---- bindings

    def _var_binding(self, binding: relax.VarBinding) -> None:
        if _is_op(binding.value, "relax.assert_op"):
            self._assertion(binding)
            return
        new = self._value(binding)
        self._emit(binding.var, new)
        if isinstance(binding.var.ty, ir.PrimType) and str(binding.var.ty) == "int64":
            self._scope.add(binding.var)
            self.facts.define(binding.var, new)

    def _value(self, binding: relax.Binding) -> ir.Expr:
        """The bound value with operands and dims replaced, its type inferred anew."""
        value: Any = binding.value
        new = self._if(value) if isinstance(value, relax.If) else self._expr(value)
        if isinstance(new, ir.Call) and not ir.is_prim_expr(new):
            new = self._call(new, binding.var.name)
        return self._builder.normalize(new)

    def _emit(self, var: ir.Var, value: ir.Expr) -> None:
        """Bind ``value`` to ``var``, or to a variable of the narrower type now known."""
        inferred = value.ty
        if isinstance(value, ir.Call | relax.If) and not isinstance(inferred, ir.PrimType):
            ty = map_dims(narrower(inferred, self._without_removed(var.ty)), self._dim)
            if not ty.same_as(inferred):
                value = _retyped(value, ty)
        new = self._variable(var, value.ty)
        self._builder.emit_normalized(relax.VarBinding(new, value))
        self._values.learn(new, value)

    def _variable(self, var: ir.Var, ty: ir.Type) -> ir.Var:
        """``var`` itself where its type stays, else a new variable that takes its place."""
        if tvm_ffi.structural_equal(var.ty, ty):
            return var
        new = type(var)(var.name, ty)
        self._remap[var] = new
        return new

    def _assertion(self, binding: relax.VarBinding) -> None:
        """Keep a check as it is written (`_removed` dims aside) unless it cannot fail."""
        args = [
            substitute(arg, self._removed) if ir.is_prim_expr(arg) else self._expr(arg) for arg in binding.value.args
        ]
        if self.facts.checked.prove(args[0]):
            return
        call = self._builder.normalize(ir.Call(binding.value.op, args, binding.value.attrs))
        self._builder.emit_normalized(relax.VarBinding(binding.var, call))
        self.facts.assume(args[0])

    def _match_cast(self, binding: relax.MatchCast) -> None:
        """Resolve the dims that a cast defines; drop the cast once it says nothing new."""
        value = self._value(binding)
        cast = unify(binding.ty, value.ty, self._scope, self._removed)
        for var, actual in cast.defined.items():
            self._removed[var] = actual
            self.facts.define(var, actual)
        self._scope |= set(cast.introduced)
        pattern = self._without_removed(binding.ty)
        equalities = [(self._without_removed_dim(want), actual) for want, actual in cast.compared]
        known = cast.complete and same_kind(pattern, value.ty)
        if known and all(self._says_nothing(*pair) for pair in equalities):
            self._alias(binding.var, value)
            return
        var = self._variable(binding.var, pattern)
        self._builder.emit_normalized(relax.MatchCast(var, value, pattern))
        self.facts.enter(var)
        for want, actual in equalities:
            self.facts.assume(prim.EQ(want, actual))

    def _says_nothing(self, want: ir.Expr, actual: ir.Expr) -> bool:
        """Whether a cast of the dim ``actual`` to ``want`` neither checks nor changes the symbols."""
        same_symbols = set(free_vars(self._dim(want))) == set(free_vars(actual))
        return same_symbols and self.facts.checked.prove_equal(want, actual)

    def _alias(self, var: ir.Var, value: ir.Expr) -> None:
        """Let ``value`` stand for ``var``; bound anew where a dataflow block must hand it on."""
        visible = isinstance(value, ir.Var) and not isinstance(value, relax.DataflowVar)
        if isinstance(value, ir.Var) and (visible or isinstance(var, relax.DataflowVar)):
            self._remap[var] = value
        else:
            self._emit(var, value)

    # ---- calls

    def _call(self, original: ir.Call, name: str) -> ir.Expr:
        call = self._resolved(original)
        if not isinstance(call, ir.Call) or not isinstance(call.op, ir.Op | ir.GlobalVar):
            return call
        if _is_op(call, *_KEEPS_OPERANDS):
            return call
        for requirement in requirements(call):
            call = self._require(call, requirement, name)
        return ir.Call(call.op, [self._operand(arg) for arg in call.args], call.attrs, call.ty_args)

    def _resolved(self, call: ir.Call) -> ir.Expr:
        """Shape queries and conversions by their answer; shape operands by their dims."""
        if _is_op(call, "relax.shape_of"):
            dims = dims_of(call.args[0].ty)
            return call if dims is None else relax.ShapeExpr([self._dim(dim) for dim in dims])
        if _is_op(call, "relax.tensor_to_shape"):
            elements = self._values.elements(call.args[0])
            return call if elements is None else relax.ShapeExpr([self._dim(e) for e in elements])
        if _is_op(call, "relax.dynamic_strided_slice"):
            return self._static_slice(call)
        return call

    def _static_slice(self, call: ir.Call) -> ir.Expr:
        data, *bounds = call.args
        elements = [self._values.elements(bound) for bound in bounds]
        if any(found is None for found in elements):
            return call
        begins, ends, strides = ([self._dim(e) for e in found] for found in elements if found is not None)
        if not all(isinstance(stride, prim.IntImm) for stride in strides):
            return call
        axes = relax.Tuple([tirx.IntImm("int64", axis) for axis in range(len(begins))])
        bounds = [relax.Tuple(part) for part in (begins, ends, strides)]
        return relax.op.strided_slice(data, axes, bounds[0], bounds[1], bounds[2])

    def _operand(self, arg: ir.Expr) -> ir.Expr:
        """An operand with a type in canonical dims: cast where it is a variable of an older type."""
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._operand(field) for field in arg.fields])
        dims = dims_of(arg.ty) if isinstance(arg, ir.Var) else None
        if dims is None:
            return arg
        if isinstance(arg.ty, relax.ShapeType):
            return relax.ShapeExpr([self._dim(dim) for dim in dims])
        old = arg.ty
        new = map_dims(old, self._dim)
        return arg if new.same_as(old) else self._cast(arg, new)

    def _cast(self, var: Any, ty: ir.Type) -> ir.Var:
        """``var`` with the type ``ty``, made once in a block.

        A ``match_cast``, or a reshape where one of its symbols stands for an expression in that symbol: TVM's
        CanonicalizeBindings replaces such a symbol by the expression without end.
        """
        known = self._retyped.get(var)
        if known is not None and tvm_ffi.structural_equal(known.ty, ty):
            return known
        if _mentions_itself(dims_of(var.ty), dims_of(ty)):
            new = self._builder.emit(relax.op.reshape(var, relax.ShapeExpr(dims_of(ty))))
            self._retyped[var] = new
            return new
        kind = relax.DataflowVar if self._builder.current_block_is_dataflow() else relax.Var
        new = kind(var.name, ty)
        self._builder.emit_normalized(relax.MatchCast(new, var, ty))
        self._retyped[var] = new
        return new

    def _require(self, call: ir.Call, need: Requirement, name: str) -> ir.Call:
        """Have an equality that ``call`` needs checked, unless it is proved (or known to be wrong)."""
        known = self.facts.known
        if known.prove_equal(need.left, need.right) or known.known_unequal(need.left, need.right):
            return call
        condition = prim.EQ(need.left, need.right)
        if self._may_assert and set(symbolic_vars(condition)) <= self._scope_above:
            operator = call.op.name.removeprefix("relax.")
            dims = " and ".join(to_text(dim, known) for dim in (need.left, need.right))
            text = f"'{name}' ({operator}): {dims} must be equal, {need.reason}"
            check = relax.op.assert_op(condition, [need.left, need.right], format=text + "; got {} and {}")
            check = self._builder.normalize(check)
            self._hoisted.append(relax.VarBinding(relax.Var("_", check.ty), check))
            self._asserted = True
        elif need.operand is not None and isinstance(call.args[need.operand], ir.Var):
            operand = call.args[need.operand]
            dims = dims_of(operand.ty) or []
            dims[need.axis or 0] = need.left
            args = list(call.args)
            args[need.operand] = self._cast(operand, with_dims(operand.ty, dims))
            call = ir.Call(call.op, args, call.attrs, call.ty_args)
        else:
            return call
        self.checks_added += 1
        self.facts.assume(condition)
        return call

    # ---- expressions

    def _expr(self, expr: ir.Expr) -> ir.Expr:
        """A leaf or a flat value with variables, functions and dims replaced."""
        if ir.is_prim_expr(expr):
            return self._dim(expr)
        if isinstance(expr, ir.GlobalVar):
            return self._renamed.get(expr, expr)
        if isinstance(expr, ir.Var):
            return self._remap.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return self._builder.normalize(relax.Tuple([self._expr(field) for field in expr.fields]))
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._expr(expr.tuple_value), expr.index)
        if isinstance(expr, relax.ShapeExpr):
            return relax.ShapeExpr([self._dim(dim) for dim in expr.values])
        if isinstance(expr, ir.Call):
            args = [self._expr(arg) for arg in expr.args]
            types = [map_dims(ty, self._dim) for ty in expr.ty_args]
            return ir.Call(self._expr(expr.op), args, self._attrs(expr.attrs), types)
        if isinstance(expr, relax.Function):
            return self._replaced(expr)
        return expr

    def _attrs(self, attrs: Any) -> Any:
        return self._replaced(attrs) if attrs is not None and self._removed else attrs

    def _replaced(self, node: Any) -> Any:
        """Any other node, with variables replaced but shapes left as they are."""

        def replace(var: ir.Var) -> ir.Expr:
            return self._removed.get(var) or self._remap.get(var, var)

        return tvm_ffi.structural_map(node, (ir.Var, replace))

    def _dim(self, expr: ir.Expr) -> ir.Expr:
        """The simplest form of a scalar under what is known here.

        A form that is merely another stays: TVM infers (h - 1) // 2 + 1 for a convolution, never
        (h + 1) // 2, and FuseTIR takes two forms of one extent for two extents.
        """
        if isinstance(expr, prim.IntImm):
            return expr
        if str(expr.ty) != "int64":
            return substitute(expr, self._removed) if self._removed else expr
        value = simplify(expr, self.facts.known)
        if isinstance(value, int):
            return tirx.IntImm("int64", value)
        simpler = _weight(value) < _weight(expr) or set(free_vars(value)) != set(free_vars(expr))
        return value if simpler else expr

    def _without_removed(self, ty: ir.Type) -> ir.Type:
        return map_dims(ty, self._without_removed_dim) if self._removed else ty

    def _without_removed_dim(self, dim: ir.Expr) -> ir.Expr:
        return substitute(dim, self._removed) if self._removed else dim


def _mentions_itself(old: list[ir.Expr] | None, new: list[ir.Expr] | None) -> bool:
    pairs = [(a, b) for a, b in zip(old or [], new or [], strict=False) if not tvm_ffi.structural_equal(a, b)]
    return any(set(free_vars(a)) & set(free_vars(b)) for a, b in pairs)


_COSTLY = (prim.Select, prim.Min, prim.Max, prim.FloorDiv, prim.FloorMod, prim.Cast)


def _weight(expr: ir.Expr) -> int:
    """How involved a scalar is: occurrences of variables and of what is not linear."""
    found: list[Any] = []
    for kind in (ir.Var, *_COSTLY):
        tvm_ffi.structural_walk(expr, (kind, found.append))
    return len(found)


def _seq_of(expr: ir.Expr) -> relax.SeqExpr:
    return expr if isinstance(expr, relax.SeqExpr) else relax.SeqExpr([], expr)


def _retyped(value: ir.Call | relax.If, ty: ir.Type) -> ir.Expr:
    """The same value with another type; an expression takes its type only once."""
    if isinstance(value, relax.If):
        new = relax.If(value.cond, value.true_branch, value.false_branch)
    else:
        new = ir.Call(value.op, list(value.args), value.attrs, list(value.ty_args))
    relax.expr._update_type(new, ty)
    return new


def _is_op(expr: ir.Expr, *names: str) -> bool:
    return isinstance(expr, ir.Call) and isinstance(expr.op, ir.Op) and expr.op.name in names
