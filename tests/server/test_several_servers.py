"""Two server processes on one database, as behind a load balancer that sends each request to either."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from tests.builders import Lab
from tests.server.test_serve import wait_until_healthy
from tests.waiting import wait_until

THREADS = {"channels", "cleaner", "forge", "judge", "judgements", "reaper", "scheduler", "tallies", "teller"}
TOKEN = "a-token-that-all-share"


@pytest.fixture
def servers(lab: Lab, tmp_path: Path) -> Iterator[list[httpx.Client]]:
    """A client of each server."""
    with ExitStack() as stack:
        clients = []
        for number in range(2):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            process = subprocess.Popen(
                [sys.executable, "-m", "warpwatch", "serve"],
                env=os.environ
                | {
                    "WARPWATCH_HOME": str(tmp_path / f"home-{number}"),
                    "WARPWATCH_DATABASE_URL": lab.database.url,
                    "WARPWATCH_PORT": str(port),
                    "WARPWATCH_TOKEN": TOKEN,
                    "WARPWATCH_LOG_FORMAT": "json",
                },
                stderr=(tmp_path / f"server-{number}.log").open("wb"),
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            clients.append(stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)))
            wait_until_healthy(port)
        yield clients


def test_a_session_works_on_all_and_work_happens_once(servers: list[httpx.Client], lab: Lab, tmp_path: Path) -> None:
    first, second = servers
    assert [client.get("/readyz").status_code for client in servers] == [200, 200]
    assert second.get("/api/v1/repositories").status_code == 401
    assert first.post("/login", data={"token": TOKEN}).status_code == 303
    second.cookies = first.cookies
    assert second.get("/api/v1/repositories").json()["items"][0]["name"] == "kernels"

    for operator, client in zip(("square", "cube"), servers, strict=True):
        body = {"repository": "kernels", "name": operator, "kind": "suite", "operators": [operator], "kinds": ["bench"]}
        assert client.post("/api/v1/schedules", json=body).status_code == 201
    with lab.database.session() as session:
        # The worker that the jobs are for is heard of for as long as this takes.
        session.execute(text("UPDATE workers SET heartbeat_at = now() + interval '10 minutes'"))
        session.execute(text("UPDATE schedules SET next_at = now() - interval '1 hour'"))

    def taken() -> int:
        with lab.database.session() as session:
            return session.execute(text("SELECT count(*) FROM schedules WHERE last_at IS NOT NULL")).scalar_one()

    log = tmp_path / "server-0.log"
    wait_until(lambda: taken() >= 2, pause=0.2, explain=log.read_text)
    wait_until(lambda: len(first.get("/api/v1/jobs").json()["items"]) >= 2, pause=0.2, explain=log.read_text)
    # Longer than the pause of a scheduler, so that the other server has looked, too.
    time.sleep(2.5)
    for client in servers:
        jobs = client.get("/api/v1/jobs").json()["items"]
        messages = [row["message"] for row in client.get("/api/v1/schedules").json()["items"]]
        assert sorted(job["operator"] for job in jobs) == ["cube", "square"], messages
        watched = re.findall(
            r'^warpwatch_thread_age_seconds\{thread="(\w+)"', client.get("/metrics").text, re.MULTILINE
        )
        assert set(watched) == THREADS, "the background threads of a server are all watched"
