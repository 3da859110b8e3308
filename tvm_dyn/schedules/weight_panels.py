"""Constant right-hand sides of products in panels: the layout, and kernels that read it.

C[i, j] += A[i, k] * W[k, j]        ->        C[i, j] += A[i, k] * P[j // 64, k, j % 64]        # 64 columns a panel
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn.schedules import matmul
from tvm_dyn.schedules.backbone import CONSTANT
from tvm_dyn.schedules.common import as_int, changed, collect, loads
from tvm_dyn.schedules.indices import simplify_indices
from tvm_dyn.schedules.matmul_packed import PackedTile
from tvm_dyn.schedules.matmul_product import Matmul
from tvm_dyn.schedules.replay import decided


@dataclass(frozen=True)
class Layout:
    """How to pack: which axis of the constant is k, which n (all others have one element), and how wide panels are."""

    k: int
    n: int
    width: int

    def pack(self, constant: np.ndarray) -> np.ndarray:
        """[panel, k, column] of a constant; columns beyond the last one are zeros."""
        depth, columns = constant.shape[self.k], constant.shape[self.n]
        matrix = (constant if self.k < self.n else constant.swapaxes(self.k, self.n)).reshape(depth, columns)
        panels = -(-columns // self.width)
        result = np.zeros((panels, depth, self.width), constant.dtype)
        for panel in range(panels):
            part = matrix[:, panel * self.width : (panel + 1) * self.width]
            result[panel, :, : part.shape[1]] = part
        return result


@dataclass(frozen=True)
class Packed:
    """A kernel that takes packed weights in place of its parameter at ``position``."""

    func: PrimFunc
    position: int
    layout: Layout


@dataclass(frozen=True)
class Operand:
    """The right-hand side of a function's only product: a matrix of constant extents, read once.

    func: the function with its prologues inlined. position: of the parameter that is the matrix.
    """

    func: PrimFunc
    product: Matmul
    load: tvm.ir.TensorLoad
    position: int


def packable_operand(func: PrimFunc) -> Operand | None:
    """The operand of a function that may lie in panels if it is constant; None without one."""
    found = matmul.find(simplify_indices(func)) if isinstance(func.body, s_tir.SBlockRealize) else None
    load = _weight(found.product) if found else None
    if found is None or load is None:
        return None
    if min(as_int(axis.dom.extent) or 0 for axis in (found.product.k, found.product.n)) < 1:
        return None
    inlined = found.sch.mod["main"]
    position = next((i for i, p in enumerate(inlined.params) if load.source.same_as(p)), None)
    uses = [other for other in loads(inlined.body) if other.source.same_as(load.source)]
    return None if position is None or len(uses) != 1 else Operand(inlined, found.product, load, position)


def marked(func: PrimFunc) -> PrimFunc:
    """The function with its product's block marked: its right-hand side is constant."""
    sch = s_tir.Schedule(func)
    (product,) = [b for b in sch.get_child_blocks(sch.get_sblock("root")) if sch.get(b).init is not None]
    sch.annotate(product, CONSTANT, 1)
    return sch.mod["main"]


def pack(func: PrimFunc, target: Target) -> Packed:
    """The kernel of a `marked` function for weights that lie in panels as wide as its tile decides.

    Raises ValueError for other functions.
    """
    operand = _operand(func)
    product, indices = operand.product, operand.load.indices
    k, n = (next(d for d, i in enumerate(indices) if i.same_as(axis.var)) for axis in (product.k, product.n))
    columns, depth = int(product.n.dom.extent), int(product.k.dom.extent)
    tile = decided(operand.func, PackedTile.for_target(target, product.acc_dtype, columns, depth))
    layout = Layout(k, n, tile.width)
    return Packed(_reading_panels(operand.func, operand.load, layout, depth, columns), operand.position, layout)


def workload(func: PrimFunc) -> PrimFunc:
    """The product of a `marked` function without what does not matter once it is packed: a matrix of symbolic rows
    times a matrix, whatever the ranks and layouts they come in. Raises ValueError for other functions.
    """
    product = _operand(func).product
    columns, depth = int(product.n.dom.extent), int(product.k.dom.extent)
    rows = tirx.Var("rows", "int64")
    a = te.placeholder((rows, depth), _element(product.a), "A")
    b = te.placeholder((depth, columns), _element(product.b), "B")
    k = te.reduce_axis((0, depth), "k")
    kind = product.acc_dtype
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k].astype(kind) * b[k, j].astype(kind), k), "C")
    return marked(te.create_prim_func([a, b, c]))


def _element(operand: tirx.Expr) -> str:
    """The type in memory of an operand."""
    (load,) = loads(operand)
    return str(load.source.dtype)


def _operand(func: PrimFunc) -> Operand:
    operand = packable_operand(func)
    if operand is None:
        raise ValueError("the function has no constant operand")
    return operand


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


def _reading_panels(func: PrimFunc, load, layout: Layout, depth: int, columns: int) -> PrimFunc:
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
        return changed(block, reads=[region(read) for read in block.reads])

    def read(node):
        return tirx.BufferLoad(new, place(node.indices)) if node.source.same_as(old) else node

    body = tvm_ffi.structural_map(func.body, [(tvm.ir.TensorLoad, read), (s_tir.SBlock, in_block)], order="post")
    params = [new if param.same_as(old) else param for param in func.params]
    return PrimFunc(params, body, func.ret_type, func.attrs)
