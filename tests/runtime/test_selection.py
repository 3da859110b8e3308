"""What a library takes at given dims, and what it tells of its groups."""

import json

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import parser

import tvm_dyn
from tvm_dyn.hardware import host_target
from tvm_dyn.runtime.selection import extents_at
from tvm_dyn.runtime.variants import Leaf, Split

RNG = np.random.default_rng(0)
MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[batch, seq, 64] x) => (float[batch, seq, 64] y)
<float[64, 64] w = {%s}>
{ h = MatMul(x, w)
  y = Relu(h) }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    weights = ",".join(str(v) for v in RNG.standard_normal(64 * 64).astype("float32"))
    compiled = tvm_dyn.compile(parser.parse_model(MODEL % weights), host_target(2))
    path = tmp_path_factory.mktemp("library") / "model.so"
    compiled.export(path)
    return tvm_dyn.load(path)


def test_groups_tell_their_extents_in_the_dims_of_the_model(library):
    (group,) = library.selection.groups
    assert extents_at(group, {"batch": 3, "seq": 5}) == [{"batch": 1, "rows": 15, "columns": 64, "depth": 64}]
    assert extents_at(group, {"batch": 3}) == []


def test_select_from_any_language_agrees(library):
    (group,) = library.selection.groups
    chosen = tvm_ffi.get_global_func("tvm_dyn.select")
    table = library.selection.tables[group.name]
    for rows in (0, 1, 127, 128, 129, 10**6):
        assert chosen(library._module, group.name, rows) == table.decide({"rows": rows})
    with pytest.raises(ValueError, match="decides by rows: 2 extents given"):
        chosen(library._module, group.name, 1, 2)
    with pytest.raises(ValueError, match="no fusion group 'other'"):
        chosen(library._module, "other", 1)


def test_an_exchange_counts_for_every_machine_of_the_library(library):
    (group,) = library.selection.groups
    x = RNG.standard_normal((2, 5, 64)).astype("float32")
    (before,) = library(x)
    table = library.selection.tables[group.name]
    usual = table.tree()
    try:
        for tree in (Leaf(1), Split("rows", 10, Leaf(1), Leaf(0))):
            table.exchange(tree)
            np.testing.assert_array_equal(library(x)[0], before)
            words = tvm.relax.VirtualMachine(library._module, tvm.cpu())["tvm_dyn_tables"]()[0]
            np.testing.assert_array_equal(np.from_dlpack(words), table.words)
    finally:
        table.exchange(usual)


def test_the_report_is_json(library):
    report = json.loads(json.dumps(library.report()))
    (group,) = report["groups"]
    assert group["name"] in library.groups and group["ops"][0] == "matmul" and group["backbone"] == "product"
    assert [v["source"] for v in group["variants"]] == ["default", "default"]
    assert group["variants"][0]["tile"]["tasks"] == 1 and group["variants"][0]["name"].startswith("PackedTile(lanes=")
