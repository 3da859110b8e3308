"""What the commands share: options, and failures as one message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from tvm_dyn.dims import Dim, parse_dim_options
from tvm_dyn.errors import InvalidDimError, TvmDynError


def _parse_dims(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, Dim]:
    try:
        return parse_dim_options(values)
    except InvalidDimError as error:
        raise click.BadParameter(str(error)) from error


def dim_option(help_text: str) -> Callable[[Any], Any]:
    """`--dim NAME=...`, which may be repeated."""
    return click.option("--dim", "dims", multiple=True, metavar="NAME=...", callback=_parse_dims, help=help_text)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")


@contextmanager
def clear_errors() -> Iterator[None]:
    """Every failure is one message and exit code 1."""
    try:
        yield
    except TvmDynError as error:
        raise click.ClickException(f"{error} [stage: {error.stage}]") from error
    except (OSError, ValueError, MemoryError) as error:
        raise click.ClickException(str(error) or type(error).__name__) from error
