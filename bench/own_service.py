"""A service of a benchmark's own: an empty database, and what to wait for before it can be asked."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from warpwatch.cli.client import Client
from warpwatch.cli.services import running_database
from warpwatch.db import migrate
from warpwatch.settings import Settings, load_settings


@contextmanager
def empty_database() -> Iterator[tuple[Settings, str]]:
    """The settings of a service in an empty folder on a free port, and the address of its migrated database."""
    with tempfile.TemporaryDirectory(prefix="ww") as home, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        os.environ |= {"WARPWATCH_HOME": home, "WARPWATCH_PORT": str(port)}
        settings = load_settings()
        with running_database(settings) as url:
            migrate.upgrade(url)
            yield settings, url


def wait_for_worker(client: Client) -> None:
    """Returns once a worker is alive."""
    while not any(worker["state"] == "alive" for worker in client.get("/workers")["items"]):
        time.sleep(0.2)
