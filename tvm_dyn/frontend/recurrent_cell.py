"""What one step of a recurrent operator does, and how its state and weights are padded to vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VECTOR = 16


@dataclass(frozen=True)
class Cell:
    """What one step does.

    kind: "LSTM", "GRU" or "RNN". gates: gate count. activations: per direction, the functions in ONNX order.
    reverse: per direction. clip: bound of the gate inputs. late_reset: GRU's linear_before_reset = 1.
    coupled: LSTM's input_forget = 1. peephole, has_lengths, has_h0, has_c0: which optional buffers there are.
    rounded: the state enters the product as the nearest of 256 levels between its extremes, as in DynamicQuantizeLSTM.
    """

    kind: str
    hidden: int
    activations: tuple[tuple[Callable[[Any], Any], ...], ...]
    reverse: tuple[bool, ...]
    clip: float | None = None
    late_reset: bool = False
    coupled: bool = False
    peephole: bool = False
    has_lengths: bool = False
    has_h0: bool = False
    has_c0: bool = False
    rounded: bool = False

    @property
    def gates(self) -> int:
        return {"LSTM": 4, "GRU": 3, "RNN": 1}[self.kind]

    @property
    def directions(self) -> int:
        return len(self.reverse)

    @property
    def width(self) -> int:
        """Hidden units, padded to whole vectors."""
        return -(-self.hidden // VECTOR) * VECTOR

    @property
    def gate_groups(self) -> tuple[int, ...]:
        """Gate counts of the recurrent products of a step: GRU's early reset needs two, one after the other."""
        return (2, 1) if self.kind == "GRU" and not self.late_reset else (self.gates,)


def panel_width(gates: int, width: int) -> int:
    """Columns of one panel of R: enough vectors to hide the latency of multiply-add, and a divisor of all columns."""
    vectors = gates * width // VECTOR
    return VECTOR * next(n for n in (8, 6, 4, 3, 2, 1) if vectors % n == 0)
