"""Connects commands to the server and turns its errors into exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from warpwatch import git
from warpwatch.cli.client import ApiError, Client
from warpwatch.settings import SettingError, load_settings

console = Console(stderr=True, highlight=False)


@contextmanager
def asking() -> Iterator[Client]:
    """A client of the configured server; an error ends the command with exit code 2."""
    try:
        yield Client(load_settings().server_url)
    except (ApiError, SettingError, git.GitError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        console.print("stopped waiting; the jobs continue, see `warpwatch status` or `warpwatch cancel`")
        raise typer.Exit(2) from None
