"""The command `tvm-dyn explain`: which variants a library takes at given dims and why, also as a map over shapes."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

import tvm_dyn
from tvm_dyn.cli_common import clear_errors, dim_option, json_option
from tvm_dyn.dims import Dim
from tvm_dyn.errors import InvalidInputError
from tvm_dyn.runtime import explain, variant_map
from tvm_dyn.runtime.executable import Library


@click.command("explain")
@click.argument("library", type=click.Path(exists=True, dir_okay=False))
@dim_option("An extent of a symbolic dim, seq=37; for a map a range of one or two of them, seq=1..512.")
@click.option("--map", "map_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw it: *.png or *.html.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of a call; by default as for run.")
@json_option
def explain_command(
    library: str, dims: dict[str, Dim], map_file: Path | None, threads: int | None, as_json: bool
) -> None:
    """Show which variant each fusion group of LIBRARY (.so) takes at given dims, what it costs, and why."""
    with clear_errors():
        loaded = tvm_dyn.load(library, num_threads=threads)
        said = loaded.explain(**{name: dim.min for name, dim in dims.items()})
        if map_file is not None:
            _draw(loaded, dims, said, map_file)
        elif ranges := [name for name, dim in dims.items() if dim.min != dim.max]:
            raise InvalidInputError(f"dim {ranges[0]!r} is a range: give one extent, or --map FILE.png to see them all")
    if as_json:
        click.echo(json.dumps(said, indent=2))
    else:
        Console().print(explain.to_text(said))


def _draw(library: Library, dims: dict[str, Dim], said: dict, map_file: Path) -> None:
    axes = {}
    for name, dim in explain.own_dims(dims, library.dims).items():
        if dim.max is None:
            raise InvalidInputError(f"dim {name!r} has no end: write a range such as {name}=1..512")
        if dim.min != dim.max:
            axes[name] = variant_map.steps(dim.min, dim.max)
    fixed = {name: extent for name, extent in said["dims"].items() if name not in axes}
    shown = variant_map.planes(library.selection, axes, fixed)
    variant_map.write_map(map_file, shown, axes, said)
