"""Every map of the table, in every form, against numpy."""

import numpy as np
import pytest
from programs import COLUMN, ONE, ROW, TILE, run

from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.recipe import Operand, Recipe, Step

FUNCTIONS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "square": np.square,
    "recip": np.reciprocal, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint,
    "sign": np.sign, "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
}  # fmt: skip
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-42, -1e-42, 3.4e38, 1.0, -1.5, 2.5, 0.5]
SHAPES = [
    (0, 5), (1, 1), (1, 17), (3, 15), (5, 16), (7, 17), (2, 63), (4, 64), (3, 65), (1, 1023), (2, 1024), (3, 1025),
]  # fmt: skip


def values(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("int"):
        extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max, -1, 0]
        numbers = rng.integers(-100, 100, shape).astype(dtype)
        return np.where(rng.random(shape) < 0.1, rng.choice(np.array(extremes, dtype), shape), numbers)
    numbers = (rng.standard_normal(shape) * 4).astype(dtype)
    return np.where(rng.random(shape) < 0.2, rng.choice(np.array(SPECIAL, dtype), shape), numbers)


def test_mnemonics_are_distinct():
    assert len(isa.NUMBER) == len(isa.OPCODES)


NUMBERS = ["float32", "float64", "int32", "int64", "bool"]
MAPS = [
    (op, dtype)
    for op in FUNCTIONS
    for dtype in NUMBERS
    if not {isa.mnemonic(op, dtype), isa.mnemonic(op, dtype, "vs")}.isdisjoint(isa.NUMBER)
]


def layouts_of(count):
    if count == 1:
        return [(TILE,)]
    return [(TILE, TILE), (TILE, COLUMN), (COLUMN, TILE), (ROW, TILE), (TILE, ONE), (ONE, TILE)]


@pytest.mark.parametrize("op, dtype", MAPS)
def test_maps_are_numpys_bits(op, dtype):
    function, count = FUNCTIONS[op], FUNCTIONS[op].nin
    result = "bool" if op in ("eq", "ne", "lt", "le", "gt", "ge") else dtype
    for number, (rows, columns) in enumerate(SHAPES):
        shapes = {TILE: (rows, columns), COLUMN: (rows, 1), ROW: (columns,), ONE: (1,)}
        for layouts in layouts_of(count):
            inputs = [values(dtype, shapes[layout], 10 * number + n) for n, layout in enumerate(layouts)]
            found = np.full((rows, columns), 77).astype(result)
            operands = tuple(Operand(dtype, layout) for layout in layouts)
            recipe = Recipe(operands, (), (Step(op, tuple(range(count)), dtype, result, TILE),), (count,))
            run(recipe, rows, columns, inputs, [found])
            with np.errstate(all="ignore"):
                expected = np.broadcast_to(function(*inputs), (rows, columns))
            np.testing.assert_array_equal(found, expected, err_msg=f"{op} {dtype} {layouts} {rows}x{columns}")


@pytest.mark.parametrize("source, target", [(s, t) for s in NUMBERS for t in NUMBERS if s != t])
def test_casts_between_numbers(source, target):
    x = values(source, (1, 333), 1)
    if source.startswith("float") and target.startswith("int"):
        x = np.nan_to_num(x, nan=0, posinf=9, neginf=-9).clip(-1e6, 1e6)
    found = np.empty(x.shape, target)
    run(cast(source, target), 1, 333, [x], [found])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, x.astype(target))


def cast(source, target):
    step = Step(isa.cast_mnemonic(source, target), (0,), source, target, TILE)
    return Recipe((Operand(source, TILE),), (), (step,), (1,))


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_halves_round_to_even(half):
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16) if half == "bfloat16" else np.dtype("float16")
    x = np.concatenate([values("float32", (500,), 3), np.float32([65504, 65519, 65520, 1.00390625, 1.01171875])])
    stored = np.empty(x.shape, dtype)
    back = np.empty(x.shape, "float32")
    down, up = cast("float32", half), cast(half, "float32")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(down, 1, x.size, [x], [stored])[0].astype("f4"), x.astype(dtype).astype("f4"))
    np.testing.assert_array_equal(run(up, 1, x.size, [stored], [back])[0], stored.astype("float32"))
