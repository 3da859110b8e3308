"""Fuzz: programs made of random calls of the public functions, on arrays beside forbidden pages, never crash."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "less", "greater_equal", "pow",
          "logical_and", "where", "matmul", "atan2"]  # fmt: skip
UNARY = ["exp", "log", "tanh", "sqrt", "abs", "negative", "square", "floor", "round", "sign", "isnan", "erf", "gelu",
         "sigmoid", "relu", "softmax", "standardize", "logical_not", "sin"]  # fmt: skip
REDUCE = ["sum", "max", "min", "prod", "any", "all", "argmax", "argmin", "mean", "var", "std", "cumulative_sum"]
DTYPES = ["float32", "float32", "float64", "int32", "int64", "bool", "float16"]
EXTENTS = [0, 1, 2, 3, 7, 16, 63, 64, 65, 130]
EXPECTED = (ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError)


class Fuzz:
    """Random programs; every array is an input, a result, or a view of one."""

    def __init__(self, seed, memories):
        from tvm_dyn import lazy

        self.xp, self.rng, self.memories = lazy, np.random.default_rng(seed), memories

    def program(self):
        arrays = [self.input() for _ in range(self.rng.integers(1, 4))]
        for _ in range(self.rng.integers(1, 10)):
            try:
                arrays.append(self.step(arrays))
            except EXPECTED:
                continue
        for array in arrays[-3:]:
            try:
                array.numpy()
            except EXPECTED:
                continue

    def input(self):
        rank = self.rng.integers(0, 4)
        shape = tuple(int(n) for n in self.rng.choice(EXTENTS, rank))
        while np.prod(shape) > 20000:
            shape = shape[1:]
        dtype = self.pick(DTYPES)
        memory = self.memories[self.rng.integers(len(self.memories))]
        array = memory.array(shape, dtype, at_end=bool(self.rng.integers(2)))
        array[...] = self.rng.integers(-200, 200, shape).astype(dtype)
        return self.xp.asarray(array)

    def step(self, arrays):
        kind = self.pick(["binary", "binary", "unary", "reduce", "view", "index", "cast"])
        a, b = arrays[self.rng.integers(len(arrays))], arrays[self.rng.integers(len(arrays))]
        return getattr(self, kind)(a, b)

    def binary(self, a, b):
        name = self.pick(BINARY)
        if np.prod(np.broadcast_shapes(a.shape, b.shape)) > 20000:
            return a
        return self.xp.where(a != 0, a, b) if name == "where" else getattr(self.xp, name)(a, b)

    def unary(self, a, b):
        return getattr(self.xp, self.pick(UNARY))(a)

    def reduce(self, a, b):
        axis = self.pick([None, 0, 1, -1, 2, 99])
        return getattr(self.xp, self.pick(REDUCE))(a, axis=axis)

    def view(self, a, b):
        return self.pick(
            [
                lambda: a.T,
                lambda: a[::-2],
                lambda: a[..., None],
                lambda: a[1:],
                lambda: self.xp.reshape(a, (-1, 2)),
                lambda: self.xp.permute_dims(a, tuple(self.rng.permutation(a.ndim))),
                lambda: self.xp.broadcast_to(a, (3, *a.shape)),
            ]
        )()

    def index(self, a, b):
        places = self.rng.integers(-150, 150, self.rng.integers(0, 9))
        return self.xp.take(a, self.xp.asarray(places), axis=0)

    def cast(self, a, b):
        return a.astype(self.pick(DTYPES))

    def pick(self, choices):
        return choices[self.rng.integers(len(choices))]


def fuzz(first, count):
    """Run `count` programs; results are also placed beside forbidden pages."""
    from guarded import GuardedMemory

    from tvm_dyn.lazy import plan

    memories = [GuardedMemory() for _ in range(4)]
    results = [GuardedMemory() for _ in range(64)]
    made = 0

    class Guarded:
        """numpy, but that new arrays lie in guarded memory; the latest 64 of them are used at a time."""

        def __getattr__(self, name):
            return getattr(np, name)

        def empty(self, shape, dtype):
            nonlocal made
            made += 1
            if np.prod(shape) * np.dtype(dtype).itemsize > results[0].size:
                return np.empty(shape, dtype)
            return results[made % len(results)].array(shape, dtype, at_end=bool(made % 2))

    plan.np = Guarded()
    with np.errstate(all="ignore"):
        for seed in range(first, first + count):
            Fuzz(seed, memories).program()
    return made


def _run(first, count, timeout):
    code = f"import test_lazy_fuzz; print(test_lazy_fuzz.fuzz({first}, {count}))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True,
        timeout=timeout, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > count // 4, "hardly anything was computed by the machine"


def test_random_programs_stay_inside_their_arrays():
    _run(0, 1500, 120)


@pytest.mark.slow
def test_a_hundred_thousand_random_programs_stay_inside_their_arrays():
    _run(10_000, 100_000, 3600)


def test_the_guard_pages_work():
    code = (
        "from guarded import GuardedMemory; import ctypes;"
        "a = GuardedMemory().array((8,), 'float32');"
        "ctypes.memmove(a.ctypes.data, a.ctypes.data, 33); ctypes.string_at(a.ctypes.data, 33)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False)
    assert done.returncode < 0
