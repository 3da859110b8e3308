"""`PropagateSymbolicShapes`: before and after, soundness, and the numbers at awkward extents."""

import json

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_dyn.passes.propagate_symbolic_shapes import PropagateSymbolicShapes


def propagate(mod: tvm.IRModule) -> tvm.IRModule:
    """Run the pass twice: it must be idempotent, leave its input alone and keep modules well formed."""
    before = mod.script()
    once = PropagateSymbolicShapes()(mod)
    assert mod.script() == before
    relax.analysis.well_formed(once)
    assert_structural_equal(PropagateSymbolicShapes()(once), once)
    return once


def plain(mod: tvm.IRModule) -> tvm.IRModule:
    """Without the recorded facts, to compare with a module written by hand."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result.update_func(gvar, func.without_attr("tvm_dyn.shape_facts"))
    return result


def facts_of(mod: tvm.IRModule, name: str = "main") -> dict:
    return json.loads(str(mod[name].attrs["tvm_dyn.shape_facts"]))


def type_of(mod: tvm.IRModule, name: str, func: str = "main") -> str:
    """The printed type of the first binding of that name."""
    types = [
        str(binding.var.ty) for block in mod[func].body.blocks for binding in block.bindings if binding.var.name == name
    ]
    return types[0]


def test_asserted_equality_gives_the_shape_back():
    @I.ir_module
    class Before:
        @R.function(pure=False)
        def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("m", 4), "float32")):
            n, m = T.int64(), T.int64()
            R.assert_op(R.prim_value(n == m), [n, m], format="{} {}")
            with R.dataflow():
                a: R.Tensor(ndim=2, dtype="float32") = R.add(x, y)
                b: R.Tensor(ndim=2, dtype="float32") = R.exp(a)
                R.output(b)
            return b

    @I.ir_module
    class Expected:
        @R.function(pure=False)
        def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("m", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            n, m = T.int64(), T.int64()
            R.assert_op(R.prim_value(n == m), [n, m], format="{} {}")
            with R.dataflow():
                y1 = R.match_cast(y, R.Tensor((n, 4), "float32"))
                a: R.Tensor((n, 4), "float32") = R.add(x, y1)
                b: R.Tensor((n, 4), "float32") = R.exp(a)
                R.output(b)
            return b

    after = propagate(Before)
    assert_structural_equal(plain(after), Expected)
    assert facts_of(after)["equalities"] == {"m": "n"}


def test_facts_do_not_hold_ahead_of_their_check():
    @I.ir_module
    class Before:
        @R.function(pure=False)
        def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")):
            n, m = T.int64(), T.int64()
            early: R.Tensor((m,), "float32") = R.exp(y)
            R.assert_op(R.prim_value(n == m), [n, m], format="{} {}")
            late: R.Tensor((m,), "float32") = R.log(early)
            return (early, late)

    after = propagate(Before)
    assert type_of(after, "early") == 'R.Tensor((m,), dtype="float32")'
    assert type_of(after, "late") == 'R.Tensor((n,), dtype="float32")'


def test_shape_round_trip_through_a_tensor():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("b", "s", 8), "float32")):
            p, q = T.int64(), T.int64()
            with R.dataflow():
                lv = R.shape_to_tensor(R.shape_of(x))
                lv1 = R.strided_slice(lv, [0], [0], [2])
                lv2 = R.concat((R.prod(lv1, keepdims=True), R.const([8], "int64")), axis=0)
                lv3: R.Shape(ndim=2) = R.tensor_to_shape(lv2)
                _ = R.match_cast(lv3, R.Shape([p, q]))
                out = R.reshape(x, R.shape([p, q]))
                R.output(out)
            return out

    after = propagate(Before)
    assert type_of(after, "out") == 'R.Tensor((b * s, 8), dtype="float32")'
    assert "match_cast" not in after.script()
    assert str(after["main"].ret_ty) == 'R.Tensor((b * s, 8), dtype="float32")'


def test_proven_cast_is_resolved_and_unproven_cast_stays():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", "k"), "float32")):
            p, q = T.int64(), T.int64()
            with R.dataflow():
                a = R.match_cast(x, R.Tensor((p, q), "float32"))
                b: R.Tensor((p, q), "float32") = R.exp(a)
                c = R.match_cast(b, R.Tensor((p, 16), "float32"))
                d: R.Tensor((p, 16), "float32") = R.exp(c)
                R.output(d)
            return d

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor(("n", "k"), "float32")) -> R.Tensor(("n", 16), "float32"):
            n, k = T.int64(), T.int64()
            with R.dataflow():
                b: R.Tensor((n, k), "float32") = R.exp(x)
                c = R.match_cast(b, R.Tensor((n, 16), "float32"))
                d: R.Tensor((n, 16), "float32") = R.exp(c)
                R.output(d)
            return d

    assert_structural_equal(plain(propagate(Before)), Expected)


def test_cast_to_another_form_of_the_same_dim_goes():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("h",), "float32")):
            h = T.int64()
            with R.dataflow():
                a = R.strided_slice(x, [0], [0], [h], [2])
                b = R.match_cast(a, R.Tensor(((h - 1) // 2 + 1,), "float32"))
                c = R.exp(b)
                R.output(c)
            return c

    assert "match_cast" not in propagate(Before).script()


def test_unproven_assert_stays_and_proven_assert_goes():
    @I.ir_module
    class Before:
        @R.function(pure=False)
        def main(x: R.Tensor(("n", "m"), "float32")):
            n, m = T.int64(), T.int64()
            R.func_attr({"tir_var_upper_bound": {"n": 8}})
            R.assert_op(R.prim_value(n <= 8), [n], format="promised, but not checked: {}")
            R.assert_op(R.prim_value(n == m), [n, m], format="{} {}")
            R.assert_op(R.prim_value(2 * n == n + m), [n, m], format="follows: {} {}")
            R.assert_op(R.prim_value(n >= 0), [n], format="a dim: {}")
            return x

    text = propagate(Before).script()
    assert "promised" in text
    assert "n == m" in text
    assert "follows" not in text
    assert "a dim" not in text


def test_promises_simplify_shapes():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", "h"), "float32")):
            n, h = T.int64(), T.int64()
            dims = '{"dims": {"n": {"min": 1, "max": 64}, "h": {"min": 32, "divisor": 32}}}'
            R.func_attr({"tvm_dyn.signature": dims})
            with R.dataflow():
                a = R.strided_slice(x, [0], [n - 1], [n])
                b = R.reshape(a, R.shape([h // 32, 32]))
                R.output(a, b)
            return (a, b)

    after = propagate(Before)
    assert type_of(after, "a") == 'R.Tensor((1, h), dtype="float32")'
    assert "assert_op" not in after.script()  # h // 32 * 32 == h
    assert facts_of(after)["ranges"] == {"h": [32, None], "n": [1, 64]}
    assert facts_of(after)["residues"] == {"h": [32, 0]}
    assert "tir_var_upper_bound" not in after["main"].attrs


def test_needed_equalities_are_checked_once():
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor(("n", "k"), "float32"),
            w: R.Tensor(("j", 8), "float32"),
            y: R.Tensor(("m", 8), "float32"),
        ):
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.matmul(x, w)
                c: R.Tensor(ndim=2, dtype="float32") = R.concat((a, y), axis=1)
                R.output(b, c)
            return (b, c)

    after = propagate(Before)
    text = after.script()
    assert text.count("R.assert_op") == 2
    assert "'a' (matmul): k and j must be equal, matmul multiplies over them; got {} and {}" in text
    assert "'c' (concat): n and m must be equal" in text
    assert type_of(after, "c") == 'R.Tensor((n, 16), dtype="float32")'
    assert not after["main"].is_pure


def test_needed_equality_in_a_pure_callee_is_a_cast():
    @I.ir_module
    class Before:
        @R.function(private=True)
        def inner(x: R.Tensor(("n", "k"), "float32"), w: R.Tensor(("j", 8), "float32")) -> R.Tensor(ndim=2):
            with R.dataflow():
                a = R.matmul(x, w)
                R.output(a)
            return a

        @R.function
        def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(ndim=2):
            cls = Before
            with R.dataflow():
                b: R.Tensor(ndim=2) = cls.inner(x, w)
                R.output(b)
            return b

    after = propagate(Before)
    assert after["inner"].is_pure
    assert "R.match_cast(w, R.Tensor((k, 8)" in after.script()
    assert type_of(after, "b") == 'R.Tensor((n, 8), dtype="float32")'
    assert str(after["main"].ret_ty) == 'R.Tensor((n, 8), dtype="float32")'


def test_facts_of_a_branch_end_with_it():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32"), c: R.Tensor((), "bool")):
            n = T.int64()
            if c:
                a = R.match_cast(y, R.Tensor((n,), "float32"))
                r: R.Tensor(ndim=1, dtype="float32") = R.add(x, a)
            else:
                r: R.Tensor(ndim=1, dtype="float32") = R.exp(x)
            after = R.exp(y)
            return (r, after)

    result = propagate(Before)
    assert type_of(result, "r") == 'R.Tensor((n,), dtype="float32")'
    assert type_of(result, "after") == 'R.Tensor((m,), dtype="float32")'
    assert result.script().count("match_cast") == 1


def test_condition_holds_in_its_branch():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n",), "float32")):
            n = T.int64()
            if R.prim_value(n >= 4):
                a = R.strided_slice(x, [0], [0], [4])
                r: R.Tensor(ndim=1, dtype="float32") = R.exp(a)
            else:
                r: R.Tensor(ndim=1, dtype="float32") = R.exp(x)
            return r

    text = propagate(Before).script()
    assert 'a: R.Tensor((4,), dtype="float32")' in text


def test_tuples_scalars_and_call_tir():
    @I.ir_module
    class Before:
        @T.prim_func(private=True, s_tir=True)
        def double(a: T.handle, b: T.handle):
            n = T.int64()
            A = T.match_buffer(a, (n,))
            B = T.match_buffer(b, (n,))
            for i in range(n):
                with T.sblock("b"):
                    v = T.axis.spatial(n, i)
                    B[v] = A[v] * T.float32(2)

        @R.function
        def main(x: R.Tensor(("n", 2), "float32")):
            n, m = T.int64(), T.int64()
            cls = Before
            size = R.prim_value(n * 2 // 2)
            with R.dataflow():
                flat = R.reshape(x, R.shape([size * 2]))
                cast = R.match_cast(flat, R.Tensor((m,), "float32"))
                twice = R.call_tir(cls.double, (cast,), out_ty=R.Tensor((m,), "float32"))
                pair = (twice, flat)
                first = pair[0]
                R.output(first, pair)
            return (first, pair)

    after = propagate(Before)
    assert type_of(after, "first") == 'R.Tensor((n * 2,), dtype="float32")'
    assert type_of(after, "twice") == 'R.Tensor((n * 2,), dtype="float32")'
    assert "match_cast" not in after.script()


def test_dynamic_slice_with_known_bounds():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", 8), "float32"), y: R.Tensor(("m", 3), "float32")):
            n = T.int64()
            with R.dataflow():
                ends = R.shape_to_tensor(R.shape([n, 3]))
                zeros = R.const([0, 0], "int64")
                ones = R.const([1, 1], "int64")
                a: R.Tensor(ndim=2, dtype="float32") = R.dynamic_strided_slice(x, zeros, ends, ones)
                R.output(a)
            return a

    after = propagate(Before)
    assert type_of(after, "a") == 'R.Tensor((n, 3), dtype="float32")'


@I.ir_module
class Numeric:
    """Concat, matmul and a flatten-unflatten pair over dims that are only equal by need."""

    @R.function
    def main(
        x: R.Tensor(("b", "s", 4), "float32"),
        past: R.Tensor(("b2", "p", 4), "float32"),
        w: R.Tensor(("k", 5), "float32"),
    ):
        b, q = T.int64(), T.int64()
        with R.dataflow():
            joined: R.Tensor(ndim=3, dtype="float32") = R.concat((past, x), axis=1)
            exact = R.match_cast(joined, R.Tensor((b, q, 4), "float32"))
            flat = R.reshape(exact, R.shape([b * q, 4]))
            product = R.matmul(flat, w)
            out = R.reshape(product, R.shape([b, q, 5]))
            R.output(out)
        return out


@pytest.fixture(scope="module")
def numeric_vm():
    executable = tvm.compile(propagate(Numeric), "llvm")
    return relax.VirtualMachine(executable, tvm.cpu())


def test_numeric_shape():
    assert type_of(propagate(Numeric), "out") == 'R.Tensor((b, p + s, 5), dtype="float32")'


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize(("seq", "past"), [(0, 0), (1, 0), (1, 1), (5, 2), (7, 13)])
def test_numbers(numeric_vm, batch, seq, past):
    rng = np.random.default_rng(seq * 31 + past)
    shapes = (batch, seq, 4), (batch, past, 4), (4, 5)
    x, old, w = (rng.standard_normal(shape).astype("float32") for shape in shapes)
    out = numeric_vm["main"](*(tvm.runtime.tensor(a) for a in (x, old, w))).numpy()
    expected = np.concatenate([old, x], axis=1).astype("float64") @ w.astype("float64")
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shapes", [((2, 3, 4), (3, 1, 4), (4, 5)), ((2, 3, 4), (2, 1, 4), (5, 5))])
def test_unequal_dims_are_caught(numeric_vm, shapes):
    arrays = [tvm.runtime.tensor(np.ones(shape, "float32")) for shape in shapes]
    with pytest.raises(Exception, match=r"must be equal"):
        numeric_vm["main"](*arrays)
