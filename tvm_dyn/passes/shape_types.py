"""Relax types seen through their symbolic dims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import tvm_ffi
from tvm import ir, relax

DimMap = Callable[[ir.Expr], ir.Expr]


def dims_of(ty: ir.Type | None) -> list[ir.Expr] | None:
    """The dims of a tensor or shape type, None where they are not known."""
    if isinstance(ty, relax.TensorType):
        return list(ty.shape.values) if isinstance(ty.shape, relax.ShapeExpr) else None
    if isinstance(ty, relax.ShapeType):
        return None if ty.values is None else list(ty.values)
    return None


def with_dims(ty: ir.Type, dims: list[ir.Expr]) -> ir.Type:
    """A tensor or shape type with its dims replaced."""
    if isinstance(ty, relax.ShapeType):
        return relax.ShapeType(dims)
    return relax.TensorType(dims, ty.dtype, ty.vdevice)


def map_dims(ty: ir.Type, change: DimMap) -> ir.Type:
    """Apply ``change`` to every dim below a type; the same object where nothing changes."""
    if isinstance(ty, ir.TupleType):
        fields = [map_dims(field, change) for field in ty.fields]
        return ty if _identical(fields, ty.fields) else ir.TupleType(fields)
    dims = dims_of(ty)
    if dims is None:
        return ty
    new = [change(dim) for dim in dims]
    if _identical(new, dims):
        return ty
    return with_dims(ty, new)


def _identical(new: Sequence[ir.Node], old: Sequence[ir.Node]) -> bool:
    return all(n.same_as(o) for n, o in zip(new, old, strict=True))


def narrower(new: ir.Type, old: ir.Type | None) -> ir.Type:
    """``new``, completed from ``old`` where that one knows more; both describe the same value."""
    if isinstance(new, ir.TupleType) and isinstance(old, ir.TupleType) and len(new.fields) == len(old.fields):
        fields = [narrower(n, o) for n, o in zip(new.fields, old.fields, strict=True)]
        return new if _identical(fields, new.fields) else ir.TupleType(fields)
    if isinstance(new, relax.TensorType) and isinstance(old, relax.TensorType):
        return _narrower_tensor(new, old)
    if isinstance(new, relax.ShapeType) and isinstance(old, relax.ShapeType):
        return old if new.values is None and (old.values is not None or new.ndim == -1) else new
    if isinstance(new, relax.AnyType) and old is not None:
        return old
    return new


def _narrower_tensor(new: relax.TensorType, old: relax.TensorType) -> relax.TensorType:
    shape = new.shape if new.shape is not None else old.shape
    dtype = new.dtype if new.dtype is not None else old.dtype
    if shape is not None:
        if new.shape is not None and new.dtype is not None:
            return new
        return relax.TensorType(shape, dtype, new.vdevice or old.vdevice)
    ndim = new.ndim if new.ndim != -1 else old.ndim
    return relax.TensorType(None, dtype, new.vdevice or old.vdevice, ndim=ndim)


def same_kind(a: ir.Type, b: ir.Type) -> bool:
    """Whether two types differ in dims at most."""
    return tvm_ffi.structural_equal(relax.analysis.get_static_type(a), relax.analysis.get_static_type(b))


def symbolic_vars(node: ir.Type | ir.Expr | None) -> Iterator[ir.Var]:
    """The scalar variables in a type or expression, each time one occurs."""
    found: list[ir.Var] = []
    if node is not None:
        tvm_ffi.structural_walk(node, (ir.Var, found.append))
    return (var for var in found if isinstance(var.ty, ir.PrimType))
