"""Lay constant right-hand sides of products out in panels, in the order in which their kernels read them.

R.call_tir(cls.fused_matmul_add, (x, w, b), ...)           # w constant, (768, 3072)
    C[i, j] += A[i, k] * W[k, j]
--->
R.call_tir(cls.fused_matmul_add, (x, w_packed, b), ...)    # (48, 768, 64)
    C[i, j] += A[i, k] * W[j // 64, k, j % 64]

Transposes and casts of W go into the layout and the kernel. Columns beyond the last one are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir import GenericConst, GlobalVar
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.hardware import host_target
from tvm_dyn.passes.rewriting import CALL_TIR, rewrite_functions
from tvm_dyn.schedules import matmul
from tvm_dyn.schedules.common import as_int, collect, loads
from tvm_dyn.schedules.indices import simplify_indices
from tvm_dyn.schedules.matmul_packed import PackedTile
from tvm_dyn.schedules.matmul_product import Matmul


@tvm.transform.module_pass(opt_level=0, name="PackConstantWeights")
class PackConstantWeights:
    """Comes after fusion, before schedules: a kernel is packed for if all of its calls give it constants.

    target: tells how wide the panels are; by default the target in scope, else the host CPU.
    """

    def __init__(self, target: Target | None = None):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = self.target or Target.current(allow_none=True) or host_target()
        if target.kind.name != "llvm":
            return mod
        calls = _Calls()
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                calls.visit_expr(func)
        packed = {gv: found for gv in calls.found if (found := _packed(mod[gv], calls.found[gv], target))}
        result = rewrite_functions(mod, _Packing(mod, packed))
        for gv in packed:
            del result[gv]
        return result


@dataclass(frozen=True)
class _Layout:
    """How to pack: which axis of the constant is k, which n (all others have one element), and how wide panels are."""

    k: int
    n: int
    width: int

    def pack(self, constant: np.ndarray) -> np.ndarray:
        """[panel, k, column] of a constant."""
        depth, columns = constant.shape[self.k], constant.shape[self.n]
        matrix = (constant if self.k < self.n else constant.swapaxes(self.k, self.n)).reshape(depth, columns)
        panels = -(-columns // self.width)
        result = np.zeros((panels, depth, self.width), constant.dtype)
        for panel in range(panels):
            part = matrix[:, panel * self.width : (panel + 1) * self.width]
            result[panel, :, : part.shape[1]] = part
        return result


@dataclass(frozen=True)
class _Packed:
    """A kernel that takes packed weights in place of its parameter at ``position``."""

    func: PrimFunc
    position: int
    layout: _Layout


@visitor
class _Calls(PyExprVisitor):
    """The arguments of every call of every kernel; None for a kernel that is used in another way."""

    def __init__(self) -> None:
        self.found: dict[GlobalVar, list[list[relax.Expr] | None]] = {}

    def visit_call_(self, call: relax.Call) -> None:
        kernel = call.args[0] if call.op.same_as(CALL_TIR) else None
        for arg in call.args:
            if isinstance(arg, GlobalVar):
                args = list(call.args[1].fields) if arg.same_as(kernel) else None
                self.found.setdefault(arg, []).append(args)


def _packed(func: PrimFunc, calls: list[list[relax.Expr] | None], target: Target) -> _Packed | None:
    found = matmul.find(simplify_indices(func)) if isinstance(func, PrimFunc) and _has_root(func) else None
    if found is None:
        return None
    load, product = _weight(found.product), found.product
    if load is None or min(as_int(axis.dom.extent) or 0 for axis in (product.k, product.n)) < 1:
        return None
    inlined = found.sch.mod["main"]
    position = next((i for i, p in enumerate(inlined.params) if load.source.same_as(p)), None)
    uses = [other for other in loads(inlined.body) if other.source.same_as(load.source)]
    if position is None or len(uses) != 1:
        return None
    if not all(args and position < len(args) and isinstance(args[position], GenericConst) for args in calls):
        return None
    k, n = (next(d for d, i in enumerate(load.indices) if i.same_as(axis.var)) for axis in (product.k, product.n))
    columns, depth = int(product.n.dom.extent), int(product.k.dom.extent)
    width = PackedTile.for_target(target, product.acc_dtype, columns, depth).width
    layout = _Layout(k, n, width)
    return _Packed(_reading_panels(inlined, load, layout, depth, columns), position, layout)


def _has_root(func: PrimFunc) -> bool:
    return isinstance(func.body, s_tir.SBlockRealize)


def _weight(product: Matmul) -> tvm.ir.TensorLoad | None:
    """The load of B, where it is one of a whole constant matrix, perhaps with a cast."""
    load = product.b.value if isinstance(product.b, tirx.Cast) else product.b
    if product.batch or not isinstance(load, tvm.ir.TensorLoad):
        return None
    axes = [product.k, product.n]
    shape, plain = load.source.shape, []
    for extent, index in zip(shape, load.indices, strict=True):
        axis = next((axis for axis in axes if index.same_as(axis.var)), None)
        plain.append(axis)
        if axis is None and (as_int(extent) != 1 or collect(index, tirx.Var)):
            return None
        if axis is not None and as_int(extent) != as_int(axis.dom.extent):
            return None
    return load if sum(axis is not None for axis in plain) == 2 and plain.count(axes[0]) == 1 else None


def _reading_panels(func: PrimFunc, load, layout: _Layout, depth: int, columns: int) -> PrimFunc:
    old, width = load.source, layout.width
    panels = -(-columns // width)
    new = tirx.decl_buffer([panels, depth, width], str(old.dtype), old.name)

    def place(indices) -> list[tirx.Expr]:
        k, n = indices[layout.k], indices[layout.n]
        return [tirx.const(0, "int64"), k, n] if panels == 1 else [n // width, k, n % width]

    def region(node):
        if not node.source.same_as(old):
            return node
        return tirx.BufferRegion(new, [tvm.ir.Range.from_min_extent(i, 1) for i in place(load.indices)])

    def in_block(block: s_tir.SBlock) -> s_tir.SBlock:
        return s_tir.SBlock(
            block.iter_vars,
            [region(read) for read in block.reads],
            block.writes,
            block.name_hint,
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    def read(node):
        return tirx.BufferLoad(new, place(node.indices)) if node.source.same_as(old) else node

    body = tvm_ffi.structural_map(func.body, [(tvm.ir.TensorLoad, read), (s_tir.SBlock, in_block)], order="post")
    params = [new if param.same_as(old) else param for param in func.params]
    return PrimFunc(params, body, func.ret_type, func.attrs)


@mutator
class _Packing(PyExprMutator):
    """Gives packed weights to the kernels that take them; the same constant is packed once."""

    def __init__(self, mod: tvm.IRModule, packed: dict[GlobalVar, _Packed]):
        super().__init__(mod)
        self.packed = packed
        self.kernels = {gv: self.builder_.add_func(p.func, gv.name_hint) for gv, p in packed.items()}
        self.constants: list[tuple[GenericConst, _Layout, GenericConst]] = []

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        packed = self.packed.get(call.args[0]) if call.op.same_as(CALL_TIR) else None
        if packed is None:
            return call
        operands = list(call.args[1].fields)
        operands[packed.position] = self._constant(operands[packed.position], packed.layout)
        args = [self.kernels[call.args[0]], relax.Tuple(operands), *call.args[2:]]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _constant(self, constant: GenericConst, layout: _Layout) -> GenericConst:
        for source, known, result in self.constants:
            if known == layout and source.value.same_as(constant.value):
                return result
        result = relax.const(tvm.runtime.tensor(layout.pack(constant.value.numpy())), str(constant.ty.dtype))
        self.constants.append((constant, layout, result))
        return result
