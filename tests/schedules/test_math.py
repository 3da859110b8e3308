"""Vector polynomials against the exact value over the whole range of float32."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import tvm
from harness import TARGET
from scipy import special
from tvm import te, tirx
from tvm.target import Target

from tvm_dyn.schedules import emit
from tvm_dyn.schedules.math import exp_negative, legalize_math

REFERENCES = {
    "exp": (np.exp, 1.0),
    "exp_negative": (lambda x: np.exp(-np.abs(x)), 4.5),
    "log": (np.log, 1.0),
    "sigmoid": (special.expit, 2.5),
    "tanh": (np.tanh, 5.0),
    "erf": (special.erf, 7.5),
}
EDGES = np.array(
    [
        *(0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 3.4028235e38, -3.4028235e38),
        *(1e-45, 1e-40, -1e-40, 1.17549435e-38, 88.72283, 88.7229, -87.33, -103.9, -104.5),
        *(4.0, -4.0, 7.9, -7.9, 9.0, 0.0003, 0.0005, 0.70710677, 0.7071068),
    ],
    dtype="float32",
)


def _function(name):
    if name == "exp_negative":
        return lambda x: exp_negative(-tirx.abs(x))
    return getattr(tirx, name)


def _inputs():
    """Every 2203rd float32 of either sign from a random one on, denser where functions bend, and the edges."""
    rng = np.random.default_rng()
    bits = np.arange(rng.integers(2203), 2**32, 2203, dtype=np.int64).astype(np.uint32).view("float32")
    near = [rng.uniform(-scale, scale, 50_000).astype("float32") for scale in (110.0, 8.0, 4.0, 1.0)]
    values = np.concatenate([bits, *near, EDGES])
    return np.concatenate([values, np.zeros(-len(values) % 64, "float32")])


def _build(function, dtype="float32"):
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), dtype, name="x")
    y = te.compute((n,), lambda i: function(x[i]), name="y")
    func = legalize_math(te.create_prim_func([x, y]).with_attr("global_symbol", "main"), TARGET)
    return func, tvm.compile(tvm.IRModule({"main": func}), target=TARGET)


def _run(kernel, x):
    out = tvm.runtime.tensor(np.full_like(x, 7))
    kernel(tvm.runtime.tensor(x), out)
    return out.numpy()


def _vectors(name, lanes, target):
    """The function on explicit vectors."""
    blocks = tirx.Var("blocks", "int64")
    x, y = tirx.decl_buffer((blocks * lanes,)), tirx.decl_buffer((blocks * lanes,))

    def vector(i):
        return emit.vectorized(lanes, lambda j: emit.store(y, _function(name)(x[i * lanes + j]), i * lanes + j))

    func = tirx.PrimFunc([x, y, blocks], emit.serial(blocks, vector)).with_attr("global_symbol", "main")
    lib = tvm.compile(tvm.IRModule({"main": legalize_math(func, target)}), target=target)
    return lambda x, out: lib["main"](x, out, x.shape[0] // lanes)


@pytest.mark.parametrize("name", list(REFERENCES))
def test_error_and_edges(name):
    reference, bound = REFERENCES[name]
    func, lib = _build(_function(name))
    assert f" T.{name}(" not in func.script()
    x = _inputs()
    with np.errstate(all="ignore"):
        exact = reference(x.astype("float64"))
        rounded = exact.astype("float32")
    kernels = [lib["main"], _vectors(name, 16, TARGET), _vectors(name, 64, TARGET)]
    if platform.machine() == "x86_64":
        kernels.append(_vectors(name, 8, Target({"kind": "llvm", "mcpu": "x86-64-v3"})))
    for kernel in kernels:
        got = _run(kernel, x)
        finite = np.isfinite(rounded) & np.isfinite(got)
        np.testing.assert_array_equal(got[~finite], rounded[~finite])
        with np.errstate(all="ignore"):
            ulps = np.abs(got.astype("float64") - exact) / np.spacing(np.abs(rounded)).astype("float64")
        worst = np.argmax(np.where(finite, ulps, 0))
        assert ulps[worst] <= bound, f"{name}({x[worst]!r}) = {got[worst]!r}, exact {exact[worst]!r}"


def test_half_precision_goes_through_single():
    func, lib = _build(tirx.exp, "float16")
    assert "T.exp(" not in func.script()
    x = np.linspace(-12, 11, 1000).astype("float16")
    np.testing.assert_allclose(_run(lib["main"], x), np.exp(x.astype("float64")), rtol=1e-3, atol=1e-7)


def test_double_precision_stays_with_the_library():
    func, lib = _build(tirx.exp, "float64")
    assert "T.exp(" in func.script()
    x = np.linspace(-700, 700, 100)
    np.testing.assert_allclose(_run(lib["main"], x), np.exp(x), rtol=1e-15)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, 1.75])
def test_powers(exponent):
    _, lib = _build(lambda x: tirx.power(x, tirx.const(exponent, "float32")))
    x = np.array([0.0, 0.3, 1.0, 2.5, 1e10, np.inf], "float32")
    np.testing.assert_allclose(_run(lib["main"], x), x.astype("float64") ** exponent, rtol=1e-5)


def test_nested_calls_compile_at_once():
    _, lib = _build(lambda x: x * tirx.tanh(tirx.log(1 + tirx.exp(tirx.erf(tirx.sigmoid(tirx.exp(x)))))))
    x = np.linspace(-5, 3, 1000).astype("float32")
    y = x.astype("float64")
    expected = y * np.tanh(np.log(1 + np.exp(special.erf(special.expit(np.exp(y))))))
    np.testing.assert_allclose(_run(lib["main"], x), expected, rtol=1e-5)


@pytest.mark.parametrize("lanes", [4, 16])
def test_explicit_vectors(lanes):
    """Inside a vectorized loop, also where other loops have other widths."""
    x, y = tirx.decl_buffer((lanes + 3,)), tirx.decl_buffer((lanes + 3,))
    whole = emit.vectorized(lanes, lambda j: emit.store(y, tirx.exp(x[j]), j))
    rest = emit.serial(3, lambda j: emit.store(y, tirx.exp(x[lanes + j]), lanes + j))
    func = tirx.PrimFunc([x, y], emit.seq(whole, rest)).with_attr("global_symbol", "main")
    lib = tvm.compile(tvm.IRModule({"main": legalize_math(func, TARGET)}), target=TARGET)
    values = np.linspace(-3, 3, lanes + 3).astype("float32")
    np.testing.assert_allclose(_run(lib["main"], values), np.exp(values.astype("float64")), rtol=1e-6)
