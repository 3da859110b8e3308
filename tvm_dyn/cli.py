"""The `tvm-dyn` command: compile a model, run a library, show what either holds, measure beside the peers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import tvm_dyn
from tvm_dyn import api, pipeline
from tvm_dyn.cli_common import clear_errors, dim_option, json_option
from tvm_dyn.cli_explain import explain_command
from tvm_dyn.cli_tuning import database_group, tune_command
from tvm_dyn.dims import Dim
from tvm_dyn.errors import InvalidInputError
from tvm_dyn.inspection import ModelInfo, inspect_model
from tvm_dyn.random_inputs import random_inputs
from tvm_dyn.runtime.executable import Library
from tvm_dyn.runtime.signature import DimInfo, TensorInfo, shape_text

_out = Console()
_err = Console(stderr=True)


_SUITES = ["dense", "attention", "norm", "conv", "models", "stream", "regret", "bytecode"]

_threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads per call; by default TVM_NUM_THREADS, else all cores.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tvm_dyn.__version__, prog_name="tvm-dyn")
def main() -> None:
    """Compile a dynamic-shape model once; run it at every shape."""


main.add_command(explain_command)
main.add_command(tune_command)
main.add_command(database_group)


@main.command("compile")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="The library to write, *.so.")
@dim_option("What is known of a symbolic dim: seq=1..512, batch=8, width=32..1024/32 (a multiple of 32).")
@click.option("--dump-phases", type=click.Path(file_okay=False), help="Folder for the module after each phase.")
@click.option("--self-check", is_flag=True, help="Also run each kernel against its unscheduled form on random inputs.")
@click.option("--database", type=click.Path(exists=True, file_okay=False), help="What `tune` measured, to choose by.")
@json_option
def compile_command(
    model: str,
    output: str,
    dims: dict[str, Dim],
    dump_phases: str | None,
    self_check: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Compile MODEL (.onnx) to a library that runs every shape."""
    if not output.endswith(".so"):
        raise click.BadParameter("TVM tells a library by its suffix; name it *.so", param_hint="--output")
    start = time.perf_counter()
    with clear_errors():
        with _phases() as progress:
            library = api.compile(
                model,
                dims=dims,
                dump_phases=dump_phases,
                progress=progress,
                self_check=self_check,
                database=database,
            )
            progress("link")
            library.export(output)
        seconds = time.perf_counter() - start
    if as_json:
        checked = {"self_check": asdict(library.self_check)} if library.self_check else {}
        reused = {"reused": [asdict(reuse) for reuse in library.reused]} if database else {}
        _print_json({"library": output, "seconds": round(seconds, 3), **checked, **reused, **_describe(library)})
    else:
        _out.print(f"{output}: {len(library.groups)} fusion groups, compiled in {seconds:.1f} s")
        if library.self_check:
            _out.print(str(library.self_check))
        for reuse in library.reused:
            _out.print(str(reuse))
        _print_signature(library)


