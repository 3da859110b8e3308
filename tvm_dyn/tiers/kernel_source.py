"""Kernels in TIR as Python functions on numpy arrays: how an operator runs that has neither opcode nor library.

    for i, j, k in T.grid(n, 8, m):                  def kernel(x, y):
        with T.sblock("total"):                          n, m = x.shape
            y[i, j] += x[i, k] * w[j, k]     -->         i = arange(n)[:, None, None]; j = ...; k = ...
                                                         y[...] = (x[i, k] * w[j, k]).sum(2)

A nest of loops around one block is computed as a whole, over all its iterations; other loops become Python's.
Slow, but at once: nothing is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.tirx import ForKind, PrimFunc


class UnsupportedKernel(Exception):
    """The kernel has a construct that has no counterpart here; the message names it."""


def kernel_function(func: PrimFunc) -> Callable[..., None]:
    """A function of the kernel's arguments, numpy arrays and ints; the outputs are written in place."""
    source = _Source(func).text()
    scope: dict[str, Any] = {"np": np, "erf": _erf, "load": _load, "truncdiv": _truncdiv}
    exec(compile(source, f"<kernel {func.attrs.get('global_symbol', '') if func.attrs else ''}>", "exec"), scope)
    return scope["kernel"]


_erf = np.vectorize(math.erf, otypes=["float64"])


def _truncdiv(a: Any, b: Any) -> Any:
    """Division of integers that rounds towards 0."""
    return (a - np.fmod(a, b)) // b


def _load(array: np.ndarray, *places: Any) -> Any:
    """Elements by their indices, each in bounds: values that a condition then drops may come from anywhere."""
    if not array.ndim:
        return array[()]
    if array.size == 0:
        return np.zeros(np.broadcast_shapes(*[np.shape(place) for place in places]), array.dtype)
    return array[tuple(np.clip(place, 0, extent - 1) for place, extent in zip(places, array.shape, strict=True))]


_OPERATORS = {
    "Add": "+", "Sub": "-", "Mul": "*", "EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=",
    "FloorDiv": "//", "FloorMod": "%", "And": "&", "Or": "|",
}  # fmt: skip
_FUNCTIONS = {
    "Min": "np.minimum", "Max": "np.maximum",
    "exp": "np.exp", "log": "np.log", "sqrt": "np.sqrt", "tanh": "np.tanh", "floor": "np.floor", "ceil": "np.ceil",
    "trunc": "np.trunc", "nearbyint": "np.rint", "round": "np.rint", "fabs": "np.abs", "isnan": "np.isnan",
    "isinf": "np.isinf", "isfinite": "np.isfinite", "pow": "np.power", "sin": "np.sin", "cos": "np.cos",
    "tan": "np.tan", "atan": "np.arctan", "asin": "np.arcsin", "acos": "np.arccos", "sinh": "np.sinh",
    "cosh": "np.cosh", "asinh": "np.arcsinh", "acosh": "np.arccosh", "atanh": "np.arctanh", "log2": "np.log2",
    "log10": "np.log10", "log1p": "np.log1p", "exp2": "np.exp2", "fmod": "np.fmod", "atan2": "np.arctan2",
    "hypot": "np.hypot", "copysign": "np.copysign", "bitwise_and": "np.bitwise_and", "bitwise_or": "np.bitwise_or",
    "bitwise_xor": "np.bitwise_xor", "bitwise_not": "np.invert", "shift_left": "np.left_shift",
    "shift_right": "np.right_shift", "truncmod": "np.fmod", "truncdiv": "truncdiv", "erf": "erf",
}  # fmt: skip
_WITHOUT_EFFECT = ("", "ret", "buffer_data", "tvm_storage_sync")
_REDUCTIONS = {"Add": "np.add", "Mul": "np.multiply", "Max": "np.maximum", "Min": "np.minimum"}


