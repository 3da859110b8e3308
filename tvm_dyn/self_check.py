"""The self-check: each kernel as scheduled against the same kernel as it was, on random inputs.

The kernels of a model are compiled on their own, twice: with their schedules for the target, and with the loops they
had before, for a plain CPU at an optimization level that has no vectorizer. Both run on the same random inputs at
extents that the model's call sites give them. It finds faults of schedules and of code generation alike, such as the
one that `tvm_dyn.schedules.remainders` is about. Accuracy is not its subject: only gross errors count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_dyn import hardware
from tvm_dyn.errors import CompileError
from tvm_dyn.kernel_cases import Extents, NotAlone, kernel_extents, outputs, points, random_arrays, tables_of
from tvm_dyn.runtime.table import Table
from tvm_dyn.schedules import plain_prim_func
from tvm_dyn.schedules.common import collect
from tvm_dyn.schedules.dispatch import TABLE, variants_of

_CASES = 8
"""Extents a kernel is checked at, at most."""
_POINTS = 1 << 26
"""Innermost statements that the unscheduled kernel runs in all, at most (about 0.1 s), beyond the first extents."""
_TOLERANCE = {"float64": 1e-6, "float32": 1e-2, "float16": 0.1, "bfloat16": 0.2}
"""Differences that count, relative to the sum of an element's size and the root mean square of all."""
_FOREIGN = ("tirx.call_packed", "tirx.call_cpacked", "tirx.call_extern", "tirx.call_pure_extern")
_STEPS = ("tirx.floor", "tirx.ceil", "tirx.round", "tirx.trunc", "tirx.nearbyint")
_ROUNDED_SHARE = 0.01
"""Elements that may differ where kernels round or compare floats: a last bit may go either way."""


