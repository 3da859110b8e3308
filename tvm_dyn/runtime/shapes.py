"""Input shapes against the signature: which extent each dim has, and what is wrong where they do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidInputError
from .expressions import ShapeExpression, parse_shape_expression
from .signature import DimInfo, Signature, TensorInfo, shape_text

Shape = Sequence[int]


class ShapeChecker:
    """Checks the shapes of one call. It runs once per distinct set of shapes, so it may take its time."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._where: dict[str, list[tuple[int, int]]] = {}
        self._derived: list[tuple[int, int, ShapeExpression]] = []
        for index, tensor in enumerate(signature.inputs):
            for axis, extent in enumerate(tensor.shape or ()):
                if isinstance(extent, str):
                    self._note(index, axis, extent)

    def check(self, shapes: Sequence[Shape]) -> None:
        """Raise `InvalidInputError` with input, axis, dim, value and constraint of the first misfit."""
        for tensor, shape in zip(self._signature.inputs, shapes, strict=True):
            _check_fixed(tensor, shape)
        for name, places in self._where.items():
            self._check_equal(name, places, shapes)
        dims = self.extents(shapes)
        for name, places in self._where.items():
            info = self._signature.dims.get(name)
            if info is not None:
                self._check_facts(name, info, dims[name], places[0])
        self._check_derived(dims, shapes)

    def _note(self, index: int, axis: int, text: str) -> None:
        expression = parse_shape_expression(text)
        if expression is None:
            return  # Richer than a shape expression; the compiled code checks it.
        if expression.names == {text}:
            self._where.setdefault(text, []).append((index, axis))
        else:
            self._derived.append((index, axis, expression))

    def extents(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """The extent of every dim that an input shows on an axis of its own."""
        return {name: shapes[index][axis] for name, ((index, axis), *_) in self._where.items()}

    def _check_equal(self, name: str, places: list[tuple[int, int]], shapes: Sequence[Shape]) -> None:
        (index, axis), *others = places
        extent = shapes[index][axis]
        for other_index, other_axis in others:
            other = shapes[other_index][other_axis]
            if other != extent:
                raise InvalidInputError(
                    f"{self._at(other_index, other_axis)} is {other}, but {self._at(index, axis)} is "
                    f"{extent}: both are dim {self._named(name)} and must be equal{self._because(name)}; "
                    f"pass {extent} in both or {other} in both"
                )

    def _check_facts(self, name: str, info: DimInfo, extent: int, place: tuple[int, int]) -> None:
        problem = misfit(info, extent)
        if problem is not None:
            constraint, remedy = problem
            raise InvalidInputError(
                f"{self._at(*place)}: dim {self._named(name)} is {extent}, {constraint}{self._because(name)}; {remedy}"
            )

    def _check_derived(self, dims: dict[str, int], shapes: Sequence[Shape]) -> None:
        for index, axis, expression in self._derived:
            if not expression.names <= dims.keys():
                continue
            expected, extent = expression.evaluate(dims), shapes[index][axis]
            if extent != expected:
                where = ", ".join(f"{name} = {dims[name]}" for name in sorted(expression.names))
                reasons = "".join(self._because(name) for name in sorted(expression.names))
                raise InvalidInputError(
                    f"{self._at(index, axis)} is {extent}, but must be {expression} = {expected} "
                    f"where {where}{reasons}; pass {expected} there"
                )

    def _at(self, index: int, axis: int) -> str:
        return f"input {self._signature.inputs[index].name!r}, axis {axis}"

    def _named(self, name: str) -> str:
        info = self._signature.dims.get(name)
        aliases = [alias for alias in info.aliases if alias != name] if info else []
        written = f" (written {', '.join(map(repr, aliases))} in the model)" if aliases else ""
        return f"{name!r}{written}"

    def _because(self, name: str) -> str:
        info = self._signature.dims.get(name)
        return "".join(f"; {reason}" for reason in info.why) if info else ""


def _check_fixed(tensor: TensorInfo, shape: Shape) -> None:
    if tensor.shape is None:
        return
    if len(shape) != len(tensor.shape):
        raise InvalidInputError(
            f"input {tensor.name!r} has rank {len(shape)}, shape {tuple(shape)}, but must have rank "
            f"{len(tensor.shape)}, shape {shape_text(tensor.shape)}; reshape it"
        )
    for axis, (extent, expected) in enumerate(zip(shape, tensor.shape, strict=True)):
        if isinstance(expected, int) and extent != expected:
            raise InvalidInputError(
                f"input {tensor.name!r}, axis {axis} is {extent}, but the model fixes it to {expected}; "
                f"pass the shape {shape_text(tensor.shape)}, not {tuple(shape)}"
            )


def misfit(info: DimInfo, extent: int) -> tuple[str, str] | None:
    """What `extent` breaks and what to do about it, or None where it fits."""
    if extent < info.min:
        return f"below its minimum {info.min}", f"pass at least {info.min} or compile with a smaller min"
    if info.max is not None and extent > info.max:
        return f"above its maximum {info.max}", f"pass at most {info.max} or compile with a larger max"
    if extent % info.divisor:
        padded = -(-extent // info.divisor) * info.divisor
        return f"not a multiple of {info.divisor}", f"pad it to {padded} or compile with another divisor"
    return None
