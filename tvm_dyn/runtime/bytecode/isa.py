"""The instruction set: one row for each opcode, from which interpreter, encoder and disassembly are made.

    add.f32.vs  d, a, b      d[i] = a[i] + b          for a tile of float32 and one value for each of its rows

A *map* computes one element from the same element of each operand; the letters of its form say which operands are
vectors (v) and which have one value a row (s). A *reduction* folds the row of an operand to one value. A
*movement* gets at memory that a tile cannot address in place. NaN, infinities and overflow are numpy's: integers
wrap, as their arithmetic is that of the unsigned type with the same bits; maxima and minima of a NaN are NaN.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm import tirx

Body = Callable[..., Any]

SHORT = {
    "float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "bool": "b8", "float16": "f16",
    "bfloat16": "bf16",
}  # fmt: skip
"""The dtypes of values, by the name that mnemonics use."""

BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1, "float16": 2, "bfloat16": 2}
ARITHMETIC = ("float32", "float64", "int32", "int64")
FLOATS = ("float32", "float64")

_STORED = {"bool": "uint8", "bfloat16": "uint16"}
_WRAPPING = {"int32": "uint32", "int64": "uint64"}


@dataclass(frozen=True)
class Opcode:
    """A row of the table.

    kind: map, reduce, find, load, gather, or one of `BY_ROW`. inputs, output: TIR's dtypes.
    body: of a map, the element from the operands' elements; of a reduction, (total, element) -> total.
    identity: what a reduction starts from.
    """

    mnemonic: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    body: Body
    form: str = ""
    identity: float | int = 0


@functools.cache
def mnemonic(name: str, dtype: str, form: str = "") -> str:
    """What the opcode ``name`` on ``dtype`` is called; a form of vectors only goes without saying."""
    return f"{name}.{SHORT[dtype]}.{form}" if "s" in form else f"{name}.{SHORT[dtype]}"


def cast_mnemonic(source: str, target: str) -> str:
    """What the opcode that converts between two dtypes is called."""
    return f"cast.{SHORT[source]}.{SHORT[target]}"


# ---- elements

def _choose(condition: Any, then: Any, otherwise: Any) -> Any:
    return tirx.Select(condition, then, otherwise)


def _is_nan(x: Any) -> Any:
    """TVM folds ``x != x``, so the bits have to tell."""
    if str(x.ty).startswith("float64"):
        bits, magnitude, infinity = "int64", 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000
    else:
        bits, magnitude, infinity = "int32", 0x7FFFFFFF, 0x7F800000
    return (tirx.reinterpret(bits, x) & tirx.const(magnitude, bits)) > tirx.const(infinity, bits)


def maximum(a: Any, b: Any) -> Any:
    """The larger one, NaN where either is."""
    larger = _choose(a > b, a, b)
    return _choose(_is_nan(a), a, larger) if "float" in str(a.ty) else larger


def minimum(a: Any, b: Any) -> Any:
    """The smaller one, NaN where either is."""
    smaller = _choose(a < b, a, b)
    return _choose(_is_nan(a), a, smaller) if "float" in str(a.ty) else smaller


def _relu(x: Any) -> Any:
    return _choose(x < _like(0, x), _like(0, x), x)


def _gelu(x: Any) -> Any:
    half = x * _like(0.5, x)
    return half + half * tirx.erf(x * _like(0.7071067811865476, x))


def _sign(x: Any) -> Any:
    return _choose(x > _like(0, x), _like(1, x), _choose(x < _like(0, x), _like(-1, x), x))


def _like(value: float, x: Any) -> Any:
    return tirx.const(value, str(x.ty))


def _truth(condition: Any) -> Any:
    return condition.astype("uint8")


def _differ(a: Any, b: Any) -> Any:
    """TVM's own inequality does not hold for NaN."""
    equal = _truth(tirx.EQ(a, b))
    return equal ^ _like(1, equal)


_BINARY: dict[str, Body] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "sub": lambda a, b: a - b,
    "div": lambda a, b: a / b,
    "max": maximum,
    "min": minimum,
}
COMMUTATIVE = frozenset({"add", "mul", "max", "min", "eq", "ne", "and", "or", "xor"})
_COMPARE: dict[str, Body] = {
    "eq": lambda a, b: _truth(tirx.EQ(a, b)),
    "ne": lambda a, b: _differ(a, b),
    "lt": lambda a, b: _truth(a < b),
    "le": lambda a, b: _truth(a <= b),
    "gt": lambda a, b: _truth(a > b),
    "ge": lambda a, b: _truth(a >= b),
}
FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
"""What a comparison becomes when its operands change places."""

