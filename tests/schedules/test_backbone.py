"""The backbone of a kernel: which block it is, the kernel in normal form, and what makes two backbones the same."""

import tvm
import tvm_ffi
from backbones import backbone, conv, dense
from tvm import te, tirx, topi

from tvm_dyn.schedules.backbone import NAME, Backbone, kind, normal_form
from tvm_dyn.schedules.common import collect
from tvm_dyn.schedules.stage import parse


def softmax() -> tirx.PrimFunc:
    x = te.placeholder((te.var("m", dtype="int64"), 16), name="x")
    return te.create_prim_func([x, topi.nn.softmax(x)])


def same(left: tirx.PrimFunc, right: tirx.PrimFunc) -> bool:
    return tvm_ffi.structural_equal(backbone(left), backbone(right), map_free_vars=True)


def test_kinds():
    kinds = [kind(parse(func) or []) for func in (dense(), conv(), softmax())]
    assert kinds == [Backbone.PRODUCT, Backbone.WINDOW, Backbone.ROWS]
    x = te.placeholder((te.var("m", dtype="int64"),), name="x")
    assert kind(parse(te.create_prim_func([x, topi.exp(x)])) or []) == Backbone.MAP


def test_the_normal_form_names_the_backbone_and_changes_nothing_else():
    func = dense(epilogue=topi.tanh)
    named = normal_form(func)[0]
    names = [block.name_hint for block in collect(named.body, tvm.s_tir.SBlock)]
    assert NAME in names and "matmul" not in names
    assert len(names) == len(collect(func.body, tvm.s_tir.SBlock))
    tvm.s_tir.Schedule(named)  # raises where the function is not well formed


def test_prologue_epilogue_and_names_of_symbols_make_no_difference():
    assert same(dense("m"), dense("n"))
    assert same(dense(), dense(epilogue=topi.tanh))
    assert same(dense(), dense(prologue=topi.exp))
    assert same(dense(epilogue=lambda x: topi.transpose(topi.add(x, x))), dense())


def test_extents_and_types_do():
    assert not same(dense(width=8), dense(width=9))
    assert not same(conv(), conv("float64"))


def test_kernels_without_a_single_product_or_window_have_none():
    assert normal_form(softmax()) is None
    x = te.placeholder((te.var("m", dtype="int64"),), name="x")
    assert normal_form(te.create_prim_func([x, topi.exp(x)])) is None
