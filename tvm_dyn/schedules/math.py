"""Vector polynomials in place of calls into the math library.

    y[i] = T.exp(x[i])        # a libm call per element: the loop cannot be vectorized
    --->
    with T.attr(0, "pragma_import_llvm", "define float @tvm_dyn_exp_f32x1(float %x) { ... }"):
        y[i] = tvm_dyn.exp(x[i])

The operators ``tvm_dyn.*`` become calls of those functions, which LLVM inlines, in the last of TVM's passes:
its simplifier does not come to an end over polynomials of nested calls that are spelled out in TIR.

Largest errors against the exact value, over the whole range of float32 (tested): exp and log 1 ulp, sigmoid
2.5 ulp, exp_negative 4.5 ulp, tanh 5 ulp, erf 7.5 ulp (of 0.99: 2.5 and 3.8 relative to 1). NaN, infinities,
overflow, underflow and denormals come out as in the C library. float16 and bfloat16 go through float32; float64
stays with the library.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, Op
from tvm.target import Target
from tvm.tirx import ForKind, PrimFunc, Stmt

from tvm_dyn import hardware
from tvm_dyn.schedules import llvm_math
from tvm_dyn.schedules.common import changed, collect

_PREFIX = "tvm_dyn."
_PURE = 1  # TVM's CallEffectKind
_HALF = ("float16", "bfloat16")
_POWERS = {2: "square", 3: "cube"}


def legalize_math(func: PrimFunc, target: Target) -> PrimFunc:
    """Replace exp, log, tanh, sigmoid, erf and small constant powers of float32, float16 and bfloat16.

    Functions on vectors, be it through a vectorized loop, come in every width that occurs.
    """
    body = tvm_ffi.structural_map(func.body, (Call, _rewrite), order="post")
    calls = [c for c in collect(body, Call) if getattr(c.op, "name", "").startswith(_PREFIX)]
    if not calls:
        return func.with_body(body)
    vectorized = [loop for loop in collect(body, tirx.For) if loop.kind == ForKind.VECTORIZED]
    lanes = {_lanes(call) for call in calls} | {int(loop.extent) for loop in vectorized}
    names = {call.op.name.removeprefix(_PREFIX) for call in calls}
    source = llvm_math.define(names, lanes, hardware.has_feature(target, "avx512f"))
    return func.with_body(_import(source, body))


def exp_negative(x: Expr) -> Expr:
    """e**x of a float32 that is not above 0 (NaN is NaN); off by at most 4.5 ulp, 1.5 ulp from -20 on."""
    return _single("exp_negative", x, str(x.ty))


def _rewrite(call: Call) -> Expr:
    name = getattr(call.op, "name", "").removeprefix("tirx.")
    dtype = str(call.ty)
    if name == "pow":
        return _power(call, dtype)
    element = dtype.split("x")[0]
    if name in llvm_math.FUNCTIONS and element in ("float32", *_HALF):
        return _single(name, call.args[0], dtype)
    return call


def _single(name: str, value: Expr, dtype: str) -> Expr:
    """The function of our own, on float32."""
    kind = dtype.replace("bfloat16", "float32").replace("float16", "float32")
    return Call(Op.get(_PREFIX + name), [value.astype(kind)], ret_ty=kind).astype(dtype)


def _power(call: Call, dtype: str) -> Expr:
    """``x**exponent`` for the constant exponents that models use."""
    x, exponent = call.args
    value = getattr(exponent, "value", None)
    if value == 0.5:
        return tirx.sqrt(x)
    if value not in _POWERS:
        return call
    if dtype in ("float32", *_HALF):
        return _single(_POWERS[value], x, dtype)
    var = tirx.Var("base", dtype)
    return tirx.Let(var, x, var * var if value == 2 else var * var * var)


def _lanes(call: Call) -> int:
    return int(str(call.ty).removeprefix("float32").removeprefix("x") or 1)


def _import(source: str, body: Stmt) -> Stmt:
    """``body`` with LLVM functions at its disposal."""

    def around(stmt: Stmt) -> Stmt:
        return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", tvm.ir.StringImm(source), stmt)

    if not isinstance(body, s_tir.SBlockRealize):
        return around(body)
    root = body.block
    block = changed(root, body=around(root.body))
    return s_tir.SBlockRealize(body.iter_values, body.predicate, block)


def _register(name: str) -> None:
    """The operator ``tvm_dyn.<name>``; TVM vectorizes it as it does its own."""

    def lower(call: Call) -> Expr:
        return tirx.call_pure_extern(str(call.ty), llvm_math.symbol(name, _lanes(call)), *call.args)

    tvm.ir._ffi_api.RegisterOp(_PREFIX + name, "")
    tvm.ir.register_op_attr(_PREFIX + name, "TCallEffectKind", _PURE)
    tvm.ir.register_op_attr(_PREFIX + name, "TVectorizable", True)
    tirx.op.register_intrin_lowering(_PREFIX + name, target="llvm", f=lower)


for _name in llvm_math.FUNCTIONS:
    _register(_name)
