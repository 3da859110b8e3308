"""A square of float32 values transposed in registers, as an LLVM function.

    define i32 @tvm_dyn_transpose_f32x16(ptr %from, i64 %step, ptr %to, i64 %stride) { ...

Reads rows that are ``step`` elements apart and writes them, transposed, to rows that are ``stride`` elements apart.
The method is Eklundh's (1972): log2(lanes) steps, each of which exchanges the off-diagonal halves of ever smaller
squares.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Stmt


def transpose(source: Expr, destination: Expr, stride: Expr | int, lanes: int, step: Expr | int | None = None) -> Stmt:
    """Transpose the square at the address ``source``, contiguous without ``step``; within `importing`."""
    steps = [tirx.const(s, "int64") if isinstance(s, int) else s for s in (lanes if step is None else step, stride)]
    call = tirx.call_extern("int32", _symbol(lanes), source, steps[0], destination, steps[1])
    return tirx.Evaluate(call)


def importing(lanes: int, body: Stmt) -> Stmt:
    """``body`` with the function for squares of ``lanes`` rows at its disposal."""
    source = tvm.ir.StringImm(_define(lanes))
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", source, body)


def _symbol(lanes: int) -> str:
    return f"tvm_dyn_transpose_f32x{lanes}"


def _define(lanes: int) -> str:
    vector, lines = f"<{lanes} x float>", []
    rows = [f"%r{i}" for i in range(lanes)]
    for i, row in enumerate(rows):
        lines.append(f"%f{i} = mul i64 %step, {i}")
        lines.append(f"%a{i} = getelementptr float, ptr %from, i64 %f{i}")
        lines.append(f"{row} = load {vector}, ptr %a{i}, align 4")
    half = lanes // 2
    while half:
        for i in (i for i in range(lanes) if not i & half):
            names = [f"%s{half}_{i}", f"%s{half}_{i + half}"]
            for name, mask in zip(names, _exchange(lanes, half), strict=True):
                indices = ", ".join(f"i32 {lane}" for lane in mask)
                pair = f"{vector} {rows[i]}, {vector} {rows[i + half]}"
                lines.append(f"{name} = shufflevector {pair}, <{lanes} x i32> <{indices}>")
            rows[i], rows[i + half] = names
        half //= 2
    for i, row in enumerate(rows):
        lines.append(f"%o{i} = mul i64 %stride, {i}")
        lines.append(f"%b{i} = getelementptr float, ptr %to, i64 %o{i}")
        lines.append(f"store {vector} {row}, ptr %b{i}, align 4")
    text = "\n".join(f"  {line}" for line in lines)
    return f"define i32 @{_symbol(lanes)}(ptr %from, i64 %step, ptr %to, i64 %stride) {{\n{text}\n  ret i32 0\n}}\n"


def _exchange(lanes: int, half: int) -> tuple[list[int], list[int]]:
    """Shuffles of a pair of rows, ``half`` apart, that exchange the off-diagonal squares of that size."""
    upper = [lanes + j - half if j & half else j for j in range(lanes)]
    lower = [lanes + j if j & half else j + half for j in range(lanes)]
    return upper, lower
