"""Loop and Scan: any number of steps, states that grow, stacked rows, nesting; one compiled body."""

import numpy as np
import pytest
from graphs import assert_like_onnxruntime, normal, parse

import tvm_dyn
from tvm_dyn.errors import CallError, UnsupportedOperatorError

COUNTS = (0, 1, 2, 3, 7, 64)


def test_trip_count_from_the_input():
    model = parse(
        "g (int64 n, float[b,4] x) => (float[p,q] y) <bool go = {1}> { "
        "y = Loop(n, go, x) <body = s (int64 i, bool c, float[b,4] h) => (bool c2, float[b,4] h2) { "
        "c2 = Identity(c)\n t = MatMul(h, w)\n h2 = Tanh(t) }> }",
        w=normal(4, 4),
    )
    calls = [[np.array(n), normal(b, 4)] for n in COUNTS for b in (1, 5)]
    assert_like_onnxruntime(model, *calls)


GROWING = (
    "g (int64 n, float[b] x, float limit) => (float[p] y, float[r,b] rows, int64[k] steps) <bool go = {1}> { "
    "y, rows, steps = Loop(n, go, x) <body = s (int64 i, bool c, float[b] h) "
    "=> (bool c2, float[q] h2, float[b] row, int64 step) { "
    "total = ReduceSum<keepdims=0>(h)\n c2 = Less(total, limit)\n h2 = Concat<axis=0>(h, x)\n "
    "row = Mul(x, total)\n step = Identity(i) }> }"
)


@pytest.mark.parametrize("limit", [-1.0, 4.0, 1e9])
def test_a_condition_ends_the_loop_and_a_state_grows(limit):
    calls = [[np.array(n), np.abs(normal(b)), np.array(limit, "float32")] for n in COUNTS[1:] for b in (1, 5)]
    assert_like_onnxruntime(parse(GROWING), *calls)


def test_no_step_keeps_the_state_and_stacks_no_row():
    library = tvm_dyn.compile(parse(GROWING))
    x = np.abs(normal(5))
    y, rows, steps = library(np.array(0), x, np.array(1.0, "float32"))
    np.testing.assert_array_equal(y, x)
    assert rows.shape == (0, 5) and steps.shape == (0,)


def test_a_loop_that_only_its_condition_ends():
    model = parse(
        "g (float[m] x, float limit) => (float[m] y, int64 steps) <int64 zero = {0}, int64 one = {1}> { "
        "sum0 = ReduceSum<keepdims=0>(x)\n go = Less(sum0, limit)\n "
        "y, steps = Loop(, go, x, zero) <body = s (int64 i, bool c, float[m] h, int64 k) "
        "=> (bool c2, float[m] h2, int64 k2) { "
        "h2 = Add(h, h)\n t = ReduceSum<keepdims=0>(h2)\n c2 = Less(t, limit)\n k2 = Add(k, one) }> }"
    )
    calls = [[np.abs(normal(m)) + 0.5, np.array(v, "float32")] for m in (1, 6) for v in (0, 10, 1e20)]
    assert_like_onnxruntime(model, *calls)


def test_loops_nest_and_read_what_is_around_them():
    model = parse(
        "g (int64 n, int64 m, float[b,3] x) => (float[b,3] y) <bool go = {1}> { "
        "half = Mul(x, factor)\n "
        "y = Loop(n, go, x) <body = outer (int64 i, bool c, float[b,3] h) => (bool c2, float[b,3] h3) { "
        "c2 = Identity(c)\n "
        "h2 = Loop(m, c, h) <body = inner (int64 j, bool d, float[b,3] g) => (bool d2, float[b,3] g3) { "
        "d2 = Identity(d)\n place = Add(i, j)\n f = Cast<to=1>(place)\n g2 = Mul(g, factor)\n "
        "g4 = Add(g2, half)\n g3 = Add(g4, f) }>\n h3 = Mul(h2, factor) }> }",
        factor=np.float32(0.5),
    )
    calls = [[np.array(n), np.array(m), normal(b, 3)] for n in (0, 1, 5) for m in (0, 1, 4) for b in (1, 3)]
    assert_like_onnxruntime(model, *calls)


def test_a_branch_inside_a_loop_and_a_loop_inside_a_branch():
    model = parse(
        "g (int64 n, bool flag, float[b] x) => (float[b] y) <bool go = {1}, int64 three = {3}> { "
        "y = If (flag) <then_branch = t () => (float[b] u) { "
        "u = Loop(n, go, x) <body = s (int64 i, bool c, float[b] h) => (bool c2, float[b] h2) { "
        "c2 = Identity(c)\n big = Less(i, three)\n "
        "h2 = If (big) <then_branch = p () => (float[b] k) { k = Sin(h) }, "
        "else_branch = q () => (float[b] l) { l = Add(h, x) }> }> }, "
        "else_branch = e () => (float[b] v) { v = Neg(x) }> }"
    )
    calls = [[np.array(n), np.array(f), normal(b)] for n in (0, 2, 9) for f in (False, True) for b in (1, 5)]
    assert_like_onnxruntime(model, *calls)


