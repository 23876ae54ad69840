"""Twenty-five commits with merges and planted faults, measured as one range: every status, direction and culprit is
right, and the charts have their shape long before the end.

Prints the minutes. WARPWATCH_TEST_LOAD=8 keeps so many processes busy beside the worker.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Running
from tests.e2e.planted_commits import COMMITS, CULPRIT, EVENTS, SLOW_BRANCH, STATUSES, build_planted_commits
from tests.e2e.test_forty_commits import seconds

pytestmark = pytest.mark.timeout(5400)
MEASURING_SECONDS, DECIDING_SECONDS = 2400, 2700
VERSIONS = {
    "roots": {0, 3, 11, 19},
    "waves": {0, 7, 8, SLOW_BRANCH},
    "sums": {0, 5, 6, 9, 10, 14, 15, 20, 21},
    "cube": {0, 12, 13},
}
"""The commits at which each operator has other sources than before."""


@dataclass(frozen=True)
class Planted:
    """The history, its submission, and what the service planned for it."""

    shas: list[str]
    submission: int
    plan: dict[str, Any]

    def place(self, sha: str) -> int:
        return self.shas.index(sha)


@pytest.fixture(scope="module")
def load() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(int(os.environ.get("WARPWATCH_TEST_LOAD", "0"))):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
        yield


@pytest.fixture(scope="module")
def planted(running: Running, source: Path, load: None) -> Planted:
    """The history, when nothing is left to be measured or decided."""
    shas = build_planted_commits(source)
    running.client.post("/repositories", {"name": "planted", "url": str(source)})
    request = {
        "repository": "planted",
        "commits": f"{shas[0]}^..{shas[-1]}",
        "kinds": ["check", "bench"],
        "device": "cpu",
    }
    plan = running.client.post("/submissions/preview", request)
    began = time.monotonic()
    result = Planted(shas, running.client.post("/submissions", request)["id"], plan)
    running.wait(lambda: running.has_ended(result.submission), MEASURING_SECONDS)
    measured = time.monotonic() - began
    running.wait(lambda: running.is_settled(lambda: changes(running, "suspected", "confirmed")), DECIDING_SECONDS)
    report(running, result, measured, time.monotonic() - began)
    return result


def changes(running: Running, *verdicts: str) -> list[dict[str, Any]]:
    pages = [
        running.client.get("/regressions", repository="planted", verdict=verdict, state="any", limit=200)
        for verdict in verdicts
    ]
    return [row for page in pages for row in page["items"]]


def jobs(running: Running, submission: int | None = None) -> list[dict[str, Any]]:
    rows, before = [], None
    while True:
        page = running.client.get("/jobs", submission=submission, limit=200, before=before)
        rows += page["items"]
        before = page["next_before"]
        if before is None:
            return rows


def report(running: Running, planted: Planted, measured: float, settled: float) -> None:
    """Prints the minutes, when the charts had their shape, and what the worker did by kind of job."""
    rows = [job for job in jobs(running, planted.submission) if job["started_at"]]
    began = min(seconds(job["started_at"]) for job in rows)
    ended: dict[str, list[float]] = defaultdict(list)
    for job in rows:
        if job["kind"] == "bench" and job["finished_at"]:
            ended[job["operator"]].append(seconds(job["finished_at"]) - began)
    shape = max(sorted(times)[:3][-1] for times in ended.values())
    spent: dict[str, float] = defaultdict(float)
    for job in jobs(running):
        if job["started_at"] and job["finished_at"]:
            spent[job["kind"]] += seconds(job["finished_at"]) - seconds(job["started_at"])
    load = Path("/proc/loadavg").read_text().split()[1]
    print(
        f"\n{planted.plan['jobs']} jobs, {planted.plan['unchanged']} skipped; three points of each operator after "
        f"{shape / 60:.1f} min, all measured after {measured / 60:.1f}, settled after {settled / 60:.1f}; load {load}; "
        + ", ".join(f"{kind} {value / 60:.1f} min" for kind, value in spent.items()),
        file=sys.stderr,
    )
    for row in changes(running, "confirmed", "dismissed", "unsure"):
        trials = running.client.get(f"/regressions/{row['id']}")["trials"]
        print(
            f"{row['verdict']} {row['direction']} {row['operator']} {row['head_subject']!r} by {row['cause']}: "
            + "; ".join(f"{trial['purpose']} {trial['answer']}" for trial in trials),
            file=sys.stderr,
        )


def test_the_plan_leaves_out_what_is_unchanged_and_says_so(planted: Planted) -> None:
    assert planted.plan["kinds"] == {kind: sum(map(len, VERSIONS.values())) for kind in ("check", "bench")}
    assert planted.plan["jobs"] + planted.plan["unchanged"] == COMMITS * len(VERSIONS) * 2
    left_out = {group["reason"]: group["count"] for group in planted.plan["left_out"]}
    assert left_out == {"merged_branch": 4, "unchanged": COMMITS - len(set().union(*VERSIONS.values()))}


def test_every_status_is_right(running: Running, planted: Planted) -> None:
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for job in jobs(running, planted.submission):
        if job["kind"] == "check" and job["reason"] != "unchanged":
            for result in running.client.get(f"/jobs/{job['id']}")["results"]:
                found[job["operator"], planted.place(job["commit_sha"])].add(result["status"])
    assert found.keys() == {(name, number) for name, numbers in VERSIONS.items() for number in numbers}
    for key, statuses in found.items():
        assert statuses - {"ok", "skipped"} == ({STATUSES[key]} if key in STATUSES else set()), key


def test_every_direction_and_culprit_is_right(running: Running, planted: Planted) -> None:
    # What another series showed as well is merged into the change that was found first, and invalid from then on.
    confirmed = [row for row in changes(running, "confirmed") if row["state"] != "invalid"]
    assert {(row["direction"], row["operator"], planted.place(row["head_sha"])) for row in confirmed} == EVENTS
    assert all(planted.place(row["base_sha"]) == planted.place(row["head_sha"]) - 1 for row in confirmed)
    merged = {row["merged_culprit_sha"] for row in confirmed} - {None}
    details = [running.client.get(f"/commits/{sha}", repository="planted") for sha in merged]
    assert [detail["commit"]["subject"] for detail in details] == [CULPRIT]
    # On a busy host a pair without a change may stay unsure, which names nobody.
    assert changes(running, "suspected") == []
