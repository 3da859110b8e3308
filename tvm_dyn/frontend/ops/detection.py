"""NonMaxSuppression: the best box, without those it overlaps too much, again and again; per batch entry and class."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_dyn.frontend.context import Context
from tvm_dyn.frontend.loop_kernel import emit_loops
from tvm_dyn.frontend.node import Node
from tvm_dyn.frontend.ops.shape import product, reshape
from tvm_dyn.frontend.ops.slicing import strided_slice
from tvm_dyn.frontend.registry import converter
from tvm_dyn.frontend.value import Value, constant
from tvm_dyn.schedules import emit


@converter("NonMaxSuppression")
def non_max_suppression(ctx: Context, node: Node) -> Value:
    """Boxes (batch, n, 4) and scores (batch, classes, n) -> rows (batch, class, box) of the boxes that are kept.

    Operands 2 to 4: most boxes per class (0 without it), overlap threshold (0), score threshold (none).
    """
    boxes, scores = node.data(0), node.data(1)
    batch, classes, count = ctx.shape(scores)
    ctx.require_equal(ctx.shape(boxes)[1], count, "the numbers of boxes and of scores")
    limits = [
        node.input(2) or constant([0], "int64"),
        node.input(3) or constant([0.0], "float32"),
        node.input(4) or constant([float("-inf")], "float32"),
    ]
    limits = [reshape(ctx, v, [1]) for v in limits]
    kernel = _Suppression(bool(node.attr("center_point_box", 0)))
    rows = product([batch, classes, count])
    outputs = [([rows, 3], "int64"), ([1], "int64"), ([count], "float32"), ([2], "int64")]
    kept, total, *_ = emit_loops(ctx, "non_max_suppression", [boxes, scores, *limits], outputs, kernel.body)
    return strided_slice(ctx, kept, [0, 0], [ctx.scalar(total, signed=False), 3], [1, 1])


class _Suppression:
    """The loops. `left` holds the scores still in play, `state` the best box so far and the boxes taken."""

    def __init__(self, centred: bool):
        self.centred = centred

    def body(self, inputs: list[Any], outputs: list[Any]) -> tirx.Stmt:
        self.boxes, self.scores, self.most, self.overlap, self.threshold = inputs
        self.kept, self.total, self.left, self.state = outputs
        self.count = self.scores.shape[2]
        each = emit.serial(
            self.scores.shape[0],
            lambda b: emit.serial(self.scores.shape[1], lambda c: self._class(b, c), "klass"),
            "batch",
        )
        return emit.seq(emit.store(self.total, emit.const(0), 0), each)

    def _class(self, b: Any, c: Any) -> tirx.Stmt:
        def enter(n: Any) -> tirx.Stmt:
            score = emit.load(self.scores, b, c, n)
            return emit.store(self.left, tirx.Select(score > emit.load(self.threshold, 0), score, _OUT), n)

        more = (emit.load(self.state, 0) >= 0) & (emit.load(self.state, 1) < emit.load(self.most, 0))
        take = emit.bind([emit.load(self.state, 0)], lambda best: self._take(b, c, best))
        return emit.seq(
            emit.serial(self.count, enter, "n"),
            emit.store(self.state, emit.const(0), 1),
            self._find_best(),
            tirx.While(more, emit.seq(take, self._find_best())),
        )

    def _find_best(self) -> tirx.Stmt:
        """state[0] = the first box of the highest score in play, -1 when none is left."""

        def compare(n: Any) -> tirx.Stmt:
            best = tirx.max(emit.load(self.state, 0), emit.const(0))
            found = emit.load(self.state, 0) >= 0
            better = tirx.if_then_else(found, emit.load(self.left, n) > emit.load(self.left, best), tirx.const(True))
            playing = emit.load(self.left, n) > _OUT
            return tirx.IfThenElse(playing & better, emit.store(self.state, n, 0), None)

        return emit.seq(emit.store(self.state, emit.const(-1), 0), emit.serial(self.count, compare, "n"))

    def _take(self, b: Any, c: Any, best: Any) -> tirx.Stmt:
        row = emit.load(self.total, 0)

        def drop(n: Any) -> tirx.Stmt:
            away = (self._shared(b, best, n) > emit.load(self.overlap, 0)) | (n == best)
            return tirx.IfThenElse(away, emit.store(self.left, _OUT, n), None)

        return emit.seq(
            *[emit.store(self.kept, value, row, k) for k, value in enumerate((b, c, best))],
            emit.store(self.total, row + 1, 0),
            emit.store(self.state, emit.load(self.state, 1) + 1, 1),
            emit.serial(self.count, drop, "n"),
        )

    def _sides(self, b: Any, n: Any) -> list[tuple[Any, Any]]:
        """(low, high) along both axes; corners may come in any order."""
        p = [emit.load(self.boxes, b, n, k) for k in range(4)]
        if self.centred:
            half = tirx.const(0.5, "float32")
            return [(p[k] - p[k + 2] * half, p[k] + p[k + 2] * half) for k in range(2)]
        return [(tirx.min(p[k], p[k + 2]), tirx.max(p[k], p[k + 2])) for k in range(2)]

    def _shared(self, b: Any, m: Any, n: Any) -> Any:
        """Intersection over union of two boxes; 0 where they have no area."""
        zero = tirx.const(0.0, "float32")
        first, second = self._sides(b, m), self._sides(b, n)
        common, area = tirx.const(1.0, "float32"), [tirx.const(1.0, "float32")] * 2
        for (low, high), (other_low, other_high) in zip(first, second, strict=True):
            common = common * tirx.max(tirx.min(high, other_high) - tirx.max(low, other_low), zero)
            area = [area[0] * (high - low), area[1] * (other_high - other_low)]
        union = area[0] + area[1] - common
        return tirx.Select(union > zero, common / tirx.max(union, tirx.const(1e-30, "float32")), zero)


# a score that is out of play
_OUT = tirx.const(float("-inf"), "float32")
