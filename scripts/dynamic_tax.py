"""What symbolic extents cost, and what they cost stock TVM: dense + bias + GELU, one thread.

    python scripts/dynamic_tax.py [--rows 1,16,128] [--stock-rows 16]

"static" is the same model compiled by tvm_dyn once for each number of rows; "stock" is TVM's own default pipeline on
the symbolic model. Ratios are times relative to tvm_dyn on symbolic rows; the calls alternate, the fastest of several
rounds counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import click
import numpy as np
import tvm
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import tvm_dyn
from tvm_dyn.bench.case import Case, Feed
from tvm_dyn.bench.report import geomean
from tvm_dyn.bench.suites.dense import ROWS, cases
from tvm_dyn.bench.timing import take_turns
from tvm_dyn.hardware import host_target

ROUNDS = 15


def numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


@click.command(help=__doc__)
@click.option("--rows", callback=numbers, default=",".join(map(str, ROWS)), show_default=True)
@click.option("--stock-rows", callback=numbers, default="16,128", show_default=True)
def main(rows: list[int], stock_rows: list[int]) -> None:
    console = Console()
    table = Table("K x N", "rows", "symbolic us", "static", "stock", title="one thread; time relative to symbolic")
    tax, gain = [], []
    for case in track(cases(), "dense", console=Console(stderr=True), transient=True):
        symbolic, stock = tvm_dyn.compile(case.model(), num_threads=1), Stock(case)
        for m in rows:
            feed = case.feeds({"M": m}, 1)[0]
            static = tvm_dyn.compile(case.model(), dims={"M": m}, num_threads=1)
            calls: dict[str, list[Callable[[], object]]] = {
                "symbolic": [partial(symbolic, **feed)],
                "static": [partial(static, **feed)],
            }
            if m in stock_rows:
                calls["stock"] = [stock.bind(feed)]
            seconds = take_turns(calls, 1, ROUNDS, case.seconds)
            ratios = {name: value / seconds["symbolic"] for name, value in seconds.items()}
            tax.append(ratios["static"])
            gain += [ratios["stock"]] if "stock" in ratios else []
            cells = [f"{ratios[name]:.2f}" if name in ratios else "" for name in ("static", "stock")]
            table.add_row(case.name, str(m), f"{seconds['symbolic'] * 1e6:.0f}", *cells)
    table.add_section()
    table.add_row("geomean", "", "", f"{geomean(tax):.3f}", f"{geomean(gain):.1f}" if gain else "")
    console.print(table)


class Stock:
    """TVM's own importer and default pipeline."""

    def __init__(self, case: Case):
        module = from_onnx(case.model(), keep_params_in_input=False)
        self.machine = relax.VirtualMachine(tvm.compile(module, host_target(1)), tvm.cpu())

    def bind(self, feed: Feed):
        argument, run = tvm.runtime.tensor(np.ascontiguousarray(feed["x"])), self.machine["main"]
        return lambda: run(argument)


if __name__ == "__main__":
    main()
