"""On demand: what a node needs is planned, launched and kept."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tvm_dyn.lazy.fuse import pending
from tvm_dyn.lazy.graph import Node
from tvm_dyn.lazy.plan import NeedsValues, Plan, Planner
from tvm_dyn.runtime import threads

_PLANS: dict[tuple, Plan] = {}
_MAX_PLANS = 4096
_lock = threading.RLock()


def materialise(roots: Sequence[Node]) -> None:
    """Give each root its value, and each node on the way that somebody still holds: it would be computed again."""
    try:
        _materialise(roots)
    except NeedsValues as need:
        materialise(need.nodes)
        materialise(roots)


def _materialise(roots: Sequence[Node]) -> None:
    with _lock:  # threads may share nodes: none may see another's half settled
        nodes = _unsettled(roots)
        if not nodes:
            return
        if not threads.current.count:
            threads.use_threads(threads.resolve_num_threads(None))
        plan, leaves = plan_of(nodes, roots)
    results = plan.run(leaves)
    with _lock:
        for result, number in plan.outputs:
            if not nodes[number].is_computed:  # another thread may have: who holds its result keeps it
                nodes[number].settle(results[result])
        _unsettled(roots)


def plan_for(root: Node) -> Plan | None:
    """The plan that would compute a node now, None where it is computed; operands that have to be there are."""
    try:
        with _lock:
            nodes = _unsettled([root])
            return plan_of(nodes, [root])[0] if nodes else None
    except NeedsValues as need:
        materialise(need.nodes)
        return plan_for(root)


def _unsettled(roots: Sequence[Node]) -> list[Node]:
    """What is pending, after other shapes of what is computed got their value."""
    waiting = []
    for node in pending(roots):
        if node.op == "alias" and node.args[0].value is not None:
            node.settle(node.args[0].value.reshape(node.shape))
        else:
            waiting.append(node)
    return waiting


def plan_of(nodes: Sequence[Node], roots: Sequence[Node]) -> tuple[Plan, list[Node]]:
    """The plan that computes ``roots``, and the leaves it reads."""
    wanted = {id(root) for root in roots}
    numbers: dict[int, int] = {}  # nodes count up from 0, leaves down from -1
    leaves: list[Node] = []
    kept: list[int] = []
    structure: list[object] = []
    for number, node in enumerate(nodes):
        places = []
        for arg in node.args:
            place = numbers.get(id(arg))
            if place is None:
                place = numbers[id(arg)] = -1 - len(leaves)
                leaves.append(arg)
                structure.append((arg.dtype, arg.shape, arg.value.strides))
            places.append(place)
        numbers[id(node)] = number
        is_kept = id(node) in wanted or node.is_held
        if is_kept:
            kept.append(number)
        structure.append((node.op, node.attr, node.dtype, node.shape, is_kept, *places))
    key = (threads.current.count, *structure)
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MAX_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = Planner(nodes, leaves, kept).plan()
    return plan, leaves