def test_scan_axes_and_directions():
    model = parse(
        "g (float[b] start, float[b,t] x, float[t,b] z) => (float[b] end, float[b,t] sums, float[t,b] last) { "
        "end, sums, last = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1], "
        "scan_output_axes = [1, 0], scan_output_directions = [0, 1], "
        "body = s (float[b] h, float[b] u, float[b] v) => (float[b] h2, float[b] r, float[b] q) { "
        "a = Add(h, u)\n h2 = Mul(a, v)\n r = Identity(a)\n q = Tanh(h2) }> (start, x, z) }"
    )
    calls = [[normal(b), normal(b, t), normal(t, b, seed=1)] for b in (1, 4) for t in (1, 2, 3, 17)]
    assert_like_onnxruntime(model, *calls)


def test_a_state_of_another_rank_is_an_error_that_names_the_node():
    model = parse(
        "g (int64 n, float[b] x) => (float[b] y) <bool go = {1}> { "
        "y = Loop(n, go, x) <body = s (int64 i, bool c, float[b] h) => (bool c2, float[b,1] h2) { "
        "c2 = Identity(c)\n h2 = Unsqueeze(h, last) }> }",
        last=np.array([-1]),
    )
    with pytest.raises(UnsupportedOperatorError, match=r"Loop.*value 0 changes its rank to 2"):
        tvm_dyn.compile(model)


@pytest.mark.parametrize("start", ["n", "both"])
def test_a_placeholder_takes_its_rank_from_the_first_step(start):
    go = {"n": "go = Greater(one, zero)\n ", "both": "total = ReduceSum<keepdims=0>(x)\n go = Greater(total, zero)\n "}
    model = parse(
        "g (int64 n, float[b] x) => (float[p,q] y) <float one = {1}, float zero = {0}> { " + go[start] + "y = "
        "Loop(n, go, zero) <body = s (int64 i, bool c, float[p,q] h) => (bool c2, float[p,q] h2) { "
        "c2 = Identity(c)\n f = Cast<to=1>(i)\n g = Add(x, f)\n h2 = Unsqueeze(g, last) }> }",
        last=np.array([-1]),
    )
    library = assert_like_onnxruntime(model, *[[np.array(n), np.abs(normal(b))] for n in (1, 2, 5) for b in (1, 4)])
    with pytest.raises(CallError, match=r"Loop.*runs no step"):
        library(np.array(0), normal(3))


def test_many_steps_need_no_deep_stack():
    model = parse(
        "g (int64 n, float[b] x) => (float[b] y) <bool go = {1}> { "
        "y = Loop(n, go, x) <body = s (int64 i, bool c, float[b] h) => (bool c2, float[b] h2) { "
        "c2 = Identity(c)\n h2 = Add(h, one) }> }",
        one=np.float32(1),
    )
    (result,) = tvm_dyn.compile(model)(np.array(50_000), np.zeros(2, "float32"))
    np.testing.assert_array_equal(result, [50_000, 50_000])


def test_a_single_element_takes_the_rank_that_the_body_declares():
    model = parse(
        "g (int64 n, float[b] x) => (float[b] y, float count) <bool go = {1}, float zero = {0}> { "
        "y, count = Loop(n, go, x, zero) <body = s (int64 i, bool c, float[b] h, float k) "
        "=> (bool c2, float[b] h2, float k2) { c2 = Identity(c)\n h2 = Add(h, k)\n k2 = Add(k, one) }> }",
        one=np.ones(1, "float32"),
    )
    y, count = tvm_dyn.compile(model)(np.array(4), np.zeros(3, "float32"))
    np.testing.assert_array_equal(y, [6, 6, 6])
    assert count.shape == () and count == 4


def test_a_state_that_no_step_changes_stays_a_constant():
    model = parse(
        "g (int64 n, float[b,4] x) => (float[b,4] y, float[4,4] w2) <bool go = {1}> { "
        "y, w2 = Loop(n, go, x, w) <body = s (int64 i, bool c, float[b,4] h, float[4,4] v) "
        "=> (bool c2, float[b,4] h2, float[4,4] v2) { c2 = Identity(c)\n h2 = MatMul(h, v)\n v2 = Identity(v) }> }",
        w=normal(4, 4),
    )
    library = assert_like_onnxruntime(model, [np.array(0), normal(2, 4)], [np.array(3), normal(5, 4)])
    library(np.array(1), normal(2, 4))[1][:] = 0  # what a caller gets is its own
    assert_like_onnxruntime(model, [np.array(3), normal(5, 4)])
    np.testing.assert_array_equal(library(np.array(1), normal(2, 4))[1], normal(4, 4))
