"""`warpwatch worker` runs the jobs of a device; `warpwatch devices` lists the devices of this machine."""

from __future__ import annotations

import logging

import typer

from warpwatch.cli import app
from warpwatch.settings import SettingError, load_settings


@app.command()
def worker(device: str = typer.Option("cpu", help="Device to measure on: cpu, cuda:0, cuda:1 …")) -> None:
    """Run jobs until Ctrl-C or SIGTERM; a running job then returns to the queue."""
    from warpwatch.cli.database import database_url
    from warpwatch.db import embedded
    from warpwatch.db.errors import EngineError, SchemaOutdatedError
    from warpwatch.db.migrate import pending
    from warpwatch.worker.database_coordinator import connect_to_database
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.loop import run_worker
    from warpwatch.worker.reporter import CannotRunError, Stopped

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    try:
        settings = load_settings()
        name = choose_device(device)
        with database_url(settings) as url:
            if pending(url):
                raise SchemaOutdatedError
            hidden = embedded.folders(settings.home)
            run_worker(settings, name, connect_to_database(url, settings.lease_seconds), hidden)
    except Stopped:
        return
    except (CannotRunError, EngineError, SettingError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@app.command()
def devices() -> None:
    """List the devices of this machine, in the form of `--device`."""
    from warpwatch.worker.devices import find_devices

    for device in find_devices():
        typer.echo(f"{device.name}\t{device.model}")
