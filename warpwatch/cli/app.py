"""The application that each module of commands adds its own to."""

from __future__ import annotations

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
