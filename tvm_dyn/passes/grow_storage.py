"""Make the storage of intermediate tensors as large as any call has needed so far, and each tensor in it one object.

storage = R.memory.alloc_storage(R.shape([n * 256]), ...)       storage_sizes(largest, sizes, n)
a = R.memory.alloc_tensor(storage, 0, R.shape([n, 64]), ...)    R.match_cast(shape of sizes, R.Shape([size, ...]))
...                                                        ->   storage = R.memory.alloc_storage(R.shape([size]), ...)
b = R.memory.alloc_tensor(storage, 0, R.shape([n, 64]), ...)    a = R.memory.alloc_tensor(storage, ...);  b = a

``largest`` is a constant of the library that every call raises to what it needs. The runtime's pool, which tells
buffers by their size, so keeps one set of them for all shapes: memory does not grow with the number of shapes, and a
new shape finds its memory mapped.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from tvm_dyn.passes.shape_types import dims_of
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.common import SCHEDULED, as_int, substitute

_STORAGE, _TENSOR = (ir.Op.get(f"relax.memory.{name}") for name in ("alloc_storage", "alloc_tensor"))


@tvm.transform.module_pass(opt_level=0, name="GrowStorage")
class GrowStorage:
    """Comes after `PlanMemory`. Storage whose size is constant, or depends on data, stays as it is."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        builder = relax.BlockBuilder(mod)
        for number, (gv, func) in enumerate(mod.functions_items()):
            if isinstance(func, relax.Function):
                sizes = _sizes(func)
                grow = builder.add_func(_storage_sizes([*sizes.values()]), "storage_sizes") if sizes else None
                builder.update_func(gv, _Growing(sizes, grow, number).rewritten(func))
        return relax.transform.Normalize()(builder.get())


def _sizes(func: relax.Function) -> dict[relax.Var, ir.Expr]:
    """The bytes of each storage, where the extents of the parameters say how many."""
    known = {dim for param in func.params for dim in dims_of(param.ty) or [] if isinstance(dim, tirx.Var)}
    sizes: dict[relax.Var, ir.Expr] = {}
    for binding in (binding for block in func.body.blocks for binding in block.bindings):
        if _calls(binding, _STORAGE):
            (size,) = binding.value.args[0].values
            if as_int(size) is None and {*_symbols([size])} <= known:
                sizes[binding.var] = size
    return sizes


class _Growing:
    """Rewrites one function. The ``number`` tells its constant from those of others, as a compiler may merge them."""

    def __init__(self, sizes: dict[relax.Var, ir.Expr], grow: ir.GlobalVar | None, number: int):
        self.sizes, self.grow, self.number = sizes, grow, number
        self.grown: dict[relax.Var, tirx.Var] = {}
        self.tensors: dict[relax.Var, list[tuple[ir.Type, relax.Var]]] = {}

    def rewritten(self, func: relax.Function) -> relax.Function:
        blocks = []
        for block in func.body.blocks:
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                if binding.var in self.sizes and not self.grown:
                    bindings += self._growth()
                bindings.append(self._rewritten(binding))
            blocks.append(relax.BindingBlock(bindings))
        body = relax.SeqExpr(blocks, func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)

    def _rewritten(self, binding: relax.Binding) -> relax.Binding:
        if binding.var in self.sizes:
            call = binding.value
            shape = relax.ShapeExpr([self.grown[binding.var]])
            return relax.VarBinding(binding.var, relax.Call(call.op, [shape, *call.args[1:]], call.attrs))
        return relax.VarBinding(binding.var, self._tensor(binding)) if _calls(binding, _TENSOR) else binding

    def _tensor(self, binding: relax.VarBinding) -> relax.Expr:
        """Of tensors that have a storage and a type in common, one after the other, all but the first are that one."""
        known = self.tensors.setdefault(binding.value.args[0], [])
        same = next((tensor for ty, tensor in known if tvm_ffi.structural_equal(ty, binding.var.ty)), None)
        if same is not None:
            return same
        known.append((binding.var.ty, binding.var))
        return binding.value

    def _growth(self) -> list[relax.Binding]:
        """Bindings that define the grown sizes."""
        count, symbols = len(self.sizes), _symbols(self.sizes.values())
        self.grown = {storage: tirx.Var("size", "int64") for storage in self.sizes}
        largest = relax.const(np.array([0] * count + [self.number], "int64"), "int64")
        sizes = relax.Var("sizes", relax.TensorType([count], "int64"))
        shape, grown = relax.Var("shape", relax.ShapeType(ndim=count)), relax.ShapeType([*self.grown.values()])
        to_shape = relax.Call(relax.ExternFunc("vm.builtin.tensor_to_shape"), [sizes], ty_args=[shape.ty])
        return [
            relax.VarBinding(sizes, relax.op.builtin.alloc_tensor(relax.ShapeExpr([count]), "int64", 0)),
            relax.VarBinding(relax.Var("_", ir.TupleType([])), relax.Call(self.grow, [largest, sizes, *symbols])),
            relax.VarBinding(shape, to_shape),
            relax.MatchCast(relax.Var("_", grown), shape, grown),
        ]


def _calls(binding: relax.Binding, op: ir.Op) -> bool:
    return isinstance(binding.value, relax.Call) and binding.value.op == op


def _symbols(sizes: Iterable[ir.Expr]) -> list[tirx.Var]:
    return list(dict.fromkeys(symbol for size in sizes for symbol in tirx.analysis.undefined_vars(size)))


def _storage_sizes(needed: list[ir.Expr]) -> tirx.PrimFunc:
    """sizes[i] = largest[i] = max(largest[i], needed[i]); a call that another overtakes keeps what it needs itself."""
    count = len(needed)
    largest, sizes = tirx.decl_buffer([count + 1], "int64", "largest"), tirx.decl_buffer([count], "int64", "sizes")
    own = {symbol: tirx.Var(symbol.name, "int64") for symbol in _symbols(needed)}
    raised = [
        emit.store(sizes, tirx.max(emit.load(largest, i), substitute(size, own)), i) for i, size in enumerate(needed)
    ]
    kept = [emit.store(largest, emit.load(sizes, i), i) for i in range(count)]
    block = s_tir.SBlock([], [], [], "root", emit.seq(*raised, *kept))
    realize = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
    return tirx.PrimFunc([largest, sizes, *own.values()], realize).with_attr(SCHEDULED, True)
