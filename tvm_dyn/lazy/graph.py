"""What was asked for and not yet computed: nodes of an expression graph."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_dyn.runtime.bytecode import isa

Shape = tuple[int, ...]

fallbacks: Counter[str] = Counter()
"""How often numpy computed an operation in the place of the virtual machine, by name."""


class Node:
    """An array to come, or one that is there (``value``).

    op: as in the table of opcodes; "alias" gives the elements of its operand another shape that differs in axes of
    extent 1 only. attr: of reductions the layout they lead to, by name. owner: the `Array` that stands for the node,
    while somebody holds it.
    """

    __slots__ = ("_address", "args", "attr", "dtype", "op", "owner", "shape", "value")

    args: tuple[Node, ...]
    value: Any

    def __init__(
        self, op: str, args: tuple[Node, ...], dtype: str, shape: Shape, attr: Any = None, value: Any = None
    ) -> None:
        self.op, self.args, self.dtype, self.shape, self.attr, self.value = op, args, dtype, shape, attr, value
        self.owner: weakref.ref[Any] | None = None
        self._address: int | None = None

    @property
    def address(self) -> int:
        """Where the first element is; of a node with a value."""
        address = self._address
        if address is None:
            address = self._address = int(self.value.__array_interface__["data"][0])
        return address

    @property
    def is_computed(self) -> bool:
        return self.value is not None

    @property
    def is_held(self) -> bool:
        return self.owner is not None and self.owner() is not None

    def settle(self, value: np.ndarray) -> None:
        """The node is computed: it needs its operands no more."""
        self.value, self.args = value, ()


def leaf(value: np.ndarray) -> Node:
    """A node for values that are there."""
    return Node("leaf", (), value.dtype.name, value.shape, value=value)


def broadcast(shapes: list[Shape]) -> Shape:
    """The common shape of operands, as numpy broadcasts them; raises `ValueError` where there is none."""
    longest = max(shapes, key=len)
    if all(shape == longest or not shape for shape in shapes):
        return longest
    return np.broadcast_shapes(*shapes)


@functools.cache
def has_opcode(op: str, dtype: str) -> bool:
    """Whether the machine has ``op`` for a dtype."""
    return dtype in isa.SHORT and isa.mnemonic(op, dtype) in isa.NUMBER


def by_numpy(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Numpy's result, counted as a fallback."""
    fallbacks[name] += 1
    return function(*args, **options)
