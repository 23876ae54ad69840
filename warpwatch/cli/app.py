"""The application that each module of commands adds its own to, and how a command ends at an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Finds the commit that made a kernel slower or wrong.",
)


def _print_version(asked: bool) -> None:
    if asked:
        from warpwatch import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


@contextmanager
def exit_on(*errors: type[Exception]) -> Iterator[None]:
    """Prints an error of one of these types, and ends the command with exit code 2."""
    try:
        yield
    except errors as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
