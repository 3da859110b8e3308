"""Vector polynomials in place of calls into the math library.

    y[i] = T.exp(x[i])        # a libm call per element: the loop cannot be vectorized
    --->
    y[i] = (let z = x[i] * log2(e) + magic in ... polynomial ... * 2**n)

Largest errors against the exact value, over the whole range of float32 (tested): exp 1.1 ulp, log 1 ulp,
sigmoid 2.5 ulp, tanh 5 ulp, erf 6.5 ulp. NaN, infinities, overflow, underflow and denormals come out as in
the C library. float16 goes through float32; float64 stays with the library.

Sources: exp and log are the single-precision functions of the Cephes library (S. Moshier), with the scaling
split in two so that denormal and near-overflow results round correctly; tanh and erf are the minimax
rationals that Eigen uses (MathFunctionsImpl.h, SpecialFunctionsImpl.h).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import PrimFunc

_EXP_POLY = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_LOG_POLY = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_TANH_NUM = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_DEN = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_ERF_NUM = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_DEN = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_ROUND_MAGIC = 12582912.0  # 1.5 * 2**23: adding it leaves the rounded integer in the low mantissa bits
_ROUND_MAGIC_BITS = 0x4B400000
_MIN_NORMAL = 1.17549435e-38

_names = count()


def legalize_math(func: PrimFunc) -> PrimFunc:
    """Replace exp, log, tanh, sigmoid, erf and small constant powers of float32 and float16.

    Functions on bfloat16 keep their calls: TVM's lowering of bfloat16 breaks the reinterpretations made here.
    """
    if any(str(getattr(param.ty, "dtype", "")) == "bfloat16" for param in func.params):
        return func

    def rewrite(call):
        name = getattr(call.op, "name", "").removeprefix("tirx.")
        dtype = str(call.ty)
        if name == "pow":
            power = _power(*call.args)
            return call if power is None else power
        if name not in _FUNCTIONS or dtype not in ("float32", "float16"):
            return call
        return _let(call.args[0].astype("float32"), _FUNCTIONS[name]).astype(dtype)

    return func.with_body(tvm_ffi.structural_map(func.body, (tvm.ir.Call, rewrite), order="post"))


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def _i32(value: int) -> Expr:
    return tirx.const(value, "int32")


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """``body`` of ``value``, evaluated once.

    Arguments are always bound: below a ``Select``, whose condition becomes a constraint, TVM's simplifier
    takes seconds over the index arithmetic of a single load.
    """
    var = tirx.Var(f"m{next(_names)}", str(value.ty))
    return tirx.Let(var, value, body(var))


def _horner(coefficients: Sequence[float], x: Expr) -> Expr:
    result = _f32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + _f32(coefficient)
    return result


def _clamp(x: Expr, low: float, high: float) -> Expr:
    """The variable ``x`` in [low, high]; NaN stays NaN, as both comparisons are false."""
    x = tirx.Select(x > _f32(high), _f32(high), x)
    return _let(x, lambda y: tirx.Select(y < _f32(low), _f32(low), y))


def _pow2(n: Expr) -> Expr:
    """``2.0**n`` for an int32 ``n`` in [-126, 127]."""
    return tirx.reinterpret("float32", (n + _i32(127)) << _i32(23))


def exp(x: Expr) -> Expr:
    """e**x: x = n ln 2 + r with |r| <= ln 2 / 2, then a polynomial in r times 2**n."""

    def scaled(x: Expr, z: Expr) -> Expr:
        n = tirx.reinterpret("int32", z) - _i32(_ROUND_MAGIC_BITS)
        rounded = z - _f32(_ROUND_MAGIC)
        r = x - rounded * _f32(_LN2_HIGH) - rounded * _f32(_LN2_LOW)
        poly = _let(r, lambda r: _horner(_EXP_POLY, r) * (r * r) + r + _f32(1.0))
        return _let(n, lambda n: poly * _pow2(n >> _i32(1)) * _pow2(n - (n >> _i32(1))))

    # Beyond the clamp the result is inf above and 0 below in any case.
    return _let(
        _clamp(x, -104.0, 89.0),
        lambda x: _let(x * _f32(_LOG2_E) + _f32(_ROUND_MAGIC), lambda z: scaled(x, z)),
    )


def log(x: Expr) -> Expr:
    """ln x: x = 2**e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), then a polynomial in f."""

    def mantissa(bits: Expr, bias: Expr) -> Expr:
        # Less the bits of sqrt(1/2), the exponent steps exactly where the mantissa passes it.
        shifted = bits - _i32(0x3F3504F3)
        exponent = ((shifted >> _i32(23)) - bias).astype("float32")
        fraction = tirx.reinterpret("float32", (shifted & _i32(0x7FFFFF)) + _i32(0x3F3504F3)) - _f32(1.0)
        return _let(fraction, lambda f: _let(exponent, lambda e: series(f, e)))

    def series(f: Expr, e: Expr) -> Expr:
        y = _horner(_LOG_POLY, f) * f * (f * f) + e * _f32(_LN2_LOW) - _f32(0.5) * (f * f)
        return f + y + e * _f32(_LN2_HIGH)

    def finite(x: Expr) -> Expr:
        tiny = x < _f32(_MIN_NORMAL)
        normal = tirx.Select(tiny, x * _f32(8388608.0), x)
        bias = tirx.Select(tiny, _i32(23), _i32(0))
        return _let(tirx.reinterpret("int32", normal), lambda bits: _let(bias, lambda b: mantissa(bits, b)))

    def with_edges(x: Expr) -> Expr:
        inf = _f32(float("inf"))
        value = tirx.Select(x < inf, finite(x), x)  # inf and NaN are their own logarithms
        value = tirx.Select(x < _f32(0.0), _f32(float("nan")), value)
        return tirx.Select(x.equal(_f32(0.0)), -inf, value)

    return with_edges(x)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x), from e**-|x| so that nothing overflows before its time."""

    def stable(x: Expr, e: Expr) -> Expr:
        return tirx.Select(x < _f32(0.0), e, _f32(1.0)) / (_f32(1.0) + e)

    return _let(_f32(0.0) - tirx.abs(x), lambda y: _let(exp(y), lambda e: stable(x, e)))


def tanh(x: Expr) -> Expr:
    """A rational in x, equal to +-1 from where float32 rounds to it; x itself where that is exact."""

    c = _clamp(x, -7.90531110763549805, 7.90531110763549805)
    ratio = _let(c, lambda c: _let(c * c, lambda s: c * (_horner(_TANH_NUM, s) / _horner(_TANH_DEN, s))))
    return tirx.Select(tirx.abs(x) < _f32(0.0004), x, ratio)


def erf(x: Expr) -> Expr:
    """A rational in x on [-4, 4], where float32 has rounded to +-1."""
    return _let(
        _clamp(x, -4.0, 4.0),
        lambda c: _let(c * c, lambda s: c * (_horner(_ERF_NUM, s) / _horner(_ERF_DEN, s))),
    )


def _power(x: Expr, exponent: Expr) -> Expr | None:
    """``x**exponent`` for the constant exponents that models use, None for others."""
    value = getattr(exponent, "value", None)
    if value == 2:
        return _let(x, lambda x: x * x)
    if value == 3:
        return _let(x, lambda x: x * x * x)
    if value == 0.5:
        return tirx.sqrt(x)
    return None


_FUNCTIONS = {"exp": exp, "log": log, "sigmoid": sigmoid, "tanh": tanh, "erf": erf}
