"""Attention as one kernel against float64 references: layouts, masks, guards, few queries, empty extents."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from harness import TARGET, dim, module, prim_funcs, random
from tvm import relax, te, tirx
from tvm.relax import op
from tvm.relax.op import nn

from tvm_dyn.schedules import attention, schedule_prim_func
from tvm_dyn.schedules.attention_match import match
from tvm_dyn.schedules.attention_tile import AttentionTile
from tvm_dyn.schedules.extremes import start_at_infinity
from tvm_dyn.schedules.indices import simplify_indices

B, S, T = dim("b"), dim("s"), dim("t")
TILE = AttentionTile.for_target(TARGET, 64)
BLOCK = TILE.lanes * TILE.vectors
EXTENTS = [
    *[(1, s, 7) for s in (0, 1, 2, 3, 5, TILE.lanes - 1, TILE.lanes, TILE.lanes + 1, 37, BLOCK - 1, BLOCK, BLOCK + 1)],
    *[(1, 3, t) for t in (0, 1, TILE.keys - 1, TILE.keys, TILE.keys + 1, 2 * TILE.keys + 37)],
    *[(2, 1, t) for t in (0, 1, TILE.lanes - 1, TILE.lanes, TILE.lanes + 1, 97, TILE.row_keys + 1)],
    (0, 4, 4),
    (2, 131, 113),
]


def kernel_of(inputs, graph) -> tirx.PrimFunc:
    """The whole graph as one function, as fusion leaves it."""
    mod = relax.transform.FoldConstant()(relax.transform.LegalizeOps()(module(inputs, graph)))
    func = mod["main"]
    inner = relax.utils.copy_with_new_vars(func).with_attr("Primitive", True).without_attr("global_symbol")
    bb = relax.BlockBuilder(mod)
    gv = bb.add_func(inner, "attention")
    params = [relax.Var(p.name, p.ty) for p in func.params]
    with bb.function("outer", params):
        with bb.dataflow():
            result = bb.emit_output(relax.Call(gv, params))
        bb.emit_func_output(result)
    fused = bb.finalize()
    del fused["main"]
    fused = relax.transform.DeadCodeElimination(["outer"])(fused)
    (kernel,) = prim_funcs(relax.transform.FuseTIR()(fused))
    return kernel


class Kernel:
    def __init__(self, inputs, graph, target=TARGET):
        func = kernel_of(inputs, graph)
        assert match(simplify_indices(start_at_infinity(func))) is not None
        scheduled = schedule_prim_func(func, target).with_attr("global_symbol", "main")
        assert "sblock(" not in scheduled.script().replace('sblock("root")', "")
        self._run = tvm.compile(tvm.IRModule({"main": scheduled}), target)["main"]

    def __call__(self, shape, *arrays):
        out = tvm.runtime.tensor(np.full(shape, 7, "float32"))
        self._run(*[tvm.runtime.tensor(a) for a in arrays], out)
        return out.numpy()


def softmax(scores):
    if not scores.shape[-1]:
        return scores
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def reference(q, k, v, scale, mask=0.0):
    q, k, v = (x.astype("float64") for x in (q, k, v))
    return softmax(q @ k.swapaxes(-1, -2) * scale + mask) @ v


def heads(x, count):
    return x.reshape(*x.shape[:2], count, x.shape[2] // count).swapaxes(1, 2)


def merged(x):
    batch, count, rows, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, rows, count * width)


def attend(bb, q, k, v, *masks, scale=0.125):
    scores = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2]))))
    scores = bb.emit(op.multiply(scores, relax.const(scale, "float32")))
    for mask in masks:
        scores = bb.emit(op.add(scores, mask))
    return bb.emit(op.matmul(bb.emit(nn.softmax(scores, -1)), v))


def multi_head(count, width, batch=B):
    """Of [b, s, count * width] inputs and outputs."""

    def graph(bb, q, k, v, *masks):
        def split(x, rows):
            x = bb.emit(op.reshape(x, (batch, rows, count, width)))
            return bb.emit(op.permute_dims(x, [0, 2, 1, 3]))

        result = attend(bb, split(q, S), split(k, T), split(v, T), *masks, scale=width**-0.5)
        result = bb.emit(op.permute_dims(result, [0, 2, 1, 3]))
        return bb.emit(op.reshape(result, (batch, S, count * width)))

    return graph


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=3e-6)


def qkv(batch, s, t, *rest, seed=0):
    return [random((batch, rows, *rest), seed=seed + i) for i, rows in enumerate((s, t, t))]


@pytest.mark.parametrize(("count", "width"), [(3, 64), (2, 96), (2, 20), (2, 3)])
def test_every_extent(count, width):
    hidden = count * width
    inputs = [((B, n, hidden), "float32") for n in (S, T, T)] + [((B, 1, 1, T), "float32")]
    kernel = Kernel(inputs, multi_head(count, width))
    for i, (b, s, t) in enumerate(EXTENTS if width in (64, 20) else EXTENTS[::3]):
        q, k, v = qkv(b, s, t, hidden, seed=i)
        mask = random((b, 1, 1, t), seed=i + 3)
        expected = reference(*(heads(x, count) for x in (q, k, v)), width**-0.5, mask)
        close(kernel((b, s, hidden), q, k, v, mask), merged(expected))


@pytest.mark.parametrize("shape", [(B, 1, S, T), (S, T), (2, 1, 1)])
def test_masks(shape):
    inputs = [((B, 2, n, 16), "float32") for n in (S, T, T)] + [(shape, "float32")]
    kernel = Kernel(inputs, attend)
    for i, (b, s, t) in enumerate([(1, 1, 5), (2, 37, 20), (3, 70, 101), (1, 9, 1)]):
        q, k, v = (random((b, 2, n, 16), seed=i + j) for j, n in enumerate((s, t, t)))
        mask = random([{B: b, S: s, T: t}.get(d, d) for d in shape], seed=i)
        close(kernel((b, 2, s, 16), q, k, v, mask), reference(q, k, v, 0.125, mask))


def check_shapes(kernel):
    for i, (b, s, t) in enumerate([(1, 1, 21), (1, 2, 5), (2, 9, 4), (1, 37, 23), (1, 70, 41)]):
        q, k, v = (random((b, 2, n, 20), seed=i + j) for j, n in enumerate((s, t, t)))
        mask = random((s, t), seed=i)
        close(kernel((b, 2, s, 20), q, k, v, mask), reference(q, k, v, 0.125, mask))


SMALL = [((B, 2, n, 20), "float32") for n in (S, T, T)] + [((S, T), "float32")]


@pytest.mark.parametrize(
    "tile",
    [
        AttentionTile(8, 1, 3, 5, 1, 3),
        AttentionTile(4, 3, 7, 2, 3, 40),
        AttentionTile(16, 2, 4, 1, 1, 1),
    ],
)
def test_any_tile_is_right(tile, monkeypatch):
    monkeypatch.setattr(AttentionTile, "for_target", staticmethod(lambda target, columns: tile))
    check_shapes(Kernel(SMALL, attend))


def test_other_cpu():
    check_shapes(Kernel(SMALL, attend, tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})))


def test_batch_and_heads_as_one_axis():
    def graph(bb, q, k, v, mask):
        scores = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 2, 1]))))
        scores = bb.emit(op.add(bb.emit(op.divide(scores, relax.const(4.0, "float32"))), mask))
        return bb.emit(op.matmul(bb.emit(nn.softmax(scores, -1)), v))

    inputs = [((B, n, 16), "float32") for n in (S, T, T)] + [((S, T), "float32")]
    kernel = Kernel(inputs, graph)
    for i, (b, s, t) in enumerate([(1, 1, 5), (3, 37, 20)]):
        q, k, v = qkv(b, s, t, 16, seed=i)
        mask = random((s, t), seed=i)
        close(kernel((b, s, 16), q, k, v, mask), reference(q, k, v, 0.25, mask))


def guarded(guard):
    """Attention whose rows lose keys by a boolean mask, and what softmax makes of rows without any."""

    def hide(x: te.Tensor, keep: te.Tensor):
        lowest = tirx.const(-np.inf, "float32")
        return te.compute(x.shape, lambda *i: tirx.Select(keep(*i[2:]), x(*i), lowest), name="hide")

    def unseen(w: te.Tensor, x: te.Tensor):
        def at(*i):
            nothing = tirx.isnan(w(*i))
            if guard == "hidden":
                nothing = tirx.all(nothing, x(*i) == tirx.const(-np.inf, "float32"))
            return tirx.Select(nothing, tirx.const(0, "float32"), w(*i))

        return te.compute(w.shape, at, name="unseen")

    def graph(bb, q, k, v, keep):
        scores = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        scores = bb.emit_te(hide, scores, keep)
        weights = bb.emit(nn.softmax(scores, -1))
        if guard != "none":
            weights = bb.emit_te(unseen, weights, scores)
        return bb.emit(op.matmul(weights, v))

    return graph


@pytest.mark.parametrize("guard", ["none", "hidden", "nan"])
def test_hidden_keys(guard):
    """Rows without a key give NaN, or 0 where the graph says so; a block without a key does no harm to a row."""
    inputs = [((B, 2, n, 16), "float32") for n in (S, T, T)] + [((S, T), "bool")]
    kernel = Kernel(inputs, guarded(guard))
    for s, t in [(1, 30), (TILE.rows + 1, 30), (70, 3 * TILE.keys)]:
        check_hidden(kernel, guard, s, t)


def check_hidden(kernel, guard, s, t):
    q, k, v = (random((2, 2, n, 16), seed=j) for j, n in enumerate((s, t, t)))
    keep = np.random.default_rng(0).random((s, t)) < 0.5
    keep[:, : TILE.keys if t > TILE.keys else 3] = False
    keep[0] = False
    expected = reference(q, k, v, 1.0, np.where(keep, 0, -np.inf))
    expected[:, :, 0] = np.nan if guard == "none" else 0
    close(kernel((2, 2, s, 16), q, k, v, keep), expected)


def test_nan_and_infinite_scores_reach_the_whole_row():
    inputs = [((B, 1, n, 4), "float32") for n in (S, T, T)]
    kernel = Kernel(inputs, attend)
    for s in (1, 20):
        for value in (np.nan, np.inf):
            q, k, v = (random((1, 1, n, 4), seed=j) for j, n in enumerate((s, 40, 40)))
            q[0, 0, 0] = value
            got = kernel((1, 1, s, 4), q, k, v)
            with np.errstate(invalid="ignore"):
                close(got, reference(q, k, v, 0.125))


def test_grouped_queries():
    """Two query heads for each head of keys: through a repetition that fusion put in."""

    def graph(bb, q, k, v):
        def repeat(x):
            x = bb.emit(op.broadcast_to(bb.emit(op.expand_dims(x, 2)), (B, 2, 2, T, 16)))
            return bb.emit(op.reshape(x, (B, 4, T, 16)))

        return attend(bb, q, repeat(k), repeat(v))

    kernel = Kernel([((B, 4, S, 16), "float32"), ((B, 2, T, 16), "float32"), ((B, 2, T, 16), "float32")], graph)
    for i, (b, s, t) in enumerate([(1, 1, 5), (2, 37, 20)]):
        q, k, v = random((b, 4, s, 16), seed=i), random((b, 2, t, 16), seed=i + 1), random((b, 2, t, 16), seed=i + 2)
        close(kernel((b, 4, s, 16), q, k, v), reference(q, k.repeat(2, 1), v.repeat(2, 1), 0.125))


def test_factors_and_sums_on_the_operands():
    """Scales on both sides of the first product, an addition on the keys, a factor on the values."""

    def graph(bb, q, k, v, bias):
        half = relax.const(0.5, "float32")
        k = bb.emit(op.multiply(bb.emit(op.add(k, bias)), half))
        return attend(bb, bb.emit(op.multiply(q, half)), k, bb.emit(op.multiply(v, half)))

    inputs = [((B, 2, n, 16), "float32") for n in (S, T, T)] + [((16,), "float32")]
    kernel = Kernel(inputs, graph)
    for i, (b, s, t) in enumerate([(1, 1, 5), (2, 37, 20)]):
        q, k, v = (random((b, 2, n, 16), seed=i + j) for j, n in enumerate((s, t, t)))
        bias = random((16,), seed=9)
        close(kernel((b, 2, s, 16), q, k, v, bias), reference(q * 0.5, (k + bias) * 0.5, v * 0.5, 0.125))


def test_costly_prologues_run_once():
    """A bias with a logarithm is a nest of its own ahead of the kernel."""

    def graph(bb, q, k, v, positions):
        return attend(bb, q, k, v, bb.emit(op.log(positions)))

    inputs = [((B, 2, n, 16), "float32") for n in (S, T, T)] + [((S, T), "float32")]
    kernel = Kernel(inputs, graph)
    for i, (b, s, t) in enumerate([(1, 1, 5), (2, 37, 20)]):
        q, k, v = (random((b, 2, n, 16), seed=i + j) for j, n in enumerate((s, t, t)))
        positions = np.exp(random((s, t), seed=i))
        close(kernel((b, 2, s, 16), q, k, v, positions), reference(q, k, v, 0.125, np.log(positions)))


@pytest.mark.parametrize("case", ["softmax over queries", "two results of the scores", "other product"])
def test_others_are_not_taken(case):
    def graph(bb, q, k, v):
        scores = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        weights = bb.emit(nn.softmax(scores, 2 if case == "softmax over queries" else 3))
        if case == "two results of the scores":
            weights = bb.emit(op.multiply(weights, scores))
        if case == "other product":
            return bb.emit(op.matmul(bb.emit(op.permute_dims(weights, [0, 1, 3, 2])), v))
        return bb.emit(op.matmul(weights, v))

    func = kernel_of([((B, 2, S, 16), "float32")] * 3, graph)
    assert attention.apply(simplify_indices(start_at_infinity(func)), TARGET) is None
