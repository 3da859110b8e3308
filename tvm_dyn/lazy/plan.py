"""Plans: groups as one launch, for every set of nodes with the same structure, shapes and strides.

    plan = plan_for(structure)                  # once
    launch.run([addresses of leaves and outputs])   # each time
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tvm_dyn.lazy.fuse import REDUCTIONS, Group, groups_of
from tvm_dyn.lazy.graph import Node, Shape
from tvm_dyn.lazy.merge import merged
from tvm_dyn.lazy.strides import NotAffine, Strides, arrange, broadcast_strides, contiguous_strides
from tvm_dyn.runtime.bytecode import isa
from tvm_dyn.runtime.bytecode.encode import encode
from tvm_dyn.runtime.bytecode.machine import Launch
from tvm_dyn.runtime.bytecode.program import Program, Steps
from tvm_dyn.runtime.bytecode.recipe import Layout, Operand, Recipe, Step


def base_of(node: Node) -> Node:
    """The node whose elements an alias names."""
    while node.op == "alias" and node.value is None:
        (node,) = node.args
    return node


class NeedsValues(Exception):
    """Some nodes have to be computed before, as their elements must be copied into another order."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__()
        self.nodes = nodes


@dataclass
class Plan:
    """A launch and where its operands come from.

    leaves, results: places in the launch's bases, each with the number of a leaf or of a result; of a leaf also the
    shape that it is first copied to, as it lies in no order that a program can follow, or None.
    allocated: shape and dtype of every result. outputs: number of the node that a result is, for those to keep.
    """

    launch: Launch
    bases: array[int]
    leaves: list[tuple[int, int, Shape | None]]
    results: list[tuple[int, int]]
    allocated: list[tuple[Shape, str]]
    outputs: list[tuple[int, int]]
    programs: list[Program]

    def run(self, leaves: Sequence[Node]) -> list[np.ndarray]:
        """The results, computed from the leaves."""
        bases = self.bases[:]
        results = [np.empty(shape, dtype) for shape, dtype in self.allocated]
        copies = []
        for place, number, shape in self.leaves:
            if shape is None:
                bases[place] = leaves[number].address
            else:
                copies.append(np.ascontiguousarray(np.broadcast_to(leaves[number].value, shape)))
                bases[place] = copies[-1].ctypes.data
        addresses = [result.__array_interface__["data"][0] for result in results]
        for place, number in self.results:
            bases[place] = addresses[number]
        self.launch.run(bases)
        return results


@dataclass
class _Operands:
    """The operands of a group as they are found, each once in every role."""

    nodes: list[Node] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    places: dict[tuple[int, str], int] = field(default_factory=dict)

    def place(self, node: Node, role: str) -> int:
        key = (id(node), role)
        if key not in self.places:
            self.places[key] = len(self.nodes)
            self.nodes.append(node)
            self.roles.append(role)
        return self.places[key]


