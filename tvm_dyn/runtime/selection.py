"""The choices that a library makes: its fusion groups, their live decision tables, and what they take at given dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ..errors import InvalidLibraryError
from .expressions import parse_shape_expression
from .groups import GROUPS_FUNCTION, TABLES_FUNCTION, Group, from_json
from .table import Table


class Selection:
    """groups: of the library, in the order of the model. tables: by the name of the group; writing to one changes what
    every call of the library takes from then on, in this process.
    """

    def __init__(self, groups: Sequence[Group], tables: Mapping[str, Table]) -> None:
        self.groups, self.tables = tuple(groups), dict(tables)

    @staticmethod
    def of_machine(machine: Any) -> Selection:
        """Of a virtual machine; raises `InvalidLibraryError` where the library tells nothing or something else."""
        if not machine.module.implements_function(GROUPS_FUNCTION):
            raise InvalidLibraryError("the library was not compiled by this version of tvm_dyn: it tells of no groups")
        try:
            groups = from_json(str(machine[GROUPS_FUNCTION]()))
        except ValueError as error:
            raise InvalidLibraryError(f"the library's fusion groups cannot be read: {error}") from error
        words = list(machine[TABLES_FUNCTION]())
        tables = {
            group.name: Table(np.from_dlpack(words[group.table]), group.extents, len(group.variants))
            for group in groups
            if group.table is not None
        }
        return Selection(groups, tables)

    def decide(self, group: Group, extents: Mapping[str, int]) -> int:
        """The position of the variant that a group takes; raises KeyError where an extent is missing."""
        table = self.tables.get(group.name)
        return 0 if table is None else table.decide(extents)


def extents_at(group: Group, dims: Mapping[str, int]) -> list[dict[str, int]]:
    """The extents of each call of a group where the model's dims have these values.

    Calls whose extents depend on data, or on dims that are not given, are left out.
    """
    found = []
    for call in group.calls:
        parsed = {name: parse_shape_expression(text) for name, text in call.items()}
        if all(expression is not None and expression.names <= dims.keys() for expression in parsed.values()):
            found.append({name: expression.evaluate(dims) for name, expression in parsed.items() if expression})
    return found


@tvm_ffi.register_global_func("tvm_dyn.select")
def select(module: tvm.runtime.Module, group: str, *extents: int) -> int:
    """The position of the variant that a fusion group of a library takes: what its compiled code decides, asked for
    from any language of TVM. extents: in the order that the group lists them in.

    Raises ValueError for a group that there is not, and for another number of extents.
    """
    selection = Selection.of_machine(relax.VirtualMachine(module, tvm.cpu()))
    known = {known.name: known for known in selection.groups}
    if group not in known:
        raise ValueError(f"the library has no fusion group {group!r}; it has {', '.join(known)}")
    names = known[group].extents
    if len(names) != len(extents):
        raise ValueError(f"group {group!r} decides by {', '.join(names) or 'nothing'}: {len(extents)} extents given")
    return selection.decide(known[group], dict(zip(names, map(int, extents), strict=True)))
