"""The processes behind `warpwatch up`: database, server and a worker per device. They stop in reverse order."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from warpwatch.contract.data_folder import worker_key_file
from warpwatch.settings import Settings

STOP_SECONDS = 20
"""How long a worker may take to hand its job back before it is killed."""
START_SECONDS = 60
FIRST_PAUSE_SECONDS = 1.0
MOST_RESTARTS = 5
RESTART_WINDOW_SECONDS = 600.0
PR_SET_PDEATHSIG = 1


class StartError(RuntimeError):
    """A part of the service did not start; the message says which and what to do."""


class Service:
    """One child process with its log file; it dies with us, however we die."""

    def __init__(self, name: str, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = log
        self._arguments = arguments
        self._environment = environment
        log.parent.mkdir(parents=True, exist_ok=True)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            # A session of its own keeps the terminal's Ctrl-C away: we stop our parts in order ourselves.
            return subprocess.Popen(
                [sys.executable, "-m", "warpwatch", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def restart(self) -> None:
        self.process = self._start()

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


class Restartable(Protocol):
    """A part of the service that may end: a process of ours, or the embedded database."""

    name: str

    def is_alive(self) -> bool: ...
    def restart(self) -> None: ...
    def last_words(self) -> str: ...


class EmbeddedDatabase:
    """The embedded PostgreSQL of a home folder, as a part of the service."""

    name = "database"

    def __init__(self, home: Path) -> None:
        self._home = home

    def is_alive(self) -> bool:
        from warpwatch.db import embedded

        return embedded.is_running(self._home)

    def restart(self) -> None:
        from warpwatch.db import embedded

        embedded.start(self._home)

    def last_words(self) -> str:
        return "see the file `log` in its data folder"


class Supervisor:
    """Starts again what ended, after a pause that grows, and gives up on a part that ends again and again."""

    def __init__(
        self,
        parts: Sequence[Restartable],
        report: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._report = report
        self._clock = clock
        self._ends: dict[str, list[float]] = {part.name: [] for part in parts}
        self._restart_at: dict[str, float] = {}

    def check(self) -> None:
        """One look at every part; StartError when one ended more than MOST_RESTARTS times within RESTART_WINDOW."""
        now = self._clock()
        for part in self._parts:
            if part.name in self._restart_at:
                if now >= self._restart_at[part.name]:
                    del self._restart_at[part.name]
                    self._restart(part)
            elif not part.is_alive():
                self._note_end(part, now)

    def _note_end(self, part: Restartable, now: float) -> None:
        ends = [end for end in self._ends[part.name] if now - end < RESTART_WINDOW_SECONDS] + [now]
        self._ends[part.name] = ends
        if len(ends) > MOST_RESTARTS:
            raise StartError(
                f"{part.name} ended {len(ends)} times within {RESTART_WINDOW_SECONDS / 60:.0f} minutes; "
                f"its last words:\n{part.last_words()}"
            )
        pause = FIRST_PAUSE_SECONDS * 2 ** (len(ends) - 1)
        self._restart_at[part.name] = now + pause
        self._report(f"{part.name} ended unexpectedly; it starts again in {pause:g} s")

    def _restart(self, part: Restartable) -> None:
        from warpwatch.db.errors import EngineError

        try:
            part.restart()
        except (EngineError, OSError) as error:
            # The next look finds that it is not alive, which counts as one more end.
            self._report(f"{part.name} does not start: {error}")
        else:
            self._report(f"{part.name} was started again")


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


def ensure_worker_key(home: Path) -> str:
    """The key of this machine's workers, from a file in the data folder that only its owner can read."""
    file = worker_key_file(home)
    with contextlib.suppress(FileNotFoundError):
        return file.read_text(encoding="ascii").strip()
    home.mkdir(parents=True, exist_ok=True)
    key = f"wwk_{secrets.token_urlsafe(32)}"
    with contextlib.suppress(FileExistsError):
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(key, encoding="ascii")
        return key
    # Another service of this folder made it a moment ago.
    return file.read_text(encoding="ascii").strip()


@contextlib.contextmanager
def running_services(settings: Settings, database_url: str, devices: list[str]) -> Iterator[list[Service]]:
    """Server and workers, ready to be used; StartError carries the last lines of the log of the one that failed."""
    environment = os.environ | {
        "WARPWATCH_HOME": str(settings.home),
        "WARPWATCH_TRIAL_SHARE": str(settings.trial_share),
        "WARPWATCH_WORKER_KEY": ensure_worker_key(settings.home),
    }
    of_server = environment | {"WARPWATCH_DATABASE_URL": database_url}
    # What runs kernel code does not know the database.
    environment.pop("WARPWATCH_DATABASE_URL", None)
    logs = settings.home / "logs"
    services = [Service("server", ["serve"], logs / "server.log", of_server)]
    try:
        services += [
            Service(
                f"worker {device}",
                ["worker", "--device", device, "--server", settings.local_url],
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
            urllib.request.urlopen(f"{settings.local_url}/api/v1/health", timeout=2).close()
            return
        time.sleep(0.1)
    raise StartError(
        f"the server did not answer within {START_SECONDS} s; its log {server.log} says:\n{server.last_words()}"
    )


def _die_with_parent() -> None:
    """Linux: ask the kernel for SIGTERM when our parent dies, so that kill -9 of `up` leaves nothing running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
