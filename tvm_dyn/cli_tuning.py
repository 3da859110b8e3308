"""The commands `tvm-dyn tune` and `tvm-dyn db`: measure candidates, look after what was measured."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tvm_dyn import api
from tvm_dyn.cli_common import clear_errors, dim_option, json_option
from tvm_dyn.dims import Dim

if TYPE_CHECKING:
    from tvm_dyn.tuning.database import TuningDatabase
    from tvm_dyn.tuning.records import Record
    from tvm_dyn.tuning.search import TaskSearch
    from tvm_dyn.tuning.session import TuningReport
    from tvm_dyn.tuning.tuner import Status

_out = Console()
_err = Console(stderr=True)
_database_argument = click.argument("database", type=click.Path(exists=True, file_okay=False))


@click.command("tune")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.option("--database", required=True, type=click.Path(file_okay=False), help="Folder for what is measured.")
@dim_option("The range of a symbolic dim: seq=1..512; all of its shapes count alike.")
@click.option("--profile", type=click.Path(exists=True, dir_okay=False), help="Shapes that matter: .csv or .json.")
@click.option("--budget", help="Time to spend: 90s, 10m, 1h; by default until measuring more no longer pays.")
@click.option("--trials", type=click.IntRange(min=1), default=64, show_default=True, help="Candidates per backbone.")
@click.option("--tracker", metavar="HOST:PORT", help="A TVM RPC tracker whose servers measure; needs --key.")
@click.option("--key", help="The servers' key.")
@json_option
def tune_command(
    model: str,
    database: str,
    dims: dict[str, Dim],
    profile: str | None,
    budget: str | None,
    trials: int,
    tracker: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Measure candidates for the backbones of MODEL (.onnx), once for all shapes; Ctrl-C keeps what was measured."""
    if (tracker is None) != (key is None):
        raise click.BadParameter("a tracker and the key of its servers go together", param_hint="--tracker")
    servers = (tracker, key) if tracker and key else None
    with clear_errors(), _live_table() as show:
        report = api.tune(
            model,
            dims=dims,
            database=database,
            profile=profile,
            budget=budget,
            trials=trials,
            progress=show,
            tracker=servers,
        )
    if as_json:
        click.echo(json.dumps(_finite(dataclasses.asdict(report)), indent=2))
    else:
        _print_report(report)


@contextmanager
def _live_table() -> Iterator[Callable[[Status], None]]:
    from tvm_dyn.bench.peak import FmaPeak

    peak = FmaPeak(threads=1)
    with Live("start ...", console=_err, auto_refresh=False) as live:

        def show(status: Status) -> None:
            peak.sample()
            live.update(_status_table(status, peak.best / 1e9), refresh=True)

        yield show


def _status_table(status: Status, peak: float) -> Table:
    left = "" if status.seconds_left is None else f", {status.seconds_left:.0f} s left"
    columns = ("", "backbone", "calls", "trials", "best GFLOP/s", "% of peak", "untuned us", "tuned us")
    table = _table(f"tuning{left}", *columns)
    for search in status.searches:
        table.add_row(*_status_row(search, search is status.current, peak))
    return table


def _status_row(search: TaskSearch, current: bool, peak: float) -> list[str]:
    row = ["*" if current else "", search.task.name, str(len(search.task.kernels)), str(search.trials)]
    if not search.measured:
        return row
    rate = [f"{search.gflops:.1f}", f"{100 * search.gflops / peak:.0f}"]
    return [*row, *rate, _micros(search.untuned_seconds), _micros(search.expected_seconds)]


def _print_report(report: TuningReport) -> None:
    columns = ("backbone", "kernels", "trials", "known before", "untuned us", "tuned us", "variants", "faults")
    ending = ", interrupted" if report.interrupted else ""
    table = _table(f"{report.measured} candidates in {report.seconds:.0f} s{ending}", *columns)
    for task in report.tasks:
        times = [_micros(task.untuned_seconds), _micros(task.seconds)]
        counts = [str(len(task.kernels)), str(task.trials), str(task.restored)]
        table.add_row(task.name, *counts, *times, str(task.variants), str(len(task.faults)))
    _out.print(table)


@click.group("db")
def database_group() -> None:
    """Look after tuning databases: folders with MetaSchedule's two files and the times by shape."""


@database_group.command("ls")
@_database_argument
@json_option
def ls_command(database: str, as_json: bool) -> None:
    """List the workloads of DATABASE."""
    with clear_errors():
        opened = _open(database)
        groups: dict[str, list[Record]] = {}
        for record in opened.records():
            groups.setdefault(record.workload.key, []).append(record)
    rows = [_workload_row(key, records) for key, records in groups.items()]
    if as_json:
        click.echo(json.dumps({"workloads": rows, "damaged": opened.damaged}, indent=2))
        return
    table = _table(f"{len(rows)} workloads", "workload", "parameters", "records", "measured", "shapes", "best seconds")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    _out.print(table)


