"""A git host that takes connections and never answers keeps nobody waiting but those who ask it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.builders import Lab
from tests.server.conftest import app as app
from tests.server.conftest import settings as settings
from tests.waiting import wait_until
from warpwatch import git
from warpwatch.db import registry
from warpwatch.git import UnreachableError
from warpwatch.server.http import git_threads

SUBMISSION = {"commits": "HEAD", "kinds": ["check"]}


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The address of a repository on a host that accepts connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/kernels.git"


def git_processes(url: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if url in line]


def test_a_silent_host_is_given_up_with_all_its_processes(
    silent_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "ANSWER_SECONDS", 1.0)
    with pytest.raises(UnreachableError):
        git.update_mirror(silent_url, tmp_path)
    wait_until(lambda: not git_processes(silent_url), 10, 0.1, explain=lambda: git_processes(silent_url))


def test_ssh_gives_up_by_itself() -> None:
    command = git._environment(["fetch"])["GIT_SSH_COMMAND"]
    assert {"ConnectTimeout=10", "ServerAliveInterval=10", "BatchMode=yes"} <= set(command.split())


def test_forty_requests_to_a_silent_host_stop_nobody_else(
    app: FastAPI, lab: Lab, silent_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "ANSWER_SECONDS", 6.0)
    with lab.database.session() as s:
        registry.ensure_repository(s, "silent", silent_url)

    async def scenario() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321", timeout=None) as client:
            hanging = [
                asyncio.create_task(client.post("/api/v1/submissions", json=SUBMISSION | {"repository": "silent"}))
                for _ in range(45)
            ]
            while not git_processes(silent_url):
                await asyncio.sleep(0.1)
            for path in ("/api/v1/health", "/", "/runs", "/api/v1/jobs"):
                assert (await client.get(path)).status_code == 200
            submission = SUBMISSION | {"repository": lab.name, "device": lab.environment.device_key}
            assert (await client.post("/api/v1/submissions", json=submission)).status_code == 201
            assert not any(task.done() for task in hanging)
            assert len({line.split()[0] for line in git_processes(silent_url)}) <= git_threads.THREADS_PER_REPOSITORY
            first = await asyncio.wait(hanging, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result().status_code for task in first[0]} == {502}
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    asyncio.run(scenario())


def test_too_many_requests_for_one_repository_are_refused(
    app: FastAPI, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_threads, "MOST_WAITING", 1)
    threads = git_threads.GitThreads()

    async def scenario() -> list[object]:
        actions = [threads.run("one", lambda: time.sleep(0.3)) for _ in range(git_threads.THREADS_PER_REPOSITORY + 2)]
        return list(await asyncio.gather(*actions, return_exceptions=True))

    refused = [result for result in asyncio.run(scenario()) if result is not None]
    assert [getattr(problem, "status", None) for problem in refused] == [503]
    assert threads._lines == {}
