"""`warpwatch worker` runs the jobs of a device; `warpwatch devices` lists the devices of this machine."""

from __future__ import annotations

import logging
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from warpwatch import telemetry
from warpwatch.cli.app import app
from warpwatch.contract.data_folder import undelivered_folder, worker_key_file
from warpwatch.logs import configure_logs
from warpwatch.settings import SettingError, Settings, load_settings

if TYPE_CHECKING:
    from warpwatch.worker.coordinator import Connect


@app.command()
def worker(
    device: str = typer.Option("cpu", help="Device to measure on: cpu, cuda:0, cuda:1 …"),
    server: str | None = typer.Option(
        None,
        metavar="URL",
        help="Server that gives the jobs; default: that of this machine and WARPWATCH_HOME.",
    ),
    key: str | None = typer.Option(
        None,
        envvar="WARPWATCH_WORKER_KEY",
        help="Key for --server, from `warpwatch key add`. Other users of a host see the options of its processes.",
    ),
    until_idle: str | None = typer.Option(
        None, metavar="TIME", help="End once no job came for so long: seconds, or 90s, 10m, 4h."
    ),
    at_most: str | None = typer.Option(
        None, metavar="TIME", help="End after so long; a running job then returns to the queue."
    ),
) -> None:
    """Run jobs until Ctrl-C or SIGTERM; a running job then returns to the queue at once."""
    from warpwatch.worker.coordinator import ServerError
    from warpwatch.worker.devices import choose_device
    from warpwatch.worker.loop import WorkerLimits, run_worker
    from warpwatch.worker.reporter import CannotRunError, Stopped

    try:
        settings = load_settings()
        limits = WorkerLimits(_seconds("--until-idle", until_idle), _seconds("--at-most", at_most))
        configure_logs(settings.log_format, logging.INFO)
        if settings.has_telemetry:
            telemetry.start("warpwatch-worker")
        name = choose_device(device)
        run_worker(settings, name, _server_of(settings, server, key), limits)
    except Stopped:
        return
    except (CannotRunError, ServerError, SettingError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def _seconds(option: str, text: str | None) -> float:
    """The seconds of a time such as 90, 90s, 10m or 4h; infinite without one."""
    if text is None:
        return math.inf
    match = re.fullmatch(r"(\d{1,6})([smh]?)", text)
    if match is None:
        raise SettingError(f"{option}={text!r} is no time; give seconds, or a number with s, m or h, such as 4h")
    return int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _server_of(settings: Settings, server: str | None, key: str | None) -> Connect:
    """Connects a worker to the server that is given, or to that of this machine, whose key lies in the data folder."""
    from warpwatch.worker.http_coordinator import connect_to_server

    if server is None:
        if settings.database_url is not None:
            raise SettingError(
                "a worker speaks to a server, and the machine that runs kernel code must not know the database: unset "
                "WARPWATCH_DATABASE_URL, and give --server https://… and WARPWATCH_WORKER_KEY, from `warpwatch key add`"
            )
        server = settings.local_url
        with suppress(FileNotFoundError):
            key = key or worker_key_file(settings.home).read_text(encoding="ascii").strip()
    if not server.startswith(("http://", "https://")) or not key:
        raise SettingError(
            "a worker needs the address and the key of its server: --server https://… and WARPWATCH_WORKER_KEY, "
            "from `warpwatch key add`"
        )
    return connect_to_server(server, key, undelivered_folder(settings.home))


@app.command()
def devices() -> None:
    """List the devices of this machine, in the form of `--device`."""
    from warpwatch.worker.devices import find_devices

    for device in find_devices():
        typer.echo(f"{device.name}\t{device.model}")
