"""`warpwatch worker` runs the jobs of a device; `warpwatch devices` lists the devices of this machine."""

from __future__ import annotations

import logging

import typer

from warpwatch.cli import app
from warpwatch.logs import configure_logs
from warpwatch.settings import SettingError, load_settings


@app.command()
def worker(device: str = typer.Option("cpu", help="Device to measure on: cpu, cuda:0, cuda:1 …")) -> None:
    """Run jobs until Ctrl-C or SIGTERM; a running job then returns to the queue."""
    from warpwatch.cli.database import database_url
    from warpwatch.db.errors import EngineError, SchemaOutdatedError
    from warpwatch.db.migrate import pending
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.loop import run_worker
    from warpwatch.worker.reporter import CannotRunError, Stopped

    try:
        settings = load_settings()
        configure_logs(settings.log_format, logging.INFO)
        name = choose_device(device)
        with database_url(settings) as url:
            if pending(url):
                raise SchemaOutdatedError
            run_worker(settings, url, name)
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
