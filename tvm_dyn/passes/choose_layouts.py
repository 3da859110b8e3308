"""Keep two-dimensional feature maps channels-last between convolutions, with weights packed for their kernels.

    lv  = R.call_tir(cls.conv2d, (x, w))           ->    t   = R.call_tir(cls.transpose, (x,))     # once, at the border
    lv1 = R.call_tir(cls.relu, (lv,))                    lv  = R.call_tir(cls.conv2d_last, (t, packed_w))
    lv2 = R.call_tir(cls.conv2d1, (lv1, w1))             lv1 = R.call_tir(cls.relu_last, (lv,))
    gv  = R.call_tir(cls.add, (lv2, lv))                 lv2 = R.call_tir(cls.conv2d_last1, (lv1, packed_w1))
                                                         t1  = R.call_tir(cls.add_last, (lv2, lv))
                                                         gv  = R.call_tir(cls.transpose1, (t1,))

Comes after LegalizeOps. Convolutions with constant weights start a region; those of single pixels become products.
Kernels that keep channels apart follow their operands. A map goes back to its own layout where something else reads it.
"""

from __future__ import annotations

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_dyn.hardware import host_target
from tvm_dyn.passes.channel_axis import ChannelAxes, channel_axes, moved_last
from tvm_dyn.passes.rewriting import CALL_TIR, RESHAPE, rewrite_functions
from tvm_dyn.schedules.common import as_int
from tvm_dyn.schedules.conv import Conv, match
from tvm_dyn.schedules.packed_weights import pack, pointwise
from tvm_dyn.schedules.window import NotAWindow, parse


@tvm.transform.module_pass(opt_level=0, name="ChooseLayouts")
class ChooseLayouts:
    """target: tells how wide weights are packed; by default the target in scope, else the host CPU."""

    def __init__(self, target: Target | None = None):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = self.target or Target.current(allow_none=True) or host_target()
        return relax.transform.DeadCodeElimination()(rewrite_functions(mod, _Chosen(mod, target)))