_UNARY: dict[str, Body] = {
    "neg": lambda x: x * _like(-1, x),
    "abs": tirx.abs,
    "sqrt": tirx.sqrt,
    "square": lambda x: x * x,
    "recip": lambda x: _like(1, x) / x,
    "floor": tirx.floor,
    "ceil": tirx.ceil,
    "trunc": tirx.trunc,
    "rint": tirx.nearbyint,
    "sign": _sign,
}
_TRANSCENDENTAL: dict[str, Body] = {
    "rsqrt": lambda x: _like(1, x) / tirx.sqrt(x),
    "exp": tirx.exp,
    "log": tirx.log,
    "tanh": tirx.tanh,
    "erf": tirx.erf,
    "sigmoid": tirx.sigmoid,
    "relu": _relu,
    "gelu": _gelu,
    "silu": lambda x: x * tirx.sigmoid(x),
}
"""Of float32 only: there the polynomials of `tvm_dyn.schedules.math` take the place of a call for each element."""

_LOGICAL: dict[str, Body] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}

BY_ROW = {"softmax": 1, "standardize": 2, "layer_norm": 4}
"""Maps of float32 that need the whole row, a tile from a tile in one instruction each, with their operands' number.

softmax: exp(a - max(a)) over the sum of the same. standardize: (a - mean(a)) / sqrt(variance(a) + b).
layer_norm: the same * c + e, where c and e are rows.
"""

SUPER: dict[tuple[str, str], tuple[str, ...]] = {
    ("add", "relu"): ("vv", "vs"),
    ("add", "gelu"): ("vv", "vs"),
    ("add", "tanh"): ("vs",),
    ("add", "sigmoid"): ("vs",),
    ("sub", "exp"): ("vs",),
    ("sub", "square"): ("vs",),
    ("mul", "tanh"): ("vs",),
    ("mul", "add"): ("vvv", "vsv", "vvs", "vss"),
    ("mul", "sub"): ("vvv", "vsv", "vvs", "vss"),
    ("sub", "mul"): ("vvv", "vsv", "vss"),
    ("add", "add"): ("vvv", "vsv"),
    ("add", "mul"): ("vvv", "vsv", "vss"),
    ("mul", "mul"): ("vvv", "vsv"),
}
"""Pairs of float32 instructions that one super-instruction stands for, with its forms.

The first one's result is the second one's first operand and goes nowhere else. It is rounded in between, so that a
program's results do not depend on what was joined.
"""


# ---- rows of the table

def _maps() -> Iterator[Opcode]:
    for dtype in ARITHMETIC:
        yield from _arithmetic(dtype)
    for name, body in _TRANSCENDENTAL.items():
        yield _map(name, "float32", body, "v")
    for name, body in _LOGICAL.items():
        yield _map(name, "bool", body, "vv")
    yield _map("eq", "bool", lambda a, b: _truth(tirx.EQ(a, b)), "vv")
    yield _map("not", "bool", lambda x: x ^ _like(1, x), "v")
    for dtype in SHORT:
        for form in ("v", "s"):
            yield _map("copy", dtype, lambda x: x, form)
    for dtype in (*ARITHMETIC, "bool"):
        stored = _stored(dtype)
        for form in ("vvv", "vsv", "vvs", "svv", "ssv", "svs") if dtype == "float32" else ("vvv",):
            yield Opcode(mnemonic("where", dtype, form), "map", ("uint8", stored, stored), stored, _where, form)
    for (first, second), forms in SUPER.items():
        for form in forms:
            yield _map(f"{first}_{second}", "float32", _composed(first, second), form)


def _arithmetic(dtype: str) -> Iterator[Opcode]:
    is_float = dtype in FLOATS
    for name, body in _BINARY.items():
        if name == "div" and not is_float:
            continue
        operands = dtype if name in ("max", "min") else _WRAPPING.get(dtype, dtype)
        for form in ("vv", "vs") if name in COMMUTATIVE else ("vv", "vs", "sv"):
            yield Opcode(mnemonic(name, dtype, form), "map", (operands, operands), operands, body, form)
    for name, body in _COMPARE.items():
        for form in ("vs",) if name in ("gt", "ge") else ("vv", "vs"):
            yield Opcode(mnemonic(name, dtype, form), "map", (dtype, dtype), "uint8", body, form)
    for name, body in _UNARY.items():
        if is_float or name in ("neg", "abs", "sign", "square"):
            operand = _WRAPPING.get(dtype, dtype) if name == "square" else dtype
            yield Opcode(mnemonic(name, dtype), "map", (operand,), operand, body, "v")


def _map(name: str, dtype: str, body: Body, form: str) -> Opcode:
    stored = _stored(dtype)
    return Opcode(mnemonic(name, dtype, form), "map", (stored,) * len(form), stored, body, form)


def _where(condition: Any, then: Any, otherwise: Any) -> Any:
    return _choose(tirx.NE(condition, _like(0, condition)), then, otherwise)


def _composed(first: str, second: str) -> Body:
    inner = _BINARY[first]
    outer = {**_BINARY, **_UNARY, **_TRANSCENDENTAL}[second]
    return lambda a, b, *rest: outer(_rounded(inner(a, b)), *rest)


