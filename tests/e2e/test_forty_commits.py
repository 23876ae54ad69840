"""Forty commits, every fifth measured: the service suspects, confirms and bisects by itself, on a worker whose cores
others use too."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Running
from tests.e2e.forty_commits import ENVIRONMENT_CHANGES, EVENTS, MEASURED, build_forty_commits

pytestmark = pytest.mark.timeout(3600)
MEASURING_SECONDS, DECIDING_SECONDS = 1200, 1800


@pytest.fixture(scope="module")
def load() -> Iterator[None]:
    """A program that never rests, and gives way to everybody."""
    with subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", "while True: pass"]) as busy:
        yield
        busy.kill()


@pytest.fixture(scope="module")
def shas(running: Running, source: Path, load: None) -> list[str]:
    """The forty commits, when nothing is left to be measured."""
    folder = running.settings.visible[0]
    commits = build_forty_commits(source, folder / "python-that-spins")
    running.client.post("/repositories", {"name": "roots", "url": str(source)})
    started = time.monotonic()
    asked = [
        running.client.post(
            "/submissions",
            # Suspicions come from history, which needs readings of unchanged code, too.
            {
                "repository": "roots",
                "commits": commits[number],
                "kinds": ["check", "bench"],
                "device": "cpu",
                "skip_unchanged": False,
            },
        )
        for number in MEASURED
    ]
    for answer in asked:
        running.wait(partial(running.has_ended, answer["id"]), MEASURING_SECONDS)

    def list_open() -> list[dict[str, Any]]:
        return changes(running, "suspected") + changes(running, "confirmed")

    running.wait(lambda: running.is_settled(list_open), DECIDING_SECONDS)
    report(running, time.monotonic() - started)
    return commits


def changes(running: Running, verdict: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = running.client.get("/regressions", repository="roots", verdict=verdict, limit=200)[
        "items"
    ]
    return rows


def report(running: Running, wall_seconds: float) -> None:
    """Prints what was found, and what it took of the worker by kind of job."""
    spent: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for job in running.client.get("/jobs", limit=200)["items"]:
        if job["started_at"] and job["finished_at"]:
            spent[job["kind"]] += seconds(job["finished_at"]) - seconds(job["started_at"])
            count[job["kind"]] += 1
    print(f"\nwall {wall_seconds / 60:.1f} min, worker {sum(spent.values()) / 60:.1f} min:", end=" ", file=sys.stderr)
    print(", ".join(f"{count[kind]} {kind} {spent[kind] / 60:.1f} min" for kind in spent), file=sys.stderr)
    for verdict in ("confirmed", "dismissed", "unsure"):
        for row in changes(running, verdict):
            detail = running.client.get(f"/regressions/{row['id']}")
            print(
                f"{verdict} {row['direction']} {row['operator']} {row['head_subject']!r} by {row['cause']}",
                file=sys.stderr,
            )
            for trial in detail["trials"]:
                print(f"    {trial['purpose']}: {trial['answer']}, {trial['message']}", file=sys.stderr)


def seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def test_exactly_the_five_events_at_their_commits(running: Running, shas: list[str]) -> None:
    place = {sha: number for number, sha in enumerate(shas)}
    found = {
        (row["direction"], row["operator"], place[row["base_sha"]], place[row["head_sha"]])
        for row in changes(running, "confirmed")
        if row["state"] == "new"
    }
    assert found == EVENTS
    assert changes(running, "unsure") == changes(running, "suspected") == []


def test_each_size_is_told(running: Running, shas: list[str]) -> None:
    ratios = {row["head_sha"]: row["ratio"] for row in changes(running, "confirmed")}
    for number, ratio in ((3, 1.30), (7, 0.80), (14, 1.08), (23, 1.03)):
        assert ratios[shas[number]] == pytest.approx(ratio, abs=0.025), number


def test_what_did_not_build_was_gone_around(running: Running, shas: list[str]) -> None:
    row = next(row for row in changes(running, "confirmed") if row["head_sha"] == shas[14])
    trials = running.client.get(f"/regressions/{row['id']}")["trials"]
    assert [trial["head_sha"] for trial in trials if trial["answer"] == "skipped"] == [shas[12]]


def test_the_environment_changed_and_alarmed_nobody(running: Running, shas: list[str]) -> None:
    series = running.client.get("/series", repository="roots", metric="hot")["items"]
    for one in series:
        points = running.client.get(f"/history/{one['id']}")["points"]
        before = {point["environment_id"] for point in points if point["commit_sha"] in shas[:ENVIRONMENT_CHANGES]}
        behind = {point["environment_id"] for point in points if point["commit_sha"] in shas[ENVIRONMENT_CHANGES:]}
        assert len(before) == len(behind) == 1
        assert before != behind
