"""Two servers on one database, as behind a load balancer that sends each request to either."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
import uvicorn
from sqlalchemy import text

from tests.apps import create_app
from tests.builders import Lab
from tests.waiting import wait_until
from warpwatch.cli.serve import listen
from warpwatch.db.database import Database
from warpwatch.settings import Settings

THREADS = {"channels", "cleaner", "forge", "judge", "judgements", "reaper", "scheduler", "tallies", "teller"}
TOKEN = "a-token-that-all-share"


@pytest.fixture
def servers(lab: Lab, tmp_path: Path) -> Iterator[list[httpx.Client]]:
    """A client of each server. They share a process, which is all that they have in common beside their database."""
    with ExitStack() as stack:
        clients = []
        for number in range(2):
            settings = Settings(home=tmp_path / f"home-{number}", port=0, database_url=lab.database.url, token=TOKEN)
            listener = stack.enter_context(listen(settings))
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            application = create_app(settings, stack.enter_context(closing(Database(lab.database.url))))
            server = uvicorn.Server(uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=1))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, server, "should_exit", True)
            clients.append(stack.enter_context(httpx.Client(base_url=address, timeout=60)))
        yield clients


def test_a_session_works_on_all_and_work_happens_once(servers: list[httpx.Client], lab: Lab) -> None:
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

    wait_until(lambda: taken() >= 2, pause=0.2)
    wait_until(lambda: len(first.get("/api/v1/jobs").json()["items"]) >= 2, pause=0.2)
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
