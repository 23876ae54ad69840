"""Waiting for a run from a terminal or from CI: what is said meanwhile."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from io import StringIO
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from rich.console import Console
from sqlalchemy import text

from tests.builders import CASES, Lab
from warpwatch.cli import progress, submit
from warpwatch.cli.client import ApiError, Client
from warpwatch.contract.words import Status
from warpwatch.db import unjudged
from warpwatch.settings import Settings

V1 = ("v1", CASES[0])


class Service:
    """The service as the command asks it, which goes one step on with every look at the submission."""

    def __init__(self, client: TestClient, steps: list[Any]) -> None:
        self.client, self.steps = client, steps

    def get(self, path: str) -> Any:
        if re.fullmatch(r"/submissions/\d+", path) and self.steps:
            self.steps.pop(0)()
        return self.client.get(f"/api/v1{path}").json()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The made-up worker renews no lease, and on a busy machine a test takes longer than the usual one."""
    return replace(settings, lease_seconds=3600.0)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What the command prints, where there is no terminal and every interval has passed."""
    printed = StringIO()
    monkeypatch.setattr(submit, "console", Console(file=printed, width=200))
    for name in ("POLL_SECONDS", "NOTE_SECONDS", "SAY_SECONDS"):
        monkeypatch.setattr(submit, name, 0.0)
    return printed


def submitted(client: TestClient) -> int:
    body = {"repository": "kernels", "commits": "main", "kinds": ["check", "bench"], "operators": ["square"]}
    answer = client.post("/api/v1/submissions", json=body | {"device": "cpu"})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def judge(lab: Lab, jobs: list[int]) -> None:
    with lab.database.session() as session:
        for job in jobs:
            unjudged.mark_judged(session, job)


def nothing() -> None:
    """A moment in which nothing happens."""


def test_a_wait_without_a_terminal_says_place_and_expected_end(client: TestClient, lab: Lab, said: StringIO) -> None:
    other = lab.submit("check", 0)
    number = submitted(client)
    check, bench = other + 1, other + 2
    progress = client.get(f"/api/v1/submissions/{number}/progress").json()
    assert (progress["ended"], progress["running"], progress["total"], progress["ahead"]) == (0, 0, 2, 1)
    found = lab.outcome([lab._timed(*V1, 1000.0, 0.002)])
    steps = [
        nothing,
        lambda: client.post(f"/jobs/{other}/cancel"),
        lambda: lab.finish(check, found),
        lambda: client.post(f"/jobs/{bench}/cancel"),
        lambda: judge(lab, [check, bench]),
    ]
    submit._follow(cast("Client", Service(client, steps)), number, 1000.0, {})
    lines = said.getvalue().splitlines()
    pattern = rf"submission {number}: 0 of 2 jobs have ended, 1 job before it in line, expected end \d\d:\d\d"
    assert any(re.fullmatch(pattern, line) for line in lines), lines
    assert any("0 of 2 jobs have ended, next in line, expected end" in line for line in lines)
    assert any("1 of 2 jobs have ended" in line for line in lines)
    assert any("all jobs have ended, 2 verdicts left" in line for line in lines)


def test_a_wrong_result_is_told_while_other_jobs_wait(client: TestClient, lab: Lab, said: StringIO) -> None:
    number = submitted(client)
    wrong = lab.outcome([lab._timed(*V1, Status.WRONG, 0.0)])
    with pytest.raises(ApiError, match="not finished"):
        submit._follow(cast("Client", Service(client, [lambda: lab.finish(1, wrong)])), number, 0.3, {})
    assert said.getvalue().count(f"wrong: square v1 {CASES[0]} on Test CPU") == 1
    assert client.get(f"/api/v1/submissions/{number}").json()["state"] == "running"


def test_no_end_is_promised_without_a_worker(client: TestClient, lab: Lab) -> None:
    number = submitted(client)
    assert client.get(f"/api/v1/submissions/{number}/progress").json()["expected_end"] is not None
    with lab.database.session() as session:
        session.execute(text("UPDATE workers SET stopped_at = now()"))
    assert client.get(f"/api/v1/submissions/{number}/progress").json()["expected_end"] is None


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_run_without_a_terminal_says_how_far_it_is(is_quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SAY_SECONDS", 0.01)
    printed = StringIO()
    with progress.run_progress(Console(file=printed, width=200), is_quiet=is_quiet) as reporter:
        reporter.job(1, 4, "0123abcd square bench")
        reporter.progress(2, 9, "v1 n=1024")
        reporter.log(f"g++ {60 * 'x'} {60 * 'y'} -c knn.cpp")
        for _ in range(500):
            if "v1 n=1024, " in printed.getvalue():
                break
            time.sleep(0.01)
    # Without its log, a build of minutes would be silent. What it builds stands at the end of a long line.
    last_line = r"g\+\+ x+ … y+ -c knn.cpp, " if is_quiet else ""
    assert re.search(
        rf"1 of 4 jobs have ended, 0123abcd square bench, v1 n=1024, {last_line}expected end \d\d:\d\d",
        printed.getvalue(),
    )
