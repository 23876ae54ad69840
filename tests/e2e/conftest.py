"""The whole service on one machine: embedded PostgreSQL, server and one CPU worker, as `warpwatch up` starts them."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from warpwatch.cli.client import Client
from warpwatch.cli.services import Service, running_database, running_services
from warpwatch.settings import Settings, load_settings


@dataclass(frozen=True)
class Running:
    settings: Settings
    database_url: str
    client: Client
    services: list[Service]

    def wait(self, is_done: Callable[[], Any], seconds: float = 240) -> Any:
        """The first true answer of `is_done`; fails with the logs' last words when it takes too long."""
        return wait_until(
            is_done,
            seconds,
            pause=0.3,
            explain=lambda: "\n".join(f"--- {service.name}\n{service.last_words()}" for service in self.services),
        )

    def has_ended(self, submission: int) -> dict[str, Any] | None:
        row: dict[str, Any] = self.client.get(f"/submissions/{submission}")
        return row if row["state"] in ("done", "failed", "cancelled") else None

    def is_settled(self, list_open: Callable[[], list[dict[str, Any]]]) -> bool:
        """Whether no job is waiting or at work, every job is judged, and every regression is settled. list_open: those
        that are suspected or confirmed."""
        if self._has_work():
            return False
        # What has just ended is judged within a second.
        time.sleep(4)
        return not self._has_work() and all(row["settled_at"] for row in list_open())

    def _has_work(self) -> bool:
        return any(self.client.get("/jobs", state=state)["items"] for state in ("queued", "running"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = {
        "WARPWATCH_HOME": str(tmp_path_factory.mktemp("home")),
        "WARPWATCH_PORT": str(port),
        "WARPWATCH_CASE_TIMEOUT": "20",
        "WARPWATCH_LEASE": "5",
        "WARPWATCH_MEMORY_GB": "6",
        # For an interpreter of a test's own, which starts this one.
        "WARPWATCH_VISIBLE": f"{tmp_path_factory.mktemp('visible')}:{sys.prefix}:{sys.base_prefix}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        settings = load_settings()
        with running_database(settings) as url, running_services(settings, url, ["cpu"]) as services:
            running = Running(settings, url, Client(settings.server_url), services)
            running.wait(lambda: [w for w in running.client.get("/workers")["items"] if w["state"] == "alive"], 90)
            yield running


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("source") / "cubes"
