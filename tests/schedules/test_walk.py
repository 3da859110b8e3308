"""The compiled walk of a table takes the same variant as the table in Python."""

import random

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx

from tvm_dyn.hardware import host_target
from tvm_dyn.runtime.table import Table
from tvm_dyn.runtime.variants import Leaf, Split
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.walk import table_buffer, walk

ROWS = [[0, 11], [1, 22], [1, 33]]


def compiled(words: np.ndarray, extents: int):
    """What the walk finds, as a function of the table and the extents."""
    table, found = table_buffer(words), tirx.decl_buffer([2], "int64", "found")
    given = [tirx.Var(f"e{k}", "int64") for k in range(extents)]

    def keep(copy, number):
        return emit.seq(emit.store(found, copy, 0), emit.store(found, number, 1))

    block = s_tir.SBlock([], [], [], "root", walk(table, given, 2, keep))
    body = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
    func = tirx.PrimFunc([table, found, *given], body).with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": func}), host_target())["main"]


@pytest.mark.parametrize("names", [("rows",), ("rows", "columns"), ("batch", "rows", "columns")])
def test_the_walk_agrees_with_the_table(names):
    generator = random.Random(len(names))

    def tree(levels: int):
        if levels == 0:
            return Leaf(generator.randrange(3))
        below, above = tree(levels - 1), tree(levels - 1)
        return Split(generator.choice(names), generator.randrange(64), below, above)

    table = Table.create(tree(4), names, ROWS, group=0)
    walked = compiled(table.words, len(names))
    words = tvm.runtime.tensor(table.words)
    live = Table(np.from_dlpack(words), names, 3)
    for _ in range(4):
        for _ in range(50):
            values = [generator.choice([0, 1, 63, 64, generator.randrange(64)]) for _ in names]
            found = tvm.runtime.tensor(np.zeros(2, "int64"))
            walked(words, found, *values)
            variant = live.decide(dict(zip(names, values, strict=True)))
            assert found.numpy().tolist() == ROWS[variant]
        live.exchange(tree(4))
