"""Casts from and to 8-bit floats, whose bytes are made and read by integer arithmetic.

The formats are those of the ONNX operator Cast (version 19): round half to even, saturate or overflow to NaN/infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from tvm import te, tirx

from tvm_dyn.errors import InvalidModelError
from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value


@dataclass(frozen=True)
class Format:
    """One byte: sign, exponent, `mantissa` bits. largest, infinity, nan: codes without sign (nan with it for fnuz)."""

    mantissa: int
    bias: int
    largest: int
    nan: int
    infinity: int | None = None

    @property
    def unsigned_zero(self) -> bool:
        return self.nan == 0x80


FORMATS = {
    "float8_e4m3fn": Format(3, 7, 0x7E, 0x7F),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, 0x80),
    "float8_e5m2": Format(2, 15, 0x7B, 0x7F, 0x7C),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, 0x80),
}


def cast_float8(ctx: Context, node: Node, source: str, target: str) -> Value:
    """Cast or CastLike where one side at least is an 8-bit float."""
    saturate = bool(node.attr("saturate", 1))

    def convert(x: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            value = x(*i)
            if source in FORMATS:
                value = decode(tirx.reinterpret("uint8", value), FORMATS[source])
            if target in FORMATS:
                return tirx.reinterpret(target, encode(value.astype("float32"), FORMATS[target], saturate))
            return value != tirx.const(0.0, "float32") if target == "bool" else value.astype(target)

        return te.compute(x.shape, at, name="cast_float8")

    return ctx.emit_te(convert, ctx.tensor(node.data()))


@converter("BitCast", since=26)
def bit_cast(ctx: Context, node: Node) -> Value:
    """The same bits as another type of the same width."""
    source, target = node.data().dtype, str(onnx.helper.tensor_dtype_to_np_dtype(node.attr("to")))
    if np.dtype(source).itemsize != np.dtype(target).itemsize:
        raise InvalidModelError(f"{node.label}: {source} and {target} differ in width")

    def reinterpret(x: Any) -> Any:
        bits = x.astype("uint8") if source == "bool" else x
        return bits != tirx.const(0, bits.ty.dtype) if target == "bool" else tirx.reinterpret(target, bits)

    return ctx.elementwise("bit_cast", reinterpret, node.data())


def encode(x: Any, form: Format, saturate: bool) -> Any:
    """float32 -> the byte of the nearest number of the format.

    With e the exponent, kept at that of the smallest normal number or above, |x| is q * 2**(e - mantissa); the code is
    then q plus the distance of e from the smallest exponent, and a carry of the rounding moves into the exponent.
    """
    bits = tirx.reinterpret("uint32", x)  # unsigned: TVM promotes int32 arithmetic of a definition to int64
    lowest = 128 - form.bias
    exponent = tirx.max((bits >> _u(23)) & _u(255), _u(lowest))
    scale = tirx.reinterpret("float32", (_u(254 + form.mantissa) - exponent) << _u(23))
    steps = tirx.nearbyint(tirx.abs(x) * scale).astype("uint32")
    code = steps + ((exponent - _u(lowest)) << _u(form.mantissa))
    overflow = form.largest if saturate else form.nan if form.infinity is None else form.infinity
    beyond = (code > _u(form.largest)) | (tirx.abs(x) > _f(3.0e38))
    code = tirx.Select(beyond, _u(overflow), code)
    sign = (bits >> _u(24)) & _u(0x80)
    if form.unsigned_zero:
        sign = tirx.Select((code == _u(0)) | (code == _u(0x80)), _u(0), sign)
    not_a_number = (bits & _u(0x7FFFFFFF)) > _u(0x7F800000)  # TVM's simplifier takes x != x for false
    return tirx.Select(not_a_number, _u(form.nan), code | sign).astype("uint8")


def decode(byte: Any, form: Format) -> Any:
    """The byte's number as float32."""
    code = byte.astype("int32")
    magnitude = code & _i(0x7F)
    exponent = magnitude >> _i(form.mantissa)
    fraction = magnitude & _i((1 << form.mantissa) - 1)
    steps = tirx.Select(exponent == _i(0), fraction, fraction + _i(1 << form.mantissa))
    power = tirx.max(exponent, _i(1)) - _i(form.bias + form.mantissa)
    value = steps.astype("float32") * tirx.reinterpret("float32", (power + _i(127)) << _i(23))
    value = tirx.Select(code >= _i(0x80), -value, value)
    if form.unsigned_zero:
        return tirx.Select(code == _i(form.nan), _f(float("nan")), value)
    if form.infinity is not None:
        infinite = tirx.Select(code >= _i(0x80), _f(float("-inf")), _f(float("inf")))
        value = tirx.Select(magnitude == _i(form.infinity), infinite, value)
        return tirx.Select(magnitude > _i(form.infinity), _f(float("nan")), value)
    return tirx.Select(magnitude == _i(form.nan), _f(float("nan")), value)


def _i(value: int) -> Any:
    return tirx.const(value, "int32")


def _u(value: int) -> Any:
    return tirx.const(value, "uint32")


def _f(value: float) -> Any:
    return tirx.const(value, "float32")
