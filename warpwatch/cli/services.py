"""The processes behind `warpwatch up`: database, server and a worker per device. They stop in reverse order."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from warpwatch.settings import Settings

STOP_SECONDS = 20
"""How long a worker may take to hand its job back before it is killed."""
START_SECONDS = 60
PR_SET_PDEATHSIG = 1


class StartError(RuntimeError):
    """A part of the service did not start; the message says which and what to do."""


class Service:
    """One child process with its log file; it dies with us, however we die."""

    def __init__(self, name: str, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            # A session of its own keeps the terminal's Ctrl-C away: we stop our parts in order ourselves.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "warpwatch", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def ask_to_stop(self) -> None:
        if self.is_alive():
            self.process.send_signal(signal.SIGTERM)

    def wait_stopped(self, deadline: float) -> None:
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-15:])


def check_port(settings: Settings) -> None:
    """StartError when something else listens where the server should."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise StartError(
                f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); "
                "choose another port with WARPWATCH_PORT"
            ) from None


@contextlib.contextmanager
def running_database(settings: Settings) -> Iterator[str]:
    """URL of a migrated database: the given one, or the embedded server, which runs at least as long as the block."""
    from warpwatch.cli.database import database_url
    from warpwatch.db import migrate

    with database_url(settings) as url:
        migrate.upgrade(url)
        yield url


@contextlib.contextmanager
def running_services(settings: Settings, database_url: str, devices: list[str]) -> Iterator[list[Service]]:
    """Server and workers, ready to be used; StartError carries the last lines of the log of the one that failed."""
    environment = {**os.environ, "WARPWATCH_DATABASE_URL": database_url, "WARPWATCH_HOME": str(settings.home)}
    logs = settings.home / "logs"
    services = [Service("server", ["serve"], logs / "server.log", environment)]
    try:
        services += [
            Service(
                f"worker {device}",
                ["worker", "--device", device],
                logs / f"worker-{device.replace(':', '')}.log",
                environment,
            )
            for device in devices
        ]
        _wait_until_healthy(settings, services[0])
        yield services
    finally:
        for service in reversed(services):
            service.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for service in reversed(services):
            service.wait_stopped(deadline)


def _wait_until_healthy(settings: Settings, server: Service) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if not server.is_alive():
            raise StartError(f"the server ended at once; its log {server.log} says:\n{server.last_words()}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"http://{settings.host}:{settings.port}/api/v1/health", timeout=2).close()
            return
        time.sleep(0.1)
    raise StartError(
        f"the server did not answer within {START_SECONDS} s; its log {server.log} says:\n{server.last_words()}"
    )


def _die_with_parent() -> None:
    """Linux: ask the kernel for SIGTERM when our parent dies, so that kill -9 of `up` leaves nothing running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