def _rounded(x: Any) -> Any:
    """The value as it is stored: LLVM may not carry more digits of it into the next operation."""
    return tirx.call_llvm_pure_intrin(str(x.ty), "llvm.arithmetic.fence", x)


def _casts() -> Iterator[Opcode]:
    numbers = (*ARITHMETIC, "bool")
    pairs = [(s, t) for s in numbers for t in numbers if s != t]
    pairs += [("float32", half) for half in ("float16", "bfloat16")]
    pairs += [(half, "float32") for half in ("float16", "bfloat16")]
    for source, target in pairs:
        yield Opcode(
            cast_mnemonic(source, target), "map", (_stored(source),), _stored(target), _cast(source, target), "v"
        )


def _cast(source: str, target: str) -> Body:
    if target == "bool":
        return lambda x: _differ(x, _like(0, x))
    if target == "bfloat16":
        return _round_to_bfloat16
    if source == "bfloat16":
        return lambda x: tirx.reinterpret("float32", x.astype("uint32") << tirx.const(16, "uint32"))
    return lambda x: x.astype(target)


def _round_to_bfloat16(x: Any) -> Any:
    """The upper half of the bits, rounded to even; of a NaN, a quiet one."""
    bits = tirx.reinterpret("uint32", x)
    sixteen = tirx.const(16, "uint32")
    upper = bits >> sixteen
    rounded = (bits + tirx.const(0x7FFF, "uint32") + (upper & tirx.const(1, "uint32"))) >> sixteen
    return _choose(_is_nan(x), upper | tirx.const(0x40, "uint32"), rounded).astype("uint16")


def _reductions() -> Iterator[Opcode]:
    for dtype in ARITHMETIC:
        low, high = _bounds(dtype)
        wrapping = _WRAPPING.get(dtype, dtype)
        yield _reduction("rsum", dtype, wrapping, _BINARY["add"], 0)
        yield _reduction("rprod", dtype, wrapping, _BINARY["mul"], 1)
        yield _reduction("rmax", dtype, dtype, maximum, low)
        yield _reduction("rmin", dtype, dtype, minimum, high)
    yield _reduction("rsumsq", "float32", "float32", _BINARY["add"], 0)
    yield _reduction("rany", "bool", "uint8", _LOGICAL["or"], 0)
    yield _reduction("rall", "bool", "uint8", _LOGICAL["and"], 1)
    for name, count in BY_ROW.items():
        yield Opcode(mnemonic(name, "float32"), name, ("float32",) * count, "float32", lambda *operands: operands)
    for dtype in ARITHMETIC:
        yield Opcode(mnemonic("find", dtype), "find", (dtype, dtype), "int64", _matches)


def _reduction(name: str, dtype: str, stored: str, body: Body, identity: float | int) -> Opcode:
    return Opcode(mnemonic(name, dtype), "reduce", (stored,), stored, body, identity=identity)


NOT_FOUND = 2**62
"""What ``find`` gives where a row has no such element."""


def stored_bytes(stored: str) -> int:
    """Bytes of an element of a TIR dtype."""
    return int(stored.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8


def _bounds(dtype: str) -> tuple[float | int, float | int]:
    if dtype in FLOATS:
        return float("-inf"), float("inf")
    bits = 8 * BYTES[dtype]
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _matches(x: Any, wanted: Any) -> Any:
    """Whether ``x`` is the value looked for; all NaNs are the same."""
    same = tirx.EQ(x, wanted)
    return tirx.Or(same, tirx.And(_is_nan(x), _is_nan(wanted))) if "float" in str(x.ty) else same


def _movements() -> Iterator[Opcode]:
    for dtype, stored in (("bool", "uint8"), ("float16", "uint16"), ("float32", "uint32"), ("float64", "uint64")):
        width = f"w{8 * BYTES[dtype]}"
        yield Opcode(f"load.{width}", "load", (stored,), stored, lambda x: x)
        yield Opcode(f"gather.{width}", "gather", (stored, "int64"), stored, lambda x: x)


def _stored(dtype: str) -> str:
    return _STORED.get(dtype, dtype)


OPCODES: tuple[Opcode, ...] = (*_maps(), *_casts(), *_reductions(), *_movements())
NUMBER: dict[str, int] = {opcode.mnemonic: number for number, opcode in enumerate(OPCODES)}


def movement(name: str, dtype: str) -> str:
    """The mnemonic of a load or gather; all dtypes of a width share it."""
    return f"{name}.w{8 * BYTES[dtype]}"


@functools.cache
def version() -> str:
    """A digest of everything the interpreter's code is made from."""
    here = Path(__file__).parent
    parts = ("isa.py", "interpreter.py", "layout.py", "opcodes.py", "blocks.py", "fold.py")
    sources = [here / name for name in parts]
    sources += [here.parents[1] / "schedules" / name for name in ("llvm_math.py", "math.py", "emit.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
