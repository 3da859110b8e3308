"""Propagate what is known of symbolic dims through every Relax function, until nothing new follows.

Before::

    def main(x: Tensor((n, k)), y: Tensor((m, k2)), w: Tensor((k, 8))):
        assert_op(n == m)
        a: Tensor(ndim=2) = add(matmul(x, w), matmul(y, w))
        s: Shape(ndim=2) = tensor_to_shape(shape_to_tensor(shape_of(a)))
        b = match_cast(reshape(a, s), Tensor((p, q)))

After (the dims are equal because of a check that runs first; one is added for ``k2``)::

    def main(x: Tensor((n, k)), y: Tensor((m, k2)), w: Tensor((k, 8))):
        assert_op(n == m)
        assert_op(k2 == k, "... 'matmul' ... multiplies over them ...")
        a: Tensor((n, 8)) = add(matmul(x, w), matmul(y, w))
        b: Tensor((n, 8)) = reshape(a, shape([n, 8]))

Soundness: a fact is used only below the check that establishes it, and parameters, assertions and casts that
still check something keep their own symbols. An equality that an operator needs and nothing proves is checked
by an added ``assert_op`` ahead of the dataflow block, or by a ``match_cast`` of the operand where a function
must stay pure. Facts are recorded on the function (see `shape_facts`).
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, relax

from tvm_dyn.passes import shape_facts
from tvm_dyn.passes.function_shapes import FunctionShapes

_MAX_ROUNDS = 4
_CLOSED = ("Primitive", "Codegen")  # groups that another pass has already formed


@tvm.transform.module_pass(opt_level=0, name="PropagateSymbolicShapes")
class PropagateSymbolicShapes:
    """Unify, simplify and narrow symbolic shapes; usable alone in `tvm.transform.Sequential`."""

    def transform_module(self, mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every Relax function, callees before their callers."""
        order, called = _call_order(mod)
        renamed: dict[ir.GlobalVar, ir.GlobalVar] = {}
        functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
        for gvar in order:
            func = mod.functions[gvar]
            if isinstance(func, relax.Function) and not any(name in func.attrs for name in _CLOSED):
                func = _propagate(func, renamed, may_assert=gvar not in called)
                if not tvm_ffi.structural_equal(func.ty, gvar.ty):
                    renamed[gvar] = _typed_global(gvar, func)
            functions[renamed.get(gvar, gvar)] = func
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _propagate(func: relax.Function, renamed: dict[ir.GlobalVar, ir.GlobalVar], may_assert: bool) -> relax.Function:
    """Rounds over one function until none adds a check: a check makes facts hold further up."""
    for _ in range(_MAX_ROUNDS):
        walk = FunctionShapes(func, renamed, may_assert)
        func = walk.rewrite()
        if not walk.checks_added:
            break
    return shape_facts.record(func, walk.facts.known)


def _call_order(mod: tvm.IRModule) -> tuple[list[ir.GlobalVar], set[ir.GlobalVar]]:
    """(all functions, callees first; the Relax functions that others call)."""
    order: dict[ir.GlobalVar, None] = {}
    called: set[ir.GlobalVar] = set()

    def visit(gvar: ir.GlobalVar, above: tuple[ir.GlobalVar, ...]) -> None:
        if gvar in order or gvar in above:
            return
        callees: list[ir.GlobalVar] = []
        if isinstance(mod.functions[gvar], relax.Function):
            tvm_ffi.structural_walk(mod.functions[gvar], (ir.GlobalVar, callees.append))
        called.update(callees)
        for callee in callees:
            if callee in mod.functions:
                visit(callee, (*above, gvar))
        order[gvar] = None

    for gvar in mod.get_global_vars():
        visit(gvar, ())
    return list(order), called


def _typed_global(gvar: ir.GlobalVar, func: relax.Function) -> ir.GlobalVar:
    """A global variable of the same name with the narrower type of ``func``."""
    new = ir.GlobalVar(gvar.name_hint)
    relax.expr._update_type(new, func.ty)
    return new
