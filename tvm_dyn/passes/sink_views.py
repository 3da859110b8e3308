"""Views before and after a matrix product move behind what is computed from it, where they meet and cancel.

    lv  = R.reshape(x, R.shape([b * s, 768]))        # x: (b, s, 768)       lv  = R.matmul(x, w)
    lv1 = R.matmul(lv, w)                                           ->      lv1 = R.add(lv, residual)
    lv2 = R.reshape(lv1, R.shape([b, s, 768]))
    lv3 = R.add(lv2, residual)

Exporters flatten batch and sequence around every dense layer; a view between a product and what follows it would keep
the two from becoming one kernel.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_dyn.passes.rewriting import RESHAPE, rewrite_functions

_MATMUL = Op.get("relax.matmul")
_UNARY = [
    Op.get(f"relax.{name}")
    for name in (
        *("abs", "erf", "exp", "log", "negative", "rsqrt", "sigmoid", "sqrt", "square", "tanh"),
        *("nn.gelu", "nn.gelu_tanh", "nn.relu", "nn.silu"),
    )
]
_BINARY = [Op.get(f"relax.{name}") for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")]


@tvm.transform.module_pass(opt_level=0, name="SinkViews")
class SinkViews:
    """Rewrite the dataflow blocks of every function; follows `ReshapesToViews`, comes before LegalizeOps."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return relax.transform.DeadCodeElimination()(rewrite_functions(mod, _Sunk(mod)))


@mutator
class _Sunk(PyExprMutator):
    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        # For each view of a product, or of what is computed from one: its operand.
        self.viewed: dict[relax.Var, relax.Var] = {}
        self.products: set[relax.Var] = set()

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if not isinstance(binding.var, relax.DataflowVar) or not isinstance(call, relax.Call) or not _dims(binding.var):
            super().visit_var_binding_(binding)
            return
        call = self.visit_expr(call)
        if call.op == RESHAPE and isinstance(call.args[0], relax.Var):
            source = self.viewed.get(call.args[0], call.args[0])
            if source in self.products:
                self._view(binding.var, source)
                return
            # Not a variable of its own: what is declared of those that read it would have to be inferred again.
            super().visit_var_binding_(binding)
            if _dims(source):
                self.viewed[binding.var] = source
            return
        flat = self._flat(call)
        if flat is None and call.op != _MATMUL:
            super().visit_var_binding_(binding)
            return
        result = self.builder_.emit(call if flat is None else flat)
        self.products.add(result)
        self._view(binding.var, result)

    def _view(self, var: relax.Var, source: relax.Var) -> None:
        """``var`` is a view of ``source``, or has its shape already."""
        if tvm_ffi.structural_equal(source.ty.shape, var.ty.shape):
            self.set_var_remap(var, source)
            return
        result = self.builder_.emit(relax.op.reshape(source, var.ty.shape))
        self.set_var_remap(var, result)
        if _dims(source):
            self.viewed[result] = source

    def _flat(self, call: relax.Call) -> relax.Call | None:
        """The call on what its operands are views of; None where it has to see them as they are."""
        if call.op == _MATMUL:
            left, right = call.args
            source = self.viewed.get(left)
            if source is None or len(_dims(right)) != 2 or not _same(_dims(source)[-1], _dims(left)[-1]):
                return None
            return relax.Call(call.op, [source, right], call.attrs)
        if call.op in _UNARY:
            source = self._product_behind(call.args[0])
            return None if source is None else relax.Call(call.op, [source], call.attrs)
        if call.op in _BINARY and not any(arg in self.products for arg in call.args):
            sources = [self._product_behind(arg) for arg in call.args]
            like = next((source for source in sources if source is not None), None)
            operands = [] if like is None else [self._shaped(arg, like, call) for arg in call.args]
            return relax.Call(call.op, operands, call.attrs) if operands and None not in operands else None
        return None

    def _product_behind(self, arg: relax.Expr) -> relax.Var | None:
        source = self.viewed.get(arg) if isinstance(arg, relax.Var) else None
        known = source is not None and source in self.products
        return source if known and _same(_dims(source)[-1], _dims(arg)[-1]) else None

    def _shaped(self, arg: relax.Expr, like: relax.Var, call: relax.Call) -> relax.Expr | None:
        """``arg`` in the shape that suits ``like``; None where there is none."""
        dims, wanted = _dims(arg), _dims(like)
        if self.viewed.get(arg) is not None and _equal(_dims(self.viewed[arg]), wanted):
            return self.viewed[arg]
        if not isinstance(arg.ty.shape, relax.ShapeExpr):
            return None
        if not dims or (len(dims) == 1 and (_same(dims[0], 1) or _same(dims[0], wanted[-1]))):
            return arg
        whole = next(_dims(a) for a in call.args if self.viewed.get(a) is like)
        if not _equal(dims, whole):
            return None
        return self.builder_.emit(relax.op.reshape(arg, like.ty.shape))


def _dims(expr: relax.Expr) -> list:
    shape = expr.ty.shape if isinstance(expr.ty, relax.TensorType) else None
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else []


def _same(left, right) -> bool:
    return tvm.sym.Analyzer().can_prove_equal(left, right)


def _equal(left: list, right: list) -> bool:
    return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))