@dataclass
class Summary:
    """What a self-check looked at: the number of runs of each kernel, and why others were skipped.

    partly: why kernels that did run were not run at some of the extents.
    """

    runs: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    partly: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        runs = sum(self.runs.values())
        lines = [f"self-check: {len(self.runs)} kernels right in {runs} runs, {len(self.skipped)} skipped"]
        lines += [f"  {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines + [f"  {name}, at some extents: {reason}" for name, reason in self.partly.items()])


class SelfCheck:
    """Compares kernels before and after scheduling; ``summary`` tells of the last comparison.

    Raises `CompileError` where the target is not a CPU like the one at work.
    """

    def __init__(self, target: Target, progress: Callable[[str], None]):
        if not hardware.runs_here(target):
            raise CompileError(
                f"the self-check runs kernels, and this machine cannot run code for {target}: compile on such a "
                "machine, or for this one, or without self_check"
            )
        self.target, self.progress, self.summary = target, progress, Summary()
        self._plain_target = Target({"kind": "llvm", "opt-level": 1})

    def __call__(self, before: tvm.IRModule, after: tvm.IRModule) -> None:
        """Compare the kernels of two modules by name; raises `CompileError` on the first that differ."""
        self.summary = Summary()
        lanes = hardware.lanes(self.target, "float32")
        steps = [1, 2, 4, 6, 12, lanes - 2, lanes - 1, lanes, lanes + 1, 2 * lanes, 36]
        extents = kernel_extents(before, steps, _CASES)
        self._tables = tables_of(before)
        kernels = [(gv.name_hint, func) for gv, func in before.functions_items() if isinstance(func, PrimFunc)]
        for number, (name, func) in enumerate(kernels, 1):
            self.progress(f"self-check {number}/{len(kernels)} {name}")
            try:
                self.summary.runs[name] = self._check(name, func, after, extents.get(name, []))
            except NotAlone as reason:
                self.summary.skipped[name] = str(reason)

    def _check(self, name: str, func: PrimFunc, after: tvm.IRModule, cases: list[Extents]) -> int:
        """Compare at each of the extents, the smallest first; the number of runs."""
        if not cases:
            raise NotAlone("no call says with which extents it runs")
        ours = _compiled(_counterpart(func, name, after), self.target)
        reference = _compiled(plain_prim_func(func, self._plain_target), self._plain_target)
        runs, spent = 0, 0
        for case in sorted(cases, key=lambda case: points(func, case)):
            spent += points(func, case)
            if runs and spent > _POINTS:
                break
            try:
                self._compare(name, func, case, ours, reference)
                runs += 1
            except NotAlone as reason:
                self.summary.partly[name] = str(reason)
        if not runs:
            raise NotAlone(self.summary.partly.pop(name))
        return runs

    def _compare(self, name: str, func: PrimFunc, case: Extents, ours: Callable, reference: Callable) -> None:
        for positive in (False, True):
            arrays = random_arrays(func, case, np.random.default_rng(), positive)
            expected = _run(reference, func, case, arrays)
            for given in self._by_variant(name, func, arrays):
                found = _run(ours, func, case, given)
                for index in outputs(func):
                    difference = _difference(found[index], expected[index], _ROUNDED_SHARE if _rounds(func) else 0.0)
                    if difference is not None:
                        raise CompileError(self._message(name, func, case, difference))
            if not any(_undefined(expected[index]).any() for index in outputs(func)):
                return  # else some values were outside the domain of a function: once more without negative ones

    def _by_variant(self, name: str, func: PrimFunc, arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
        """The arrays, with a table that takes each variant in turn where the kernel decides between some."""
        if name not in self._tables:
            yield arrays
            return
        position = int(func.attrs[TABLE])
        for variant in range(len(variants_of(func))):
            table = Table(self._tables[name], (), len(variants_of(func))).of_variant(variant)
            yield [*arrays[:position], table.words, *arrays[position + 1 :]]

    def _message(self, name: str, func: PrimFunc, case: Extents, difference: str) -> str:
        extents = ", ".join(f"{var.name}={value}" for var, value in case.items()) or "constant extents"
        operators = ", ".join(block.name_hint for block in collect(func.body, SBlock) if block.name_hint != "root")
        return (
            f"self-check: kernel {name} ({operators}) for {self.target} differs from its unscheduled form at "
            f"{extents}: {difference}. The schedule or LLVM's code for this CPU is wrong: compile for another `mcpu` "
            '(such as x86-64-v3) or with {"opt-level": 1} in the target, check again, and report the kernel'
        )


def _counterpart(func: PrimFunc, name: str, after: tvm.IRModule) -> PrimFunc:
    """The kernel of the same name that takes the same tensors; raises `NotAlone` where there is none."""
    scheduled = next((f for gv, f in after.functions_items() if gv.name_hint == name), None)
    if scheduled is None or [_kind(p) for p in func.params] != [_kind(p) for p in scheduled.params]:
        raise NotAlone("its operands are others once it is scheduled")
    if any(getattr(call.op, "name", "") in _FOREIGN for call in collect(func.body, ir.Call)):
        raise NotAlone("opaque: it calls functions outside")
    return scheduled


def _kind(param: tirx.Var) -> tuple:
    return (str(param.ty.dtype), len(param.ty.shape)) if isinstance(param.ty, tirx.BufferType) else (str(param.ty),)


def _compiled(func: PrimFunc, target: Target) -> Callable:
    alone = func.with_attr({"global_symbol": "main", "tirx.noalias": True})
    try:
        return tvm.compile(tvm.IRModule({"main": alone}), target)["main"]
    except Exception as error:  # whatever TVM raises: building the model meets the same, and says so
        raise NotAlone(f"it does not compile alone: {error}") from error


def _run(kernel: Callable, func: PrimFunc, case: Extents, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The tensors after a run on copies of ``arrays``."""
    copies = [tvm.runtime.tensor(array) for array in arrays]
    rest = iter(copies)
    kernel(*[next(rest) if isinstance(param.ty, tirx.BufferType) else case[param] for param in func.params])
    return [copy.numpy() for copy in copies]


def _rounds(func: PrimFunc) -> bool:
    """Whether the kernel makes other values of floats in steps: by rounding, casting or comparing."""
    if any(getattr(call.op, "name", "") in _STEPS for call in collect(func.body, ir.Call)):
        return True
    if any(_is_float(cast.value) and not _is_float(cast) for cast in collect(func.body, tirx.Cast)):
        return True
    kinds = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
    return any(_is_float(node.a) for kind in kinds for node in collect(func.body, kind))


def _is_float(expr: ir.Expr) -> bool:
    return "float" in str(expr.ty)


def _undefined(array: np.ndarray) -> np.ndarray:
    return np.isnan(array.astype("float64"))


def _difference(found: np.ndarray, expected: np.ndarray, allowed: float) -> str | None:
    """What differs beyond rounding in more than the ``allowed`` share of elements, None where nothing does."""
    if expected.dtype.name in _TOLERANCE:
        error, wrong = _float_errors(
            found.astype("float64"), expected.astype("float64"), _TOLERANCE[expected.dtype.name]
        )
    else:
        wrong = found != expected
        error = np.abs(found.astype("float64") - expected.astype("float64"))
    if not expected.size or wrong.mean() <= allowed:
        return None
    worst = np.unravel_index(np.argmax(np.where(wrong, np.nan_to_num(error, nan=np.inf), -1.0)), error.shape)
    place = ", ".join(str(int(i)) for i in worst)
    return (
        f"{int(wrong.sum())} of {wrong.size} elements of a {expected.dtype} output, by {error[worst]:.3g} "
        f"at [{place}], which is {found[worst]} instead of {expected[worst]}"
    )


def _float_errors(found: np.ndarray, expected: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    finite = expected[np.isfinite(expected)]
    typical = np.sqrt(np.mean(finite**2)) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(found - expected))
        return error, ~same & ~(np.isfinite(expected) & (error <= tolerance * (np.abs(expected) + typical)))
