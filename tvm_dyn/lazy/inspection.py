"""What will run: the programs behind an array that is not computed yet."""

from __future__ import annotations

from tvm_dyn.lazy.array import Array
from tvm_dyn.lazy.run import plan_for


def disassemble(array: Array) -> str:
    """The programs that computing ``array`` would run now, in order, each with its space; "" where it is there.

    Operands that programs need as copies are computed for that.
    """
    plan = plan_for(array._node)
    if plan is None:
        return ""
    texts = []
    for program in plan.programs:
        space = program.space
        texts.append(f"rows {space.axes}, columns {space.columns}\n{program.code.disassemble()}")
    return "\n\n".join(texts)