class Planner:
    """Makes the plan of some nodes; ``kept`` are those whose results somebody wants."""

    def __init__(self, nodes: Sequence[Node], leaves: Sequence[Node], kept: Sequence[int]) -> None:
        self.originals, self.copies = nodes, merged(nodes)
        self.nodes = list({id(copy): copy for copy in self.copies}.values())
        self.leaf_numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
        self.wanted = kept
        self.kept = {id(base_of(self.copies[number])) for number in kept}
        self.bases: list[int] = []
        self.leaf_places: list[tuple[int, int, Shape | None]] = []
        self.result_places: list[tuple[int, int]] = []
        self.results: dict[int, int] = {}
        self.allocated: list[tuple[Shape, str]] = []
        self.copied: dict[int, Shape] = {}  # of the group at hand

    def plan(self) -> Plan:
        groups = groups_of(self.nodes)
        waves: list[list[Group]] = []
        depth: dict[int, int] = {}
        for group in groups:
            reads = [depth[id(b)] for n in group.nodes for b in map(base_of, n.args) if id(b) in depth]
            wave = max(reads, default=-1) + 1
            waves += [[] for _ in range(wave + 1 - len(waves))]
            waves[wave].append(group)
            depth.update((id(node), wave) for node in group.nodes)
        needed = self.kept | self._read_by_others(groups)
        programs = [[self._program(group, needed) for group in wave] for wave in waves]
        numbers = {id(node): number for number, node in enumerate(self.originals)}
        outputs = {
            numbers[id(base_of(self.originals[n]))]: self.results[id(base_of(self.copies[n]))] for n in self.wanted
        }
        return Plan(
            Launch(programs),
            array("q", self.bases),
            self.leaf_places,
            self.result_places,
            self.allocated,
            [(result, number) for number, result in outputs.items()],
            [program for wave in programs for program in wave],
        )

    @staticmethod
    def _read_by_others(groups: Sequence[Group]) -> set[int]:
        read: set[int] = set()
        for group in groups:
            own = {id(node) for node in group.nodes}
            for node in group.nodes:
                for arg in node.args:
                    base = base_of(arg)
                    if id(base) not in own or id(arg) not in group.layouts:
                        read.add(id(base))
        return read

    def _program(self, group: Group, needed: set[int]) -> Program:
        operands, links = _Operands(), []
        self.copied.clear()
        for node in group.nodes:
            links.append([self._link(group, node, place, arg, operands) for place, arg in enumerate(node.args)])
        outputs = [node for node in group.nodes if id(node) in needed]
        space, placed = self._arrange(group, operands, outputs)
        constants = tuple(_identity(n) for n in group.nodes if _accumulates(group, n))
        first = len(operands.nodes) + len(constants)
        values = {id(node): first + number for number, node in enumerate(group.nodes)}
        steps, next_constant = [], len(operands.nodes)
        for node, link in zip(group.nodes, links, strict=True):
            pairs = zip(link, node.args, strict=True)
            args = [values[id(base_of(arg))] if place is None else place for place, arg in pairs]
            if _accumulates(group, node):
                args.append(next_constant)
                next_constant += 1
            steps.append(_step(node, tuple(args), group.layouts[id(node)]))
        inputs = tuple(Operand(n.dtype, layout) for n, (layout, _) in zip(operands.nodes, placed, strict=False))
        recipe = Recipe(inputs, constants, tuple(steps), tuple(values[id(node)] for node in outputs))
        code = encode(recipe)
        self._bind(operands.nodes, code.constants, outputs)
        return Program(code, space, [steps for _, steps in placed])

    def _link(self, group: Group, node: Node, place: int, arg: Node, operands: _Operands) -> int | None:
        """The place of an operand from memory; None where the group computes it."""
        if id(arg) in group.layouts:
            return None
        layout = group.layouts[id(node)]
        if node.op == "gather":
            return operands.place(arg, "column" if place else "table")
        if node.op == "find":
            return operands.place(arg, "column" if place else "tile")
        if node.op in REDUCTIONS or layout is Layout.TILE:
            return operands.place(arg, "tile")
        return operands.place(arg, "column" if layout is Layout.COLUMN else "one")

    def _arrange(self, group: Group, operands: _Operands, outputs: Sequence[Node]):
        """The group's space, and layout and steps of operands and outputs."""
        tiles = [place for place, role in enumerate(operands.roles) if role == "tile"]
        results = [node for node in outputs if group.layouts[id(node)] is Layout.TILE]
        sizes = [isa.BYTES[operands.nodes[place].dtype] for place in tiles] + [isa.BYTES[n.dtype] for n in results]
        whole = [contiguous_strides(group.space, isa.BYTES[node.dtype]) for node in results]

        def strides() -> list[Strides]:
            return [self._strides(operands.nodes[place], group.space) for place in tiles] + whole

        try:
            space, placed = arrange(group.space, group.split, strides(), sizes)
        except NotAffine:
            self._copy([operands.nodes[place] for place in tiles], group.space)
            space, placed = arrange(group.space, group.split, strides(), sizes)
        tile_steps = dict(zip(tiles, placed, strict=False))
        result_steps = iter(placed[len(tiles) :])
        arranged = [
            tile_steps[place] if place in tile_steps else self._beside(node, role)
            for place, (node, role) in enumerate(zip(operands.nodes, operands.roles, strict=True))
        ]
        for node in outputs:
            layout = group.layouts[id(node)]
            arranged.append(next(result_steps) if layout is Layout.TILE else (layout, _own_steps(layout, node.dtype)))
        return space, arranged

    def _beside(self, node: Node, role: str) -> tuple[Layout, Steps]:
        """Layout and steps of an operand that is no tile."""
        size = isa.BYTES[node.dtype]
        if role == "table":
            if id(node) in self.leaf_numbers and not node.value.flags.c_contiguous:
                self.copied[id(node)] = node.shape
            return Layout.TABLE, Steps((contiguous_strides(node.shape, size)[0],), size, node.shape[0])
        single = role == "one" or all(extent == 1 for extent in node.shape)
        layout = Layout.ONE if single else Layout.COLUMN
        return layout, _own_steps(layout, node.dtype)

    def _copy(self, nodes: Sequence[Node], space: Shape) -> None:
        """Have the operands copied that do not lie as tiles do. Raises `NeedsValues` of those not yet computed."""
        scattered = [n for n in nodes if prod(n.shape) != 1 and self._strides(n, space) != self._whole(n, space)]
        computed = [base_of(node) for node in scattered if id(node) not in self.leaf_numbers]
        if computed:
            raise NeedsValues([o for o, copy in zip(self.originals, self.copies, strict=True) if copy in computed])
        self.copied |= {id(node): space for node in scattered}

    @staticmethod
    def _whole(node: Node, space: Shape) -> Strides:
        return contiguous_strides(space, isa.BYTES[node.dtype])

    def _strides(self, node: Node, space: Shape) -> Strides:
        """Byte strides of an operand in a space: what another group computes is contiguous."""
        shape = self.copied.get(id(node), node.shape)
        is_leaf = id(node) in self.leaf_numbers and id(node) not in self.copied
        strides = node.value.strides if is_leaf else contiguous_strides(shape, isa.BYTES[node.dtype])
        return broadcast_strides(shape, strides, space)

    def _bind(self, operands: Sequence[Node], constants: Sequence[int], outputs: Sequence[Node]) -> None:
        for node in operands:
            number = self.leaf_numbers.get(id(node))
            if number is None:
                self.result_places.append((len(self.bases), self._result(base_of(node))))
            else:
                self.leaf_places.append((len(self.bases), number, self.copied.get(id(node))))
            self.bases.append(0)
        self.bases += constants
        for node in outputs:
            self.result_places.append((len(self.bases), self._result(node)))
            self.bases.append(0)

    def _result(self, node: Node) -> int:
        if id(node) not in self.results:
            self.results[id(node)] = len(self.allocated)
            self.allocated.append((node.shape, node.dtype))
        return self.results[id(node)]


def _own_steps(layout: Layout, dtype: str) -> Steps:
    """Of an array that holds a column, a row or a single number, and nothing else."""
    size = isa.BYTES[dtype]
    return Steps((size if layout is Layout.COLUMN else 0,), size if layout is Layout.ROW else 0)


def _accumulates(group: Group, node: Node) -> bool:
    return node.op in REDUCTIONS and group.layouts[id(node)] in (Layout.ROW, Layout.ONE)


def _identity(node: Node) -> tuple[float | int, str]:
    """What the reduction of nothing is."""
    opcode = isa.OPCODES[isa.NUMBER[isa.mnemonic(node.op, node.dtype)]]
    return opcode.identity, node.dtype


def _step(node: Node, args: tuple[int, ...], layout: Layout) -> Step:
    dtype = node.args[-1].dtype if node.op not in ("gather", "find") else node.args[0].dtype
    op = isa.cast_mnemonic(dtype, node.dtype) if node.op == "cast" else node.op
    return Step(op, args, dtype, node.dtype, layout)