@mutator
class _Chosen(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, target: Target):
        super().__init__(mod)
        self.source, self.target = mod, target
        # variables of the source program -> their channels-last twins
        self.twins: dict[relax.Var, relax.Var] = {}
        self.pending: set[relax.Var] = set()
        self.axes: dict[tvm.ir.GlobalVar, ChannelAxes | None] = {}
        self.convs: dict[tvm.ir.GlobalVar, Conv | None] = {}
        self.moved: dict[tuple, tvm.ir.GlobalVar] = {}
        self.constants: dict[tuple, tvm.ir.GenericConst] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        twin = self._twin_of(binding)
        if twin is None:
            super().visit_var_binding_(binding)
            return
        self.twins[binding.var] = twin
        if isinstance(binding.var, relax.DataflowVar):
            self.pending.add(binding.var)
        else:
            super().visit_var_binding_(relax.VarBinding(binding.var, self._back(twin)))

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        if var in self.pending:
            self.pending.discard(var)
            self.set_var_remap(var, self.builder_.emit(self._back(self.twins[var])))
        return super().visit_dataflow_var_(var)

    def _back(self, twin: relax.Var) -> relax.Expr:
        rank = len(twin.ty.shape.values)
        return self._transposed(twin, [0, rank - 1, *range(1, rank - 1)])

    def _transposed(self, value: relax.Expr, axes: list[int]) -> relax.Expr:
        shape = list(value.ty.shape.values)
        kept = [a for a in axes if as_int(shape[a]) != 1]
        if kept == sorted(kept):
            return relax.op.reshape(value, relax.ShapeExpr([shape[a] for a in axes]))
        return self.builder_.call_te(topi.transpose, value, axes, primfunc_name_hint="transpose")

    def _twin_of(self, binding: relax.VarBinding) -> relax.Var | None:
        """The twin of what is bound, emitted; None where it has none."""
        value = binding.value
        if not isinstance(value, relax.Call):
            return None
        if value.op == RESHAPE:
            return self._reshaped(value, binding.var)
        if value.op != CALL_TIR or not isinstance(value.ty, relax.TensorType):
            return None
        gv, operands = value.args[0], list(value.args[1].fields)
        conv = self._conv(gv, operands)
        if conv is not None and self._is_mine(conv, operands[0]):
            return self._convolved(conv, operands, list(binding.var.ty.shape.values))
        if any(isinstance(o, relax.Var) and o in self.twins for o in operands):
            return self._follow(value, gv, operands, binding.var)
        return None

    def _reshaped(self, value: relax.Call, result: relax.Var) -> relax.Var | None:
        """The twin of a reshape that keeps batch and channels."""
        source, twin = value.args[0], self.twins.get(value.args[0])
        old, new = source.ty.shape, result.ty.shape
        if twin is None or not isinstance(new, relax.ShapeExpr) or len(new.values) < 3:
            return None
        prove = tvm.sym.Analyzer().can_prove_equal
        if not all(prove(a, b) for a, b in zip(old.values[:2], new.values[:2], strict=True)):
            return None
        batch, channels, *rest = new.values
        return self.builder_.emit(relax.op.reshape(twin, relax.ShapeExpr([batch, *rest, channels])))

    # -- convolutions

    def _conv(self, gv: tvm.ir.GlobalVar, operands: list[relax.Expr]) -> Conv | None:
        if gv not in self.convs:
            func = self.source[gv]
            self.convs[gv] = None
            if isinstance(func, tirx.PrimFunc):
                try:
                    conv = match(parse(func))
                    fits = len(conv.window.axes) == 2 and conv.dtype == "float32"
                    in_order = conv.window.data.same_as(func.params[0]) and conv.weight.same_as(func.params[1])
                    self.convs[gv] = conv if fits and in_order else None
                except (NotAWindow, RuntimeError):
                    pass
        conv = self.convs[gv]
        constant = len(operands) > 1 and isinstance(operands[1], tvm.ir.GenericConst)
        return conv if conv is not None and constant else None

    def _is_mine(self, conv: Conv, data: relax.Expr) -> bool:
        """Dense and depthwise windows; those of one tap are as fast in either layout, and not worth a turn."""
        if conv.groups > 1:
            return conv.channels == 1 and conv.filters == conv.groups
        return data in self.twins or not all(axis.is_pointwise for axis in conv.window.axes)

    def _convolved(self, conv: Conv, operands: list[relax.Expr], shape: list[tirx.Expr]) -> relax.Var:
        data, weight = self._last(operands[0], 1), operands[1]
        # a single pixel per image, as in squeeze-and-excitation: a product with few rows
        if all(axis.is_pointwise for axis in conv.window.axes) and all(as_int(extent) == 1 for extent in shape[2:]):
            packed = self._constant(weight, "pointwise", pointwise)
            return self.builder_.emit_te(_matmul, data, packed, primfunc_name_hint="matmul")
        batch, filters, *rest = shape
        last = [batch, *rest, filters]
        if conv.groups > 1:
            packed = self._constant(weight, "depthwise", lambda w: w.reshape(w.shape[0], -1).T.copy())
            return self._emit(_depthwise, conv, data, packed, last, "depthwise_last")
        packed = self._constant(weight, "packed", lambda w: pack(w, conv.window.axes, self.target))
        return self._emit(_conv2d, conv, data, packed, last, "conv2d_last")

    def _emit(self, compute, conv: Conv, data: relax.Expr, weight: relax.Expr, shape: list, name: str) -> relax.Var:
        def of(data: te.Tensor, weight: te.Tensor, shape: list) -> te.Tensor:
            return compute(data, weight, shape, conv.window.axes)

        return self.builder_.emit_te(of, data, weight, shape, primfunc_name_hint=name)

    def _constant(self, constant: tvm.ir.GenericConst, kind: object, change) -> tvm.ir.GenericConst:
        key = (constant, kind)
        if key not in self.constants:
            self.constants[key] = relax.const(change(constant.value.numpy()), str(constant.ty.dtype))
        return self.constants[key]

    # -- what follows

    def _last(self, value: relax.Expr, axis: int) -> relax.Expr:
        """A value with an axis moved to the end."""
        rank = len(value.ty.shape.values)
        if axis == rank - 1:
            return self.visit_expr(value)
        if isinstance(value, relax.Var) and axis == 1:
            if value not in self.twins:
                mine = self.visit_expr(value)
                self.twins[value] = self.builder_.emit(self._transposed(mine, [0, *range(2, rank), 1]))
            return self.twins[value]
        axes = [*[a for a in range(rank) if a != axis], axis]
        if isinstance(value, tvm.ir.GenericConst):
            return self._constant(value, tuple(axes), lambda v: v.transpose(axes).copy())
        return self.builder_.emit(self._transposed(self.visit_expr(value), axes))

    def _follow(self, call: relax.Call, gv: tvm.ir.GlobalVar, operands: list, result: relax.Var) -> relax.Var | None:
        mine = [isinstance(o, relax.Var) and o in self.twins for o in operands]
        if not isinstance(result.ty.shape, relax.ShapeExpr):
            return None
        if gv not in self.axes:
            func = self.source[gv]
            self.axes[gv] = channel_axes(func) if isinstance(func, tirx.PrimFunc) else None
        axes = self.axes[gv]
        if axes is None or any(m and a != 1 for m, a in zip(mine, axes.operands, strict=False)):
            return None
        if gv not in self.moved:
            self.moved[gv] = self.builder_.add_func(moved_last(self.source[gv], axes), f"{gv.name_hint}_last")
        # extents that the kernel cannot tell from its buffers come last
        last = [*axes.operands, *[None] * (len(operands) - len(axes.operands))]
        arguments = [self.visit_expr(o) if a is None else self._last(o, a) for o, a in zip(operands, last, strict=True)]
        batch, channels, *rest = result.ty.shape.values
        out = relax.TensorType([batch, *rest, channels], result.ty.dtype)
        moved = relax.Call(call.op, [self.moved[gv], relax.Tuple(arguments), *call.args[2:]], call.attrs, [out])
        return self.builder_.emit(moved)


