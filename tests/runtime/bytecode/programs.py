"""Small helpers: recipes run on numpy arrays."""

from array import array

import numpy as np

from tvm_dyn.runtime.bytecode.encode import encode
from tvm_dyn.runtime.bytecode.machine import Launch
from tvm_dyn.runtime.bytecode.program import Program, Space, Steps
from tvm_dyn.runtime.bytecode.recipe import Layout, Operand, Recipe, Step

TILE, COLUMN, ROW, ONE = Layout.TILE, Layout.COLUMN, Layout.ROW, Layout.ONE


def steps_of(layout, itemsize, columns):
    return {
        TILE: Steps((itemsize * columns,), itemsize),
        COLUMN: Steps((itemsize,), 0),
        ROW: Steps((0,), itemsize),
        ONE: Steps((0,), 0),
    }[layout]


def bind(recipe, rows, columns, inputs, outputs):
    """A program over rows x columns and the bases of its operands."""
    code = encode(recipe)
    layouts = [operand.layout for operand in recipe.inputs] + [recipe.layout(value) for value in recipe.outputs]
    steps = [steps_of(layout, a.itemsize, columns) for layout, a in zip(layouts, [*inputs, *outputs], strict=True)]
    bases = array("q", [a.ctypes.data for a in inputs] + code.constants + [a.ctypes.data for a in outputs])
    return Program(code, Space((rows,), columns), steps), bases


def run(recipe, rows, columns, inputs, outputs):
    program, bases = bind(recipe, rows, columns, inputs, outputs)
    Launch([[program]]).run(bases)
    return outputs


def chain(dtype, layouts, *steps):
    """A recipe of `steps`, (op, args) each, whose last result is the output."""
    made = tuple(Step(op, args, dtype, dtype, TILE) for op, args in steps)
    inputs = tuple(Operand(dtype, layout) for layout in layouts)
    return Recipe(inputs, (), made, (len(layouts) + len(steps) - 1,))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")
