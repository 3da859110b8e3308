"""Extents and random arrays that a kernel may meet: what it takes to run it on its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx
from tvm.s_tir import SBlock
from tvm.tirx import IterVar, PrimFunc

from tvm_dyn.passes.shape_facts import FunctionFacts
from tvm_dyn.passes.shape_types import dims_of
from tvm_dyn.runtime.dtypes import numpy_dtype
from tvm_dyn.schedules.common import as_int, collect, loads, stores, substitute
from tvm_dyn.schedules.dispatch import TABLE
from tvm_dyn.symbolic import evaluate
from tvm_dyn.symbolic.sampling import draw_samples

Extents = dict[tirx.Var, int]
"""The value of each scalar variable in a kernel's signature."""

_CALLS = ("relax.call_tir", "relax.call_tir_inplace")
_ASSERTS = ("relax.assert_op", "relax.run.assert_op")
_SCALES = (1, 16, 256)
_INTEGERS = 8
"""Integers stay below this where no index is made of them."""


class NotAlone(Exception):
    """Why a kernel cannot be run on its own."""


def kernel_extents(mod: tvm.IRModule, steps: list[int], count: int) -> dict[str, list[Extents]]:
    """For each kernel that ``mod`` calls, the extents that its call sites give it when the model's own dims vary.

    The dims take up to ``count`` values from ``steps`` upwards of their least, such that the ranges, divisors and
    checks of the model hold.
    """
    found: dict[str, list[Extents]] = {}
    for function in mod.functions.values():
        if not isinstance(function, relax.Function):
            continue
        facts = _facts(function)
        samples = _samples(facts, steps, count)
        for call in collect(function, ir.Call):
            if getattr(call.op, "name", "") in _CALLS:
                kernel = call.args[0]
                known = found.setdefault(kernel.name_hint, [])
                cases = (at_call(call, mod[kernel], values) for values in samples)
                known += [case for case in cases if case is not None and not _among(case, known)]
    return found


def tables_of(mod: tvm.IRModule) -> dict[str, np.ndarray]:
    """The decision tables that ``mod`` gives to kernels of several variants."""
    found: dict[str, np.ndarray] = {}
    for function in mod.functions.values():
        for call in collect(function, ir.Call) if isinstance(function, relax.Function) else ():
            func = mod[call.args[0]] if getattr(call.op, "name", "") in _CALLS else None
            if func is not None and TABLE in (func.attrs or {}):
                found[call.args[0].name_hint] = call.args[1].fields[int(func.attrs[TABLE])].value.numpy()
    return found


def _samples(facts: Any, steps: list[int], count: int) -> list[dict[ir.Var, int]]:
    """Values of a function's dims; larger ones where its windows and slices are larger than small inputs."""
    found: list[dict[ir.Var, int]] = [] if facts.order else [{}]
    for scale in _SCALES if facts.order else ():
        found += draw_samples(facts, facts.order, [step * scale for step in steps], count)
        if len(found) >= count // 2:
            break
    return found


def _facts(function: relax.Function) -> Any:
    """What holds of the dims of one function once all its checks have passed."""
    facts = FunctionFacts.of_function(function)
    for cast in collect(function, relax.MatchCast):
        facts.enter(cast.var)
    for call in collect(function, ir.Call):
        name = getattr(call.op, "name", None) or getattr(call.op, "global_symbol", "")
        if name in _ASSERTS and ir.is_prim_expr(call.args[0]):
            facts.assume(call.args[0])
        if name in _CALLS:
            for ty in _results(call):
                facts.enter(relax.Var("result", ty))
    return facts.known


def _results(call: ir.Call) -> list[ir.Type]:
    ty = call.ty_args[0]
    return list(ty.fields) if isinstance(ty, ir.TupleType) else [ty]


def at_call(call: ir.Call, kernel: PrimFunc, values: Mapping[ir.Var, int]) -> Extents | None:
    """The kernel's variables at one call, None where the call's dims are not known."""
    arguments = [*call.args[1], *_results(call)]
    arguments += list(call.args[2].values) if len(call.args) > 2 else []
    extents: Extents = {}
    try:
        for param, given in zip(kernel.params, arguments, strict=True):
            if not isinstance(param.ty, tirx.BufferType):
                extents[param] = evaluate(given, values)
                continue
            dims = dims_of(given if isinstance(given, ir.Type) else given.ty)
            for dim, value in zip(param.ty.shape, dims or [], strict=True):
                if isinstance(dim, tirx.Var):
                    extents[dim] = evaluate(value, values)
    except (KeyError, ValueError, ArithmeticError, NotImplementedError):
        return None
    return extents


def _among(case: Extents, cases: list[Extents]) -> bool:
    return any([*case.values()] == [*other.values()] for other in cases)


def shapes(func: PrimFunc, extents: Extents) -> list[tuple[int, ...]]:
    """The shape of each tensor of a kernel; raises `NotAlone` where one is open or negative."""
    try:
        found = [tuple(evaluate(dim, extents) for dim in tensor.ty.shape) for tensor in tensors(func)]
    except (KeyError, ArithmeticError, NotImplementedError) as error:
        raise NotAlone(f"an extent is not known: {error}") from error
    if any(extent < 0 for shape in found for extent in shape):
        raise NotAlone("an extent is negative")
    return found


def tensors(func: PrimFunc) -> list[tirx.Var]:
    """The tensor parameters, outputs included."""
    return [param for param in func.params if isinstance(param.ty, tirx.BufferType)]


