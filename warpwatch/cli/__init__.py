"""The `warpwatch` command. It sits on top of everything and nothing imports it.

One module per group of commands; each imports what it needs inside its functions, so that `warpwatch run` on a closed
GPU node needs neither the server's nor the database's packages.
"""

from __future__ import annotations

import sys

# Each module adds its commands to `app` when it is imported.
from warpwatch.cli import (  # noqa: F401
    build,
    channel,
    compare,
    credentials,
    database,
    doctor,
    exam,
    forge,
    init,
    judge,
    kron,
    mcp,
    prove,
    publish,
    repository,
    results_files,
    run,
    schedule,
    serve,
    submit,
    tokenizer,
    up,
    worker,
    working_tree,
)
from warpwatch.cli.app import app


def main() -> None:
    """Entry point of the `warpwatch` command. Exit code 2 when a package that the command needs is not installed."""
    try:
        app()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "warpwatch":
            raise
        remedy = "install Warpwatch with its extras: pip install 'warpwatch[measure,server,embedded]'"
        sys.exit(f"this command needs the Python package {error.name}, which is not installed; {remedy}")
