"""The `warpwatch` command. It sits on top of everything and nothing imports it.

One module per group of commands; each imports what it needs inside its functions, so that `warpwatch run` on a closed
GPU node needs neither the server's nor the database's packages.
"""

from __future__ import annotations

import sys

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


def main() -> None:
    """Entry point of the `warpwatch` command. Exit code 2 when a package that the command needs is not installed."""
    try:
        app()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "warpwatch":
            raise
        remedy = "install Warpwatch with its extras: pip install 'warpwatch[measure,server,embedded]'"
        sys.exit(f"this command needs the Python package {error.name}, which is not installed; {remedy}")


# Each module adds its commands to `app` when it is imported, so this comes last.
from warpwatch.cli import account as _account  # noqa: E402, F401
from warpwatch.cli import backup as _backup  # noqa: E402, F401
from warpwatch.cli import build as _build  # noqa: E402, F401
from warpwatch.cli import bundle as _bundle  # noqa: E402, F401
from warpwatch.cli import channel as _channel  # noqa: E402, F401
from warpwatch.cli import ci as _ci  # noqa: E402, F401
from warpwatch.cli import compare as _compare  # noqa: E402, F401
from warpwatch.cli import database as _database  # noqa: E402, F401
from warpwatch.cli import device as _device  # noqa: E402, F401
from warpwatch.cli import doctor as _doctor  # noqa: E402, F401
from warpwatch.cli import exam as _exam  # noqa: E402, F401
from warpwatch.cli import export as _export  # noqa: E402, F401
from warpwatch.cli import forge as _forge  # noqa: E402, F401
from warpwatch.cli import init as _init  # noqa: E402, F401
from warpwatch.cli import keeping as _keeping  # noqa: E402, F401
from warpwatch.cli import key as _key  # noqa: E402, F401
from warpwatch.cli import kron as _kron  # noqa: E402, F401
from warpwatch.cli import prove as _prove  # noqa: E402, F401
from warpwatch.cli import repository as _repository  # noqa: E402, F401
from warpwatch.cli import run as _run  # noqa: E402, F401
from warpwatch.cli import schedule as _schedule  # noqa: E402, F401
from warpwatch.cli import serve as _serve  # noqa: E402, F401
from warpwatch.cli import strike_out as _strike_out  # noqa: E402, F401
from warpwatch.cli import submit as _submit  # noqa: E402, F401
from warpwatch.cli import token as _token  # noqa: E402, F401
from warpwatch.cli import tokenizer as _tokenizer  # noqa: E402, F401
from warpwatch.cli import up as _up  # noqa: E402, F401
from warpwatch.cli import worker as _worker  # noqa: E402, F401
from warpwatch.cli import working_tree as _working_tree  # noqa: E402, F401