def _matmul(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    c = te.reduce_axis((0, weight.shape[0]), "c")
    shape = [*data.shape[:3], weight.shape[1]]
    return te.compute(shape, lambda n, y, x, f: te.sum(data[n, y, x, c] * weight[c, f], axis=c), name="matmul")


def _padded(data: te.Tensor, axes: list) -> te.Tensor:
    before, after = ([0, *(getattr(axis, side) for axis in axes), 0] for side in ("before", "after"))
    return topi.nn.pad(data, before, after, 0.0, name="pad_temp") if any(before + after) else data


def _conv2d(data: te.Tensor, weight: te.Tensor, shape: list, axes: list) -> te.Tensor:
    """See `schedules.channels_last`."""
    down, across = axes
    columns = int(weight.shape[3])
    padded = _padded(data, axes)
    ry, rx = (te.reduce_axis((0, axis.kernel), name) for axis, name in zip(axes, ("ry", "rx"), strict=True))
    c = te.reduce_axis((0, data.shape[3]), "c")

    def at(n, y, x, f):
        element = padded[n, y * down.stride + ry * down.dilation, x * across.stride + rx * across.dilation, c]
        return te.sum(element * weight[f // columns, ry * across.kernel + rx, c, f % columns], axis=[ry, rx, c])

    return te.compute(shape, at, name="conv2d_last")


def _depthwise(data: te.Tensor, weight: te.Tensor, shape: list, axes: list) -> te.Tensor:
    """See `schedules.channels_last_sliding`; weights are [tap, channel]."""
    down, across = axes
    padded = _padded(data, axes)
    ry, rx = (te.reduce_axis((0, axis.kernel), name) for axis, name in zip(axes, ("ry", "rx"), strict=True))

    def at(n, y, x, c):
        element = padded[n, y * down.stride + ry * down.dilation, x * across.stride + rx * across.dilation, c]
        return te.sum(element * weight[ry * across.kernel + rx, c], axis=[ry, rx])

    return te.compute(shape, at, name="depthwise_last")