def outputs(func: PrimFunc) -> list[int]:
    """Which tensors the kernel writes."""
    written = [store.buffer for store in stores(func.body)]
    return [n for n, tensor in enumerate(tensors(func)) if any(tensor.same_as(buffer) for buffer in written)]


def points(func: PrimFunc, extents: Extents) -> int:
    """How often the innermost statements run, about."""
    total = 0
    for axes in _axes(func):
        try:
            total += int(np.prod([max(evaluate(iv.dom.extent, extents), 0) for iv in axes], dtype="float64"))
        except (KeyError, ArithmeticError, NotImplementedError):
            continue
    return total


def _axes(func: PrimFunc) -> Iterator[list[IterVar]]:
    return (list(block.iter_vars) for block in collect(func.body, SBlock))


def random_arrays(func: PrimFunc, extents: Extents, generator: np.random.Generator, positive: bool) -> list[np.ndarray]:
    """One array for each tensor: floats of either sign, or ``positive``; integers that are safe as indices.

    Raises `NotAlone` where no integers are known to be, and where the kernel reads what is not there.
    """
    _refuse_stray_reads(func, extents)
    low = 1 if _divides_by_integers(func) else 0
    high = _index_limit(func, extents)
    if high <= low:
        raise NotAlone("data-dependent: no index is known to be in range")
    return [
        _array(generator, numpy_dtype(str(tensor.ty.dtype)), shape, (low, high), positive)
        for tensor, shape in zip(tensors(func), shapes(func, extents), strict=True)
    ]


def _array(generator: np.random.Generator, dtype: np.dtype, shape: tuple, limits: tuple, positive: bool) -> np.ndarray:
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return generator.integers(limits[0], limits[1], shape).astype(dtype)
    values = generator.random(shape, "float32") + 0.5 if positive else generator.standard_normal(shape, "float32")
    return np.asarray(values).astype(dtype)


def _refuse_stray_reads(func: PrimFunc, extents: Extents) -> None:
    """Raise `NotAlone` where a statement without conditions reads beyond a tensor in its first or last iteration."""
    for block in collect(func.body, SBlock):
        sizes = {axis.var: evaluate(axis.dom.extent, extents) for axis in block.iter_vars}
        calls = {getattr(call.op, "name", "") for call in collect(block.body, ir.Call)}
        conditional = "prim.if_then_else" in calls or collect(block.body, tirx.Select)
        if conditional or not sizes or min(sizes.values()) < 1 or collect(block.body, SBlock):
            continue
        for corner in (dict.fromkeys(sizes, 0), {var: size - 1 for var, size in sizes.items()}):
            _refuse_stray_read(block, {**extents, **corner})


def _refuse_stray_read(block: SBlock, values: Extents) -> None:
    for load in loads(block.body):
        for index, size in zip(load.indices, load.source.shape, strict=True):
            try:
                inside = 0 <= evaluate(index, values) < evaluate(size, values)
            except (KeyError, ArithmeticError, NotImplementedError):
                continue  # made of loaded values
            if not inside:
                raise NotAlone(f"block {block.name_hint} reads element {index} of {size} at extents the model allows")


def _divides_by_integers(func: PrimFunc) -> bool:
    kinds = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
    return any(loads(node.b) for kind in kinds for node in collect(func.body, kind))


def _index_limit(func: PrimFunc, extents: Extents) -> int:
    """The least bound that keeps every index made of loaded values in range; `NotAlone` where none is sure to."""
    stored = [index for store in stores(func.body) for index in store.indices]
    if any(loads(index) for index in stored):
        raise NotAlone("data-dependent: it scatters")
    if any(loads(loop.extent) for loop in collect(func.body, tirx.For)):
        raise NotAlone("data-dependent: a loop runs as often as its data say")
    reads = [
        (index, evaluate(size, extents))
        for load in loads(func.body)
        for index, size in zip(load.indices, load.source.shape, strict=True)
        if loads(index)
    ]
    limit = min([size for _, size in reads], default=_INTEGERS)
    if not all(_stays_below(func, index, size, limit, extents) for index, size in reads):
        raise NotAlone("data-dependent: no index is known to be in range")
    return limit


def _stays_below(func: PrimFunc, index: ir.Expr, size: int, limit: int, extents: Extents) -> bool:
    """Whether ``index`` is in [0, size) for loaded values in [0, limit)."""
    analyzer = sym.Analyzer()
    for axes in _axes(func):
        for axis in axes:
            extent = as_int(axis.dom.extent)
            if extent is None:
                extent = evaluate(axis.dom.extent, extents)
            analyzer.bind(axis.var, ir.Range(tirx.const(0, "int64"), tirx.const(max(extent, 1), "int64")))

    def loaded(load: ir.TensorLoad) -> tirx.Var:
        value = tirx.Var("loaded", load.ty)
        analyzer.bind(value, ir.Range(tirx.const(0, str(load.ty)), tirx.const(limit, str(load.ty))))
        return value

    if any(not str(load.ty).startswith(("int", "uint")) for load in loads(index)):
        return False
    index = tvm_ffi.structural_map(index, (ir.TensorLoad, loaded))
    index = substitute(index, {var: tirx.const(value, str(var.ty)) for var, value in extents.items()})
    bound = analyzer.const_int_bound(analyzer.simplify(index))
    return bound.min_value >= 0 and bound.max_value < size