@main.command("run")
@click.argument("library", type=click.Path(exists=True, dir_okay=False))
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input; repeat for each.")
@click.option("--random", "fill", is_flag=True, help="Random values for the inputs that --input leaves out.")
@dim_option("The extent of a symbolic dim of random inputs: seq=37; by default the smallest above 0.")
@click.option("--output-dir", type=click.Path(file_okay=False), help="Folder for the outputs as NAME.npy.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="Calls to time; the fastest is shown.")
@_threads_option
@json_option
def run_command(
    library: str,
    inputs: Sequence[str],
    fill: bool,
    dims: dict[str, Dim],
    output_dir: str | None,
    repeat: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run LIBRARY (.so) on arrays from files or on random values, and show its outputs."""
    arrays = _load_inputs(inputs)
    with clear_errors():
        loaded = tvm_dyn.load(library, num_threads=threads)
        if fill:
            extents = {name: _extent(name, dim) for name, dim in dims.items()}
            arrays = random_inputs(loaded, extents, given=arrays)
        outputs, milliseconds = _timed(loaded, arrays, repeat)
        files = _save(loaded, outputs, output_dir)
    rows = [
        {"name": info.name, "dtype": str(output.dtype), "shape": list(output.shape), "file": file}
        for info, output, file in zip(loaded.outputs, outputs, files, strict=True)
    ]
    if as_json:
        _print_json({"milliseconds": round(milliseconds, 6), "threads": loaded.num_threads, "outputs": rows})
        return
    table = _table(
        f"{milliseconds:.3f} ms on {loaded.num_threads} threads", "output", "dtype", "shape", "values", "file"
    )
    for row, output in zip(rows, outputs, strict=True):
        table.add_row(row["name"], row["dtype"], shape_text(tuple(row["shape"])), _preview(output), row["file"] or "")
    _out.print(table)


@main.command("info")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@dim_option("As for compile; only for an .onnx model.")
@json_option
def info_command(model: str, dims: dict[str, Dim], as_json: bool) -> None:
    """Show inputs, symbolic dims and their facts, operators and fusion groups of MODEL (.onnx or .so)."""
    with clear_errors(), _phases() as progress:
        is_library = Path(model).suffix == ".so"
        info = tvm_dyn.load(model) if is_library else inspect_model(model, dims, progress)
    if as_json:
        _print_json(_describe(info))
        return
    _print_signature(info)
    table = _table(f"{sum(info.ops.values())} operators", "operator", "count")
    for name, count in info.ops.items():
        table.add_row(name, str(count))
    _out.print(table)
    table = _table(f"{len(info.groups)} fusion groups", "function")
    for name in info.groups:
        table.add_row(name)
    _out.print(table)


@main.command("bench")
@click.argument("suite", type=click.Choice(_SUITES))
@click.option("--threads", type=click.IntRange(min=1), default=1, help="Threads of every contestant; default 1.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures.")
@click.option("--case", "pattern", default="", help="Only cases whose name contains this.")
@click.option("--rounds", type=click.IntRange(min=1), default=10, help="Turns of each contestant; the best counts.")
@click.option("--shapes", type=click.IntRange(min=1), default=200, help="Distinct shapes of the suite 'stream'.")
def bench_command(suite: str, threads: int, json_file: Path | None, pattern: str, rounds: int, shapes: int) -> None:
    """Measure SUITE beside onnxruntime, OpenVINO and torch, and against the peak of the machine.

    The suite 'stream' lets shapes pass that were never seen before; 'regret' measures how well variants are chosen;
    'bytecode' measures the virtual machine beside compiled kernels, torch and numpy.
    """
    with clear_errors():
        from tvm_dyn import bench

        if suite == "regret":
            from tvm_dyn.bench.suites import regret

            regret.run(threads, pattern, json_file, _out, _err)
            return
        if suite == "bytecode":
            bench.run_bytecode(threads, pattern, json_file, _out)
            return
        if suite == "stream":
            bench.run_stream(threads, shapes, json_file, _out, _err)
            return
        cases = [case for case in bench.SUITES[suite]() if pattern in case.name]
        if not cases:
            raise click.BadParameter(f"no case of {suite} has {pattern!r} in its name", param_hint="--case")
        bench.run_suite(cases, threads, rounds, json_file, _out, _err)


@contextmanager
def _phases() -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr that names the phase at work and how long all of them have run."""
    stages = pipeline.stages()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_err, transient=True) as progress:
        bar = progress.add_task("start", total=len(stages))

        def show(phase: str) -> None:
            done = stages.index(phase) if phase in stages else None  # the self-check tells of kernels in between
            progress.update(bar, description=phase, completed=done)

        yield show


def _load_inputs(options: Sequence[str]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for option in options:
        name, equals, path = option.partition("=")
        if not (name and equals and path):
            raise click.BadParameter(f"{option!r}: write NAME=FILE.npy", param_hint="--input")
        if name in arrays:
            raise click.BadParameter(f"input {name!r} is given twice", param_hint="--input")
        try:
            arrays[name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise click.BadParameter(f"cannot read {path!r}: {error}", param_hint="--input") from error
    return arrays


def _extent(name: str, dim: Dim) -> int:
    if dim.min != dim.max:
        raise InvalidInputError(f"dim {name!r} needs one extent to run with, not {dim}: write --dim {name}=37")
    return dim.min


def _timed(library: Library, arrays: dict[str, np.ndarray], repeat: int) -> tuple[list[np.ndarray], float]:
    best = float("inf")
    outputs: list[np.ndarray] = []
    for _ in range(repeat):
        start = time.perf_counter()
        outputs = library(**arrays)
        best = min(best, time.perf_counter() - start)
    return outputs, best * 1e3


def _save(library: Library, outputs: Sequence[np.ndarray], folder: str | None) -> list[str | None]:
    if folder is None:
        return [None] * len(outputs)
    Path(folder).mkdir(parents=True, exist_ok=True)
    files = []
    for info, output in zip(library.outputs, outputs, strict=True):
        path = Path(folder) / f"{info.name.replace('/', '_')}.npy"
        np.save(path, output)
        files.append(str(path))
    return files


def _preview(array: np.ndarray) -> str:
    with np.printoptions(precision=4, threshold=4, edgeitems=2):
        return str(array.reshape(-1)[:4])


def _describe(model: Library | ModelInfo) -> dict[str, Any]:
    return {
        "inputs": [_tensor(info) for info in model.inputs],
        "outputs": [_tensor(info) for info in model.outputs],
        "dims": {name: asdict(info) for name, info in model.dims.items()},
        "ops": dict(model.ops),
        "groups": list(model.groups),
    }


def _tensor(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "dtype": info.dtype, "shape": info.shape}


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, indent=2))


def _print_signature(model: Library | ModelInfo) -> None:
    table = _table(None, "", "name", "dtype", "shape")
    for kind, infos in (("input", model.inputs), ("output", model.outputs)):
        for info in infos:
            shape = "any" if info.shape is None else shape_text(info.shape)
            table.add_row(kind, info.name, info.dtype, shape)
    _out.print(table)
    if model.dims:
        table = _table(None, "dim", "range", "in the model", "because")
        for name, info in model.dims.items():
            table.add_row(name, _range(info), ", ".join(info.aliases), "\n".join(info.why))
        _out.print(table)


def _range(info: DimInfo) -> str:
    return str(Dim(info.min, info.max, info.divisor))


def _table(title: str | None, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
