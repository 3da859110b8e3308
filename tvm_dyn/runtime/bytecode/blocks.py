"""Statements of TIR in the making, and functions that only other functions of the interpreter call."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Call, Expr, GlobalVar, Op, PointerType, PrimType
from tvm.tirx import PrimFunc, Stmt, Var

from tvm_dyn.runtime.bytecode.cache import ENTRY
from tvm_dyn.schedules import emit
from tvm_dyn.schedules.emit import const

_MEMORY = 1 << 40
"""Elements of a buffer that stands for all memory from an address on."""


class Block:
    """Statements in the making."""

    def __init__(self) -> None:
        self.statements: list[Stmt] = []

    def add(self, *statements: Stmt) -> None:
        self.statements += statements

    def let(self, value: Expr, name: str = "v") -> Var:
        """The value, computed here and once."""
        variable = Var(name, str(value.ty))
        self.add(tirx.stmt.Bind(variable, value))
        return variable

    def at(self, address: Expr, dtype: str = "int64") -> tirx.Buffer:
        """The memory from an address on."""
        pointer = Var("p", PointerType(PrimType(dtype)))
        self.add(tirx.stmt.Bind(pointer, Call(Op.get("tirx.reinterpret"), [address], ret_ty=pointer.ty)))
        buffer = tirx.decl_buffer((const(_MEMORY),), dtype, "memory")
        self.add(tirx.stmt.DeclBuffer(buffer, data=pointer))
        return buffer

    def scratch(self, count: int, dtype: str) -> tirx.Buffer:
        buffer = tirx.decl_buffer((const(count),), dtype, "scratch")
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def loop(self, extent: Expr, body: Callable[[Block, Expr], None]) -> None:
        def nested(index: Expr) -> Stmt:
            block = Block()
            body(block, index)
            return block.stmt()

        self.add(emit.serial(extent, nested))

    def when(self, condition: Expr, body: Callable[[Block], None]) -> None:
        block = Block()
        body(block)
        self.add(tirx.IfThenElse(condition, block.stmt(), None))

    def store(self, buffer: tirx.Buffer, value: Expr, index: Expr | int) -> None:
        self.add(tirx.BufferStore(buffer, value, [const(index) if isinstance(index, int) else index]))

    def stmt(self) -> Stmt:
        return emit.seq(*self.statements)


def internal(name: str, params: list[Var], body: Stmt) -> PrimFunc:
    """A function that is only called from TIR.

    Its symbol is visible, as LLVM always inlines what has but one caller that it knows of.
    """
    symbol = f"{ENTRY}_{name}"
    return PrimFunc(params, body).with_attrs({"calling_conv": -1, "tirx.noalias": False, "global_symbol": symbol})


def call_function(function: GlobalVar, *args: Expr) -> Stmt:
    """A call for what it does."""
    return tirx.Evaluate(Call(function, list(args), ret_ty=PrimType("void")))