class _Source:
    """The text of a kernel, statement by statement."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.names: dict[Any, str] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.conditions = 0  # around the expression at hand

    def text(self) -> str:
        params = [self.name(param) for param in self.func.params]
        self.bind_extents()
        self.statement(self.func.body)
        return "\n".join([f"def kernel({', '.join(params)}):", *self.lines, "    return None"])

    def bind_extents(self) -> None:
        """Symbolic extents are read off the arguments."""
        for param in self.func.params:
            for axis, extent in enumerate(getattr(param.ty, "shape", ())):
                if isinstance(extent, tirx.Var) and extent not in self.names:
                    self.line(f"{self.name(extent)} = {self.name(param)}.shape[{axis}]")

    def name(self, variable: Any) -> str:
        if variable not in self.names:
            hint = "".join(c if c.isalnum() else "_" for c in variable.name)
            self.names[variable] = f"{hint}_{len(self.names)}"
        return self.names[variable]

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    # ---- statements

    def statement(self, stmt: Any) -> None:
        method = getattr(self, f"do_{type(stmt).__name__}", None)
        if method is None:
            raise UnsupportedKernel(type(stmt).__name__)
        method(stmt)

    def nested(self, stmt: Any) -> None:
        self.indent += 1
        before = len(self.lines)
        self.statement(stmt)
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1

    def do_SeqStmt(self, stmt: Any) -> None:
        for each in stmt.seq:
            self.statement(each)

    def do_Evaluate(self, stmt: Any) -> None:
        name = getattr(getattr(stmt.value, "op", None), "name", "").rpartition(".")[2]
        if name not in _WITHOUT_EFFECT:
            raise UnsupportedKernel(f"call of {name}")

    def do_AttrStmt(self, stmt: Any) -> None:
        self.statement(stmt.body)

    def do_Bind(self, stmt: Any) -> None:
        self.line(f"{self.name(stmt.var)} = {self.expr(stmt.value)}")

    def do_AllocBuffer(self, stmt: Any) -> None:
        self.allocate(stmt.buffer)

    def do_IfThenElse(self, stmt: Any) -> None:
        self.line(f"if {self.expr(stmt.condition)}:")
        self.nested(stmt.then_case)
        if stmt.else_case is not None:
            self.line("else:")
            self.nested(stmt.else_case)

    def do_BufferStore(self, stmt: Any) -> None:
        self.line(f"{self.place(stmt.buffer, stmt.indices)} = {self.expr(stmt.value)}")

    def do_For(self, loop: Any) -> None:
        loops, body = _nest(loop)
        if isinstance(body, s_tir.SBlockRealize) and _is_whole(body):
            self.whole(loops, body)
        elif loop.kind == ForKind.VECTORIZED:
            self.line(f"{self.name(loop.loop_var)} = np.arange({self.expr(loop.extent)})")
            self.statement(loop.body)
        else:
            start = f"{self.expr(loop.min)}, " if _constant(loop.min) != 0 else ""
            end = self.expr(loop.extent) if not start else f"{self.expr(loop.min)} + {self.expr(loop.extent)}"
            self.line(f"for {self.name(loop.loop_var)} in range({start}{end}):")
            self.nested(loop.body)

    def do_SBlockRealize(self, realize: Any) -> None:
        block = realize.block
        for buffer in block.alloc_buffers:
            self.allocate(buffer)
        if block.iter_vars and _is_whole(realize):
            self.whole([], realize)
        elif block.iter_vars:
            raise UnsupportedKernel(f"block {block.name_hint} inside other statements")
        else:
            self.statement(block.body)

    def allocate(self, buffer: Any) -> None:
        shape = "".join(f"{self.expr(extent)}, " for extent in buffer.shape)
        self.line(f"{self.name(buffer)} = np.empty(({shape}), {_dtype(buffer.dtype)})")

    # ---- a block over all its iterations

    def whole(self, loops: list[Any], realize: Any) -> None:
        block = realize.block
        rank = len(loops)
        for axis, loop in enumerate(loops):
            shape = ", ".join("-1" if a == axis else "1" for a in range(rank))
            self.line(f"{self.name(loop.loop_var)} = np.arange({self.expr(loop.extent)}).reshape({shape})")
        for var, value in zip(block.iter_vars, realize.iter_values, strict=True):
            self.line(f"{self.name(var.var)} = {self.expr(value)}")
        store = block.body
        extents = "".join(f"{self.expr(loop.extent)}, " for loop in loops)
        if block.init is None:
            self.store_whole(store.buffer, store.indices, self.expr(store.value), f"({extents})")
            return
        reduced = self.reduced_axes(loops, realize)
        operator, element = _update(store)
        dtype, init = _dtype(store.buffer.dtype), self.expr(block.init.value)
        value = f"np.broadcast_to({self.expr(element)}, ({extents}))"
        total = f"{_REDUCTIONS[operator]}.reduce({value}, axis={reduced}, initial={init}, dtype={dtype})"
        places = [self.expr(index) for index in store.indices]
        if loops:  # a place that varies has an axis for each loop
            varying = [_constant(index) is None for index in store.indices]
            places = [f"np.squeeze({p}, {reduced})" if v else p for p, v in zip(places, varying, strict=True)]
        self.line(f"{self.name(store.buffer)}[{', '.join(places) or '()'}] = {total}")

    def reduced_axes(self, loops: list[Any], realize: Any) -> tuple[int, ...]:
        axes = []
        for var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if var.iter_type == tirx.IterVar.CommReduce:
                places = [axis for axis, loop in enumerate(loops) if loop.loop_var.same_as(value)]
                if not places:
                    raise UnsupportedKernel("a reduction over part of a loop")
                axes += places
        return tuple(axes)

    def store_whole(self, buffer: Any, indices: Any, value: str, extents: str) -> None:
        places = ", ".join(self.expr(index) for index in indices)
        spread = f"np.broadcast_to({value}, {extents})" if places else f"np.reshape({value}, ())"
        self.line(f"{self.name(buffer)}[{places or '()'}] = {spread}")

    # ---- expressions

    def place(self, buffer: Any, indices: Any) -> str:
        return f"{self.name(buffer)}[{', '.join(self.expr(index) for index in indices) or '()'}]"

    def expr(self, expr: Any) -> str:
        if isinstance(expr, int):
            return str(expr)
        kind = type(expr).__name__
        if kind in ("IntImm", "FloatImm"):
            return _number(expr)
        if kind == "Var":
            return self.name(expr)
        if kind in _OPERATORS:
            return f"({self.expr(expr.a)} {_OPERATORS[kind]} {self.expr(expr.b)})"
        if kind in _FUNCTIONS:
            return f"{_FUNCTIONS[kind]}({self.expr(expr.a)}, {self.expr(expr.b)})"
        method = getattr(self, f"of_{kind}", None)
        if method is None:
            raise UnsupportedKernel(kind)
        return method(expr)

    def of_Div(self, expr: Any) -> str:
        a, b = self.expr(expr.a), self.expr(expr.b)
        return f"({a} / {b})" if "float" in str(expr.ty) else f"truncdiv({a}, {b})"

    def of_Mod(self, expr: Any) -> str:
        return f"np.fmod({self.expr(expr.a)}, {self.expr(expr.b)})"

    def of_Not(self, expr: Any) -> str:
        return f"np.logical_not({self.expr(expr.a)})"

    def of_Select(self, expr: Any) -> str:
        return self.choice(expr.condition, expr.true_value, expr.false_value)

    def of_Cast(self, expr: Any) -> str:
        return f"np.asarray({self.expr(expr.value)}).astype({_dtype(str(expr.ty))})"

    def of_Let(self, expr: Any) -> str:
        self.line(f"{self.name(expr.var)} = {self.expr(expr.value)}")
        return self.expr(expr.body)

    def of_TensorLoad(self, expr: Any) -> str:
        if not self.conditions:
            return self.place(expr.source, expr.indices)
        places = "".join(f", {self.expr(index)}" for index in expr.indices)
        return f"load({self.name(expr.source)}{places})"

    def choice(self, condition: Any, then: Any, otherwise: Any) -> str:
        """Both values are computed: what one loads may be out of bounds where it does not hold."""
        test = self.expr(condition)
        self.conditions += 1
        values = f"{self.expr(then)}, {self.expr(otherwise)}"
        self.conditions -= 1
        return f"np.where({test}, {values})"

    def of_Call(self, call: Any) -> str:
        name = getattr(call.op, "name", "").rpartition(".")[2]
        if name == "if_then_else":
            return self.choice(*call.args)
        args = [self.expr(arg) for arg in call.args if not isinstance(arg, tvm.ir.StringImm)]
        if name in _FUNCTIONS:
            return f"{_FUNCTIONS[name]}({', '.join(args)})"
        if name == "sigmoid":
            return f"(1 / (1 + np.exp(-{args[0]})))"
        if name == "rsqrt":
            return f"(1 / np.sqrt({args[0]}))"
        if name == "likely":
            return args[0]
        if name == "reinterpret":
            return f"np.asarray({args[0]}).view({_dtype(str(call.ty))})"
        if name == "call_llvm_intrin" and _intrinsic(call).startswith("llvm.expect"):
            return args[1]
        raise UnsupportedKernel(f"call of {name}")


def _nest(loop: Any) -> tuple[list[Any], Any]:
    loops = []
    while isinstance(loop, tirx.For):
        loops.append(loop)
        loop = loop.body
    return loops, loop


def _is_whole(realize: Any) -> bool:
    """Whether the block is one store, every time."""
    block = realize.block
    stores = [block.body] + ([block.init] if block.init is not None else [])
    return _constant(realize.predicate) in (1, True) and all(isinstance(store, tirx.BufferStore) for store in stores)


def _update(store: Any) -> tuple[str, Any]:
    """Operator and new element of ``x[i] = x[i] op element``."""
    kind = type(store.value).__name__
    if kind not in _REDUCTIONS:
        raise UnsupportedKernel(f"a reduction by {kind}")
    for total, element in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
        if type(total).__name__ == "TensorLoad" and total.source.same_as(store.buffer):
            return kind, element
    raise UnsupportedKernel("a reduction of something else than its own total")


def _constant(expr: Any) -> int | None:
    return int(expr.value) if type(expr).__name__ == "IntImm" else expr if isinstance(expr, int) else None


def _number(expr: Any) -> str:
    dtype = str(expr.ty)
    if dtype in ("bool", "int64"):
        return str(bool(expr.value) if dtype == "bool" else int(expr.value))
    value = repr(float(expr.value)) if "float" in dtype else str(int(expr.value))
    return f"np.{dtype}({value if value.lstrip('-') not in ('inf', 'nan') else repr(value)})"


def _dtype(name: Any) -> str:
    return f"np.dtype({str(name)!r})"


def _intrinsic(call: Any) -> str:
    return str(tvm.get_global_func("target.llvm_get_intrinsic_name")(int(call.args[0].value)))
