"""The polynomials behind `math`, written as LLVM functions on vectors of float32.

    define <16 x float> @tvm_dyn_exp_f32x16(<16 x float> %x) { %0 = fcmp ogt <16 x float> %x, ...

Sources: log is the single-precision function of the Cephes library (S. Moshier), and so is the reduction of exp;
its scaling is one instruction where the CPU has it, else split in two, so that denormal and near-overflow results
round correctly; its polynomial is a fit of our own (Lawson's iteration). tanh and erf are the minimax rationals that
Eigen uses (MathFunctionsImpl.h, SpecialFunctionsImpl.h): they round several times on the way to values just below 1,
where a unit in the last place is half of that at 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

# Minimax of (e**r - 1 - r) / r**2 on |r| <= ln 2 / 2, relative to e**r: off by 0.05 ulp.
_EXP_POLY = (1.3814467238e-3, 8.3687808365e-3, 4.1668392718e-2, 1.6666519642e-1, 4.9999994040e-1)
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
_LN2 = 0.693147180559945309
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_ROUND_MAGIC = 12582912.0  # 1.5 * 2**23: adding it leaves the rounded integer in the low mantissa bits
_ROUND_MAGIC_BITS = 0x4B400000
_SCALEF, _SCALEF_LANES = "llvm.x86.avx512.mask.scalef.ps.512", 16
_MIN_NORMAL = 1.17549435e-38


def symbol(name: str, lanes: int) -> str:
    """What the function ``name`` on ``lanes`` elements is called in LLVM."""
    return f"tvm_dyn_{name}_f32x{lanes}"


def define(names: Iterable[str], widths: Iterable[int], avx512: bool = False) -> str:
    """LLVM functions that compute each of ``names``, keys of `FUNCTIONS`, on vectors of each width."""
    declarations: set[str] = set()
    functions = [_define(name, lanes, avx512, declarations) for name in sorted(names) for lanes in sorted(widths)]
    return "".join([*sorted(declarations), *functions])


def _define(name: str, lanes: int, avx512: bool, declarations: set[str]) -> str:
    body = _Body(lanes, avx512, declarations)
    result = FUNCTIONS[name](_Value(body, "float", "%x"))
    kind = body.type("float")
    lines = "\n".join(f"  {line}" for line in body.lines)
    return f"define {kind} @{symbol(name, lanes)}({kind} %x) alwaysinline {{\n{lines}\n  ret {kind} {result.name}\n}}\n"


class _Body:
    """Instructions of a function on vectors of ``lanes`` elements."""

    def __init__(self, lanes: int, avx512: bool, declarations: set[str]):
        self.lanes, self.declarations = lanes, declarations
        self.scales_at_once = avx512 and lanes % _SCALEF_LANES == 0
        self.lines: list[str] = []

    def type(self, element: str) -> str:
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def constant(self, element: str, value: float) -> str:
        text = _float_literal(value) if element == "float" else str(int(value))
        return text if self.lanes == 1 else f"<{', '.join([f'{element} {text}'] * self.lanes)}>"

    def add(self, element: str, instruction: str) -> _Value:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {instruction}")
        return _Value(self, element, name)


def _float_literal(value: float) -> str:
    """LLVM writes a float as the bits of the equal double."""
    (single,) = struct.unpack("f", struct.pack("f", value))
    return f"0x{struct.pack('>d', single).hex().upper()}"


class _Value:
    """A vector of ``element`` (float, i32, or i1 for comparisons); operators add instructions."""

    def __init__(self, body: _Body, element: str, name: str):
        self.body, self.element, self.name = body, element, name

    def _binary(self, instruction: str, other: _Value | float, result: str | None = None) -> _Value:
        operand = other.name if isinstance(other, _Value) else self.body.constant(self.element, other)
        text = f"{instruction} {self.body.type(self.element)} {self.name}, {operand}"
        return self.body.add(result or self.element, text)

    def _arithmetic(self, operation: str, other: _Value | float) -> _Value:
        return self._binary(f"f{operation}" if self.element == "float" else operation, other)

    def __add__(self, other: _Value | float) -> _Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: _Value | float) -> _Value:
        return self._arithmetic("sub", other)

    def __mul__(self, other: _Value | float) -> _Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: _Value) -> _Value:
        return self._binary("fdiv", other)

    def __and__(self, mask: int) -> _Value:
        return self._binary("and", mask)

    def __lshift__(self, bits: int) -> _Value:
        return self._binary("shl", bits)

    def __rshift__(self, bits: int) -> _Value:
        return self._binary("ashr", bits)

    def __lt__(self, other: float) -> _Value:
        return self._binary("fcmp olt", other, "i1")

    def __gt__(self, other: float) -> _Value:
        return self._binary("fcmp ogt", other, "i1")

    def is_zero(self) -> _Value:
        return self._binary("fcmp oeq", 0.0, "i1")

    def choose(self, then: _Value | float, otherwise: _Value | float) -> _Value:
        """Of each comparison, one of two values; at least one of them is a vector."""
        element = next(v.element for v in (then, otherwise) if isinstance(v, _Value))
        kind = self.body.type(element)
        names = [v.name if isinstance(v, _Value) else self.body.constant(element, v) for v in (then, otherwise)]
        text = f"select {self.body.type('i1')} {self.name}, {kind} {names[0]}, {kind} {names[1]}"
        return self.body.add(element, text)

    def _convert(self, instruction: str, element: str) -> _Value:
        kind = self.body.type(self.element)
        return self.body.add(element, f"{instruction} {kind} {self.name} to {self.body.type(element)}")

    def bits(self) -> _Value:
        return self._convert("bitcast", "i32")

    def from_bits(self) -> _Value:
        return self._convert("bitcast", "float")

    def to_float(self) -> _Value:
        return self._convert("sitofp", "float")

    def pieces(self, lanes: int) -> list[_Value]:
        """The vector cut into vectors of ``lanes`` elements, for instructions that know one width."""
        if self.body.lanes == lanes:
            return [self]
        kind = self.body.type(self.element)
        found = []
        for start in range(0, self.body.lanes, lanes):
            mask = ", ".join(f"i32 {start + i}" for i in range(lanes))
            text = f"shufflevector {kind} {self.name}, {kind} poison, <{lanes} x i32> <{mask}>"
            found.append(self.body.add(self.element, text))
        return found

    def magnitude(self) -> _Value:
        return (self.bits() & 0x7FFFFFFF).from_bits()


def _horner(coefficients: Sequence[float], x: _Value) -> _Value:
    result = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result = result * x + coefficient
    return result


def _clamp(x: _Value, low: float, high: float) -> _Value:
    """``x`` in [low, high]; NaN stays NaN, as both comparisons are false."""
    x = (x > high).choose(high, x)
    return (x < low).choose(low, x)


def _pow2(n: _Value) -> _Value:
    """``2.0**n`` for an i32 ``n`` in [-126, 127]."""
    return ((n + 127) << 23).from_bits()


def _scale(x: _Value, z: _Value) -> _Value:
    """``x * 2.0**n``, rounded once, for n in [-150, 128] as the float ``z = n + _ROUND_MAGIC``."""
    if x.body.scales_at_once:
        return _scalef(x, z - _ROUND_MAGIC)
    n = z.bits() - _ROUND_MAGIC_BITS
    half = n >> 1
    return x * _pow2(half) * _pow2(n - half)


def _scalef(x: _Value, n: _Value) -> _Value:
    """``x * 2.0**n`` in one instruction of AVX-512."""
    kind = f"<{_SCALEF_LANES} x float>"
    x.body.declarations.add(f"declare {kind} @{_SCALEF}({kind}, {kind}, {kind}, i16, i32)\n")
    pairs = zip(x.pieces(_SCALEF_LANES), n.pieces(_SCALEF_LANES), strict=True)
    parts = [
        x.body.add("float", f"call {kind} @{_SCALEF}({kind} {a.name}, {kind} {b.name}, {kind} {a.name}, i16 -1, i32 4)")
        for a, b in pairs
    ]
    lanes = _SCALEF_LANES
    while len(parts) > 1:
        kind, mask = f"<{lanes} x float>", ", ".join(f"i32 {i}" for i in range(2 * lanes))
        parts = [
            x.body.add("float", f"shufflevector {kind} {a.name}, {kind} {b.name}, <{2 * lanes} x i32> <{mask}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        lanes *= 2
    return parts[0]


def _exp(x: _Value) -> _Value:
    """e**x: x = n ln 2 + r with |r| <= ln 2 / 2, then a polynomial in r times 2**n."""
    x = _clamp(x, -104.0, 89.0)  # beyond, the result is inf above and 0 below in any case
    z = x * _LOG2_E + _ROUND_MAGIC
    rounded = z - _ROUND_MAGIC
    r = x - rounded * _LN2_HIGH - rounded * _LN2_LOW
    return _scale((_horner(_EXP_POLY, r) * r + 1.0) * r + 1.0, z)


def _exp_negative(x: _Value) -> _Value:
    """e**x for x <= 0 in fewer steps: with ln 2 in one piece, which leaves an error that grows with -x."""
    x = (x < -104.0).choose(-104.0, x)
    z = x * _LOG2_E + _ROUND_MAGIC
    r = x - (z - _ROUND_MAGIC) * _LN2
    return _scale((_horner(_EXP_POLY, r) * r + 1.0) * r + 1.0, z)


def _log(x: _Value) -> _Value:
    """ln x: x = 2**e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), then a polynomial in f."""
    tiny = x < _MIN_NORMAL
    # Less the bits of sqrt(1/2), the exponent steps exactly where the mantissa passes it.
    shifted = tiny.choose(x * 8388608.0, x).bits() - 0x3F3504F3
    f = ((shifted & 0x7FFFFF) + 0x3F3504F3).from_bits() - 1.0
    exponent = (shifted >> 23).to_float()
    e = tiny.choose(exponent - 23.0, exponent)
    y = _horner(_LOG_POLY, f) * f * (f * f) + e * _LN2_LOW - f * f * 0.5
    value = (x < float("inf")).choose(f + y + e * _LN2_HIGH, x)  # inf and NaN are their own logarithms
    value = (x < 0.0).choose(float("nan"), value)
    return x.is_zero().choose(float("-inf"), value)


def _sigmoid(x: _Value) -> _Value:
    """1 / (1 + e**-x), from e**-|x| so that nothing overflows before its time."""
    e = _exp(x.magnitude() * -1.0)
    return (x < 0.0).choose(e, 1.0) / (e + 1.0)


def _tanh(x: _Value) -> _Value:
    """A rational in x, equal to +-1 from where float32 rounds to it; x itself where that is exact."""
    c = _clamp(x, -7.90531110763549805, 7.90531110763549805)
    s = c * c
    ratio = c * (_horner(_TANH_NUM, s) / _horner(_TANH_DEN, s))
    return (x.magnitude() < 0.0004).choose(x, ratio)


def _erf(x: _Value) -> _Value:
    """A rational in x on [-4, 4], where float32 has rounded to +-1."""
    c = _clamp(x, -4.0, 4.0)
    s = c * c
    return c * (_horner(_ERF_NUM, s) / _horner(_ERF_DEN, s))


FUNCTIONS = {
    "exp": _exp,
    "exp_negative": _exp_negative,
    "log": _log,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "erf": _erf,
    "square": lambda x: x * x,
    "cube": lambda x: x * x * x,
}
"""Each with its definition; square and cube stand for powers, as `x * x` would compute `x` twice."""
