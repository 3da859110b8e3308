"""A Relax function as steps of Python on lazy arrays: control flow is Python's, everything else is recorded.

    y = R.multiply(x, x)                        frame[3] = lazy.multiply(frame[0], frame[0])
    if c:                                       if bool(frame[2]): ...
    z = R.call_tir(cls.take, (t, i), ...)       frame[5] = kernel(frame[4], frame[1])

A function is read once, as every look at Relax's nodes costs a microsecond. Kernels are Python on numpy arrays; one
that cannot be (`kernel_source.UnsupportedKernel`) is compiled on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar, Op

from tvm_dyn import lazy
from tvm_dyn.errors import CompileError
from tvm_dyn.lazy import Array
from tvm_dyn.lazy.graph import by_numpy, leaf
from tvm_dyn.tiers import operators
from tvm_dyn.tiers.extents import Dims, extent_function
from tvm_dyn.tiers.kernel_source import UnsupportedKernel, kernel_function

Frame = dict[Any, Any]
Step = Callable[[Frame], None]
Value = Callable[[Frame], Any]

_DIMS = "dims"


class Executor:
    """Runs ``main`` of a module whose operators are the table's or kernels (see `pass_for_executor`).

    fallbacks: what the virtual machine has no opcode for, each with who computes it: "numpy", or "compiled".
    """

    def __init__(self, module: tvm.IRModule) -> None:
        self._module = module
        self._functions: dict[str, _Function] = {}
        self._kernels: dict[str, Callable[..., None]] = {}
        self.fallbacks: dict[str, str] = {}
        self._main = self.function("main")

    def __call__(self, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        result = self._main(tuple(Array(leaf(arg)) for arg in args))
        arrays = list(result) if isinstance(result, tuple) else [result]
        lazy.sync(*arrays)
        return [array.numpy() for array in arrays]

    def function(self, name: str) -> _Function:
        if name not in self._functions:
            self._functions[name] = _Function(self, self._module[name])
            self._functions[name].read()  # may call itself
        return self._functions[name]

    def kernel(self, variable: GlobalVar) -> Callable[..., None]:
        name = str(variable.name_hint)
        if name not in self._kernels:
            self._kernels[name] = self._make_kernel(name, self._module[variable])
        return self._kernels[name]

    def _make_kernel(self, name: str, func: tirx.PrimFunc) -> Callable[..., None]:
        try:
            kernel = kernel_function(func)
            self.fallbacks[name] = "numpy"
        except UnsupportedKernel as reason:
            kernel = _compiled(func)
            self.fallbacks[name] = f"compiled ({reason})"
        return lambda *args: by_numpy(name, kernel, *args)


def _compiled(func: tirx.PrimFunc) -> Callable[..., None]:
    """The kernel by LLVM, on numpy arrays."""
    library = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target="llvm")
    main = library["main"]

    def run(*args: Any) -> None:
        tensors = [tvm.runtime.tensor(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        main(*tensors)
        for arg, tensor in zip(args, tensors, strict=True):
            if isinstance(arg, np.ndarray) and arg.flags.writeable:
                arg[...] = tensor.numpy()

    return run


class _Function:
    """A Relax function, read: parameters, steps and result."""

    def __init__(self, executor: Executor, func: relax.Function) -> None:
        self._executor, self._func = executor, func
        self._steps: list[Step] = []
        self._result: Value = lambda frame: None

    def read(self) -> None:
        self._match = [_matcher(param, param.ty) for param in self._func.params]
        self._steps, self._result = self._sequence(self._func.body)

    def __call__(self, args: tuple[Any, ...]) -> Any:
        frame: Frame = {_DIMS: {}}
        for match, arg in zip(self._match, args, strict=True):
            match(frame, arg)
        return _run(self._steps, self._result, frame)

    # ---- bindings

    def _sequence(self, expr: Any) -> tuple[list[Step], Value]:
        if not isinstance(expr, relax.SeqExpr):
            return [], self._value(expr)
        steps = [self._binding(binding) for block in expr.blocks for binding in block.bindings]
        return steps, self._value(expr.body)

    def _binding(self, binding: Any) -> Step:
        if isinstance(binding, relax.MatchCast):
            match, value = _matcher(binding.var, binding.ty), self._value(binding.value)
            return lambda frame: match(frame, value(frame))
        key, value = binding.var, self._bound(binding.value)

        def step(frame: Frame) -> None:
            frame[key] = value(frame)

        return step

    def _bound(self, expr: Any) -> Value:
        if isinstance(expr, relax.If):
            condition = self._value(expr.cond)
            then, otherwise = self._sequence(expr.true_branch), self._sequence(expr.false_branch)
            return lambda frame: _run(*(then if bool(condition(frame)) else otherwise), frame)
        if isinstance(expr, Call):
            return self._call(expr)
        return self._value(expr)

    def _value(self, expr: Any) -> Value:
        """What an expression without a computation stands for."""
        if isinstance(expr, relax.Tuple):
            fields = [self._value(field) for field in expr.fields]
            return lambda frame: tuple([field(frame) for field in fields])
        if isinstance(expr, relax.TupleGetItem):
            whole, index = self._value(expr.tuple_value), int(expr.index)
            return lambda frame: whole(frame)[index]
        if isinstance(expr, relax.ShapeExpr):
            extents = [extent_function(extent) for extent in expr.values]
            return lambda frame: tuple([extent(frame[_DIMS]) for extent in extents])
        if isinstance(expr, Call):
            return self._call(expr)
        if isinstance(expr, tvm.ir.Constant) and hasattr(expr.value, "numpy"):
            array = Array(leaf(expr.value.numpy()))
            return lambda frame: array
        if isinstance(expr, relax.Var) and not tvm.ir.is_prim_expr(expr):
            return lambda frame: frame[expr]
        if tvm.ir.is_prim_expr(expr):
            extent = extent_function(expr)
            return lambda frame: extent(frame[_DIMS])
        raise CompileError(f"tier 'bytecode' cannot evaluate a {type(expr).__name__}")

    # ---- calls

    def _call(self, call: Any) -> Value:
        if isinstance(call.op, GlobalVar):
            name, args = str(call.op.name_hint), [self._value(arg) for arg in call.args]
            target = self._executor.function(name)
            return lambda frame: target(tuple([arg(frame) for arg in args]))
        name = call.op.name if isinstance(call.op, Op) else ""
        if name == "relax.call_tir":
            return self._call_tir(call)
        if name == "relax.assert_op":
            return self._assert(call)
        if name == "relax.shape_of":
            array = self._value(call.args[0])
            return lambda frame: array(frame).shape
        if not operators.supports(call):
            raise CompileError(f"tier 'bytecode' has no operator {name or call.op}")
        run = operators.OPERATORS[name](call)
        if name in operators.NUMPY:
            self._executor.fallbacks[operators.NUMPY[name]] = "numpy"
        values = [self._value(arg) for arg in call.args]
        if len(values) == 1:
            (only,) = values
            return lambda frame: run(only(frame))
        if len(values) == 2:
            first, second = values
            return lambda frame: run(first(frame), second(frame))
        return lambda frame: run(*[value(frame) for value in values])

    def _call_tir(self, call: Any) -> Value:
        kernel = self._executor.kernel(call.args[0])
        arguments = self._value(call.args[1])
        extra = self._value(call.args[2]) if len(call.args) > 2 else lambda frame: ()
        types = call.ty_args[0]
        single = not isinstance(types, relax.TupleType)
        outputs = [
            ([extent_function(extent) for extent in each.shape.values], str(each.dtype))
            for each in ([types] if single else types.fields)
        ]

        def run(frame: Frame) -> Any:
            inputs = arguments(frame)
            lazy.sync(*[each for each in inputs if isinstance(each, Array)])
            dims = frame[_DIMS]
            results = [np.empty([extent(dims) for extent in shape], dtype) for shape, dtype in outputs]
            with np.errstate(all="ignore"):
                kernel(*[_plain(each) for each in inputs], *extra(frame), *results)
            arrays = tuple([Array(leaf(result)) for result in results])
            return arrays[0] if single else arrays

        return run

    def _assert(self, call: Any) -> Value:
        (text,) = [str(arg.value) for arg in call.args if isinstance(arg, tvm.ir.StringImm)]
        condition, *values = [self._value(arg) for arg in call.args if not isinstance(arg, tvm.ir.StringImm)]

        def check(frame: Frame) -> None:
            if not condition(frame):
                raise ValueError(text.format(*[value(frame) for value in values]))

        return check


def _plain(value: Any) -> Any:
    return value.numpy() if isinstance(value, Array) else value


def _run(steps: Sequence[Step], result: Value, frame: Frame) -> Any:
    for step in steps:
        step(frame)
    return result(frame)


def _matcher(variable: Any, ty: Any) -> Callable[[Frame, Any], None]:
    """Binds a variable, and the symbols of its type by the value's shape; raises `ValueError` where it has another."""
    shape = getattr(getattr(ty, "shape", None), "values", None)
    if isinstance(ty, relax.ShapeType):
        shape = ty.values
    extents = [(extent if isinstance(extent, tirx.Var) else None, extent_function(extent)) for extent in shape or ()]

    def match(frame: Frame, value: Any) -> None:
        frame[variable] = value
        dims: Dims = frame[_DIMS]
        found = value.shape if isinstance(value, Array) else value
        for axis, (symbol, extent) in enumerate(extents):
            if symbol is not None and symbol not in dims:
                dims[symbol] = found[axis]
            elif extent(dims) != found[axis]:
                raise ValueError(f"axis {axis} of {variable} has {found[axis]} elements where {extent(dims)} must be")

    return match