@database_group.command("show")
@_database_argument
@click.argument("workload")
@click.option("--tir", is_flag=True, help="Also print the workload as TVMScript.")
@json_option
def show_command(database: str, workload: str, tir: bool, as_json: bool) -> None:
    """Show the records of WORKLOAD, the number that `ls` tells (its beginning is enough)."""
    with clear_errors():
        found = [record for record in _open(database).records() if record.workload.key.startswith(workload)]
        if not found:
            raise click.BadParameter(f"no workload begins with {workload!r}: see `tvm-dyn db ls {database}`")
    if as_json:
        click.echo(json.dumps([_record_json(record) for record in found], indent=2))
        return
    if tir:
        click.echo(str(found[0].workload.workload.mod))
    table = _table(f"{len(found)} records", "record", "variant", "shape", "microseconds", "conditions")
    for record in found:
        variant = record.variant
        text = "not one of ours" if variant is None else f"{variant.kind} {dict(variant.decisions)}"
        table.add_row(record.key[1], text, *_times_text(record))
    _out.print(table)


@database_group.command("merge")
@_database_argument
@click.argument("others", nargs=-1, required=True, type=click.Path(exists=True))
def merge_command(database: str, others: tuple[str, ...]) -> None:
    """Add the records of OTHERS (folders or exported files) to DATABASE."""
    with clear_errors():
        opened = _open(database)
        for other in others:
            click.echo(f"{other}: {opened.merge(other)} new lines")


@database_group.command("prune")
@_database_argument
@click.option("--keep", type=click.IntRange(min=1), default=3, show_default=True, help="Records to keep per shape.")
@click.option("--foreign", is_flag=True, help="Also drop what other machines or versions measured.")
def prune_command(database: str, keep: int, foreign: bool) -> None:
    """Drop damaged lines, repetitions, and records of DATABASE that are not among the fastest at any shape."""
    from tvm_dyn.tuning.pruning import Fastest

    with clear_errors():
        opened = _open(database)
        click.echo(f"{opened.prune(Fastest(opened.records(), keep, foreign))} lines dropped")


@database_group.command("export")
@_database_argument
@click.argument("output", type=click.Path(dir_okay=False))
@click.option("--workload", default="", help="Only workloads whose number begins with this.")
def export_command(database: str, output: str, workload: str) -> None:
    """Write the records of DATABASE to one file, which `merge` reads."""
    with clear_errors():
        count = _open(database).export(
            output, lambda record: record if record.workload.key.startswith(workload) else None
        )
        click.echo(f"{output}: {count} records")


def _open(path: str) -> TuningDatabase:
    import warnings

    from tvm_dyn.errors import DamagedRecordWarning
    from tvm_dyn.tuning.database import TuningDatabase

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedRecordWarning)
        database = TuningDatabase(Path(path))
    for message in database.damaged:
        _err.print(message, style="yellow", markup=False)
    return database


def _workload_row(key: str, records: list[Record]) -> dict[str, Any]:
    backbone = records[0].workload.backbone
    params = [] if backbone is None else [_parameter(param) for param in backbone.params]
    shapes = {extents for record in records for m in record.measurements for extents in m.seconds}
    runs = [min(seconds) for record in records for seconds, _ in record.runs if seconds]
    measured = sum(bool(record.measurements) for record in records)
    return {
        "workload": key,
        "parameters": ", ".join(params),
        "records": len(records),
        "measured": measured,
        "shapes": len(shapes),
        "best_seconds": min(runs, default=None),
    }


def _parameter(param: Any) -> str:
    """Its type, such as ``float32(rows, 768)``."""
    if not hasattr(param.ty, "shape"):
        return str(param.ty)
    return f"{param.ty.dtype}({', '.join(str(getattr(dim, 'name', dim)) for dim in param.ty.shape)})"


def _record_json(record: Record) -> dict[str, Any]:
    variant = record.variant
    decided = None if variant is None else {"kind": variant.kind, "decisions": dict(variant.decisions)}
    return {
        "workload": record.workload.key,
        "record": record.key[1],
        "variant": decided,
        "runs": [seconds for seconds, _ in record.runs],
        "measurements": [m.to_plain() for m in record.measurements],
    }


def _times_text(record: Record) -> tuple[str, str, str]:
    shapes, times, conditions = [], [], []
    for m in record.measurements:
        conditions.append(f"{m.conditions.machine}; {m.conditions.versions}; {m.conditions.threads} threads")
        if m.fault:
            shapes.append(m.fault)
        for extents, seconds in m.seconds.items():
            shapes.append(" ".join(f"{name}={value}" for name, value in extents if value != 1))
            times.append(_micros(seconds))
    return "\n".join(shapes), "\n".join(times), "\n".join(dict.fromkeys(conditions))


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if math.isfinite(seconds) else "-"


def _finite(value: Any) -> Any:
    """JSON has no infinity: what is not known is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
