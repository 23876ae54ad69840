"""Measures how long a running service takes from commits to verdicts, and how soon urgent work begins.

python bench/verdict_times.py [--device auto] [--limit 300] [--jobs]

The repository has one operator with three variants and four cases. After its first commit was measured, which warms
the worker up, four things are timed from the request on:

- eight commits at once, six of which make one variant slower or faster: until the first change is confirmed, and all;
- a push of one commit that slows all variants down: until it is checked, timed and confirmed by a comparison;
- a comparison of all pairs of that commit and its parent: from its start to its end;
- an urgent submission behind two running benches: until its first result is being measured.

--jobs prints when each job began, how long it took, what its last run spent its time on, and how many rounds the pairs
of a comparison took, however the rest ends.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.own_service import empty_database, wait_for_worker
from warpwatch.cli.client import Client
from warpwatch.cli.services import running_services
from warpwatch.worker.devices import choose_device

NAME = "powers"
OPERATOR = """
import torch

from warpwatch import Cost, Operator, case


def inputs(case, make):
    return {{"x": make.normal(case["n"])}}


def reference(x):
    return x * x * x


def cost(case):
    return Cost(flops=2 * case["n"], bytes=8 * case["n"])


operator = Operator(
    "cube", "Element-wise cube.", inputs=inputs, reference=reference, cost=cost,
    cases={{"quick": [case(n=n) for n in {sizes}]}},
)


def repeated(y, share):
    if share:
        y[: int(share * y.numel())].mul_(1)
    return y


@operator.variant("v1", idea="two products")
def v1(x):
    return repeated(x * x * x, {v1})


@operator.variant("v2", idea="one power")
def v2(x):
    return repeated(torch.pow(x, 3), {v2})


@operator.variant("v3", idea="a square and a product in place")
def v3(x):
    return repeated(x.square().mul_(x), {v3})
"""
SIZES = {"cuda": (2**18, 2**20, 2**21, 2**22), "cpu": (2**12, 2**14, 2**16, 2**18)}
HISTORY: tuple[dict[str, float], ...] = (
    {"v1": 0.3},
    {},
    {"v2": 0.6},
    {"v1": 0.0},
    {"v3": 0.3},
    {},
    {"v2": 0.0},
    {"v3": 0.0},
)
"""What each of the eight commits changes: the share of the result that a variant computes once more."""
PUSHED = {"v1": 0.1, "v2": 0.1, "v3": 0.1}
URGENT = 10


class Repository:
    """The measured repository, to which commits are added."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._shares = {"v1": 0.0, "v2": 0.0, "v3": 0.0}
        self._count = 0
        (folder / "kernels").mkdir(parents=True)
        (folder / "warpwatch.toml").write_text('operators = "kernels"\n')
        self._git("init", "--quiet", "--initial-branch=main")
        self.commit({})

    def commit(self, changes: dict[str, float]) -> str:
        """Commits the changed shares, or a comment that changes nothing; returns the commit."""
        self._shares |= changes
        self._count += 1
        text = OPERATOR.format(sizes=SIZES[self._kind], **self._shares)
        (self._folder / "kernels" / "cube.py").write_text(f"# Commit {self._count}.\n{text}")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", f"Commit {self._count}.")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *words: str) -> str:
        who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        command = ["git", "-C", str(self._folder), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True)
class Service:
    """The service that is timed."""

    client: Client
    device: str
    limit: float

    def submit(self, commits: str, **options: Any) -> int:
        request = {"repository": NAME, "commits": commits, "kinds": ["check", "bench"], "device": self.device}
        number: int = self.client.post("/submissions", request | options)["id"]
        return number

    def seconds_until(self, began: float, is_true: Callable[[], bool]) -> str:
        """How long after `began` it is true."""
        while not is_true():
            if time.monotonic() - began > self.limit:
                return f"not within {self.limit:g} s"
            time.sleep(0.05)
        return f"{time.monotonic() - began:.1f} s"

    def has_ended(self, submission: int, kind: str | None = None) -> bool:
        """Whether all its jobs, or those of a kind, have ended."""
        jobs = self.jobs(submission, kind)
        return bool(jobs) and all(job["state"] in ("done", "failed", "cancelled") for job in jobs)

    def jobs(self, submission: int | None = None, kind: str | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.client.get("/jobs", submission=submission, limit=200)["items"]
        return [job for job in rows if kind in (None, job["kind"])]

    def confirmed(self) -> set[str]:
        """The commits of confirmed changes."""
        rows = self.client.get("/regressions", repository=NAME, verdict="confirmed", limit=200)["items"]
        return {row["head_sha"] for row in rows}


def measure(service: Service, repository: Repository) -> None:
    begin = time.monotonic()
    first = service.submit("HEAD")
    print(f"first commit, check and bench: {service.seconds_until(begin, lambda: service.has_ended(first))}")

    shas = [repository.commit(changes) for changes in HISTORY]
    planted = {sha for sha, changes in zip(shas, HISTORY, strict=True) if changes}
    begin = time.monotonic()
    for sha in shas:
        service.submit(sha)
    print(f"eight commits, first change confirmed: {service.seconds_until(begin, lambda: bool(service.confirmed()))}")
    found = service.seconds_until(begin, lambda: planted <= service.confirmed())
    print(f"all {len(planted)} changes: {found}; confirmed {len(service.confirmed() & planted)}", end=" ")
    print(f"and {len(service.confirmed() - planted)} others, {_describe_comparisons(service)}", flush=True)
    wait_idle(service)

    pushed = repository.commit(PUSHED)
    begin = time.monotonic()
    number = service.submit(pushed)
    checked = service.seconds_until(begin, lambda: service.has_ended(number, "check"))
    timed = service.seconds_until(begin, lambda: service.has_ended(number, "bench"))
    confirmed = service.seconds_until(begin, lambda: pushed in service.confirmed())
    print(f"push: checked {checked}, timed {timed}, confirmed {confirmed}", flush=True)
    wait_idle(service)

    number = service.submit(pushed, base="parent", kinds=["compare"])
    waited = service.seconds_until(time.monotonic(), lambda: service.has_ended(number))
    (job,) = service.jobs(number)
    if job["finished_at"] is not None:
        waited = f"{_lasted(job):.1f} s: {_describe_times(service, job)}"
    print(f"comparison of all pairs: {job['state']}, {waited}", flush=True)

    busy = [service.submit(sha, seed=1, budget_ms=4000, kinds=["bench"]) for sha in shas[:2]]
    service.seconds_until(time.monotonic(), lambda: any(job["state"] == "running" for job in service.jobs(busy[0])))
    # Early in its first results, which then have to make room.
    time.sleep(2)
    begin = time.monotonic()
    number = service.submit(shas[2], seed=2, priority=URGENT)
    started = service.seconds_until(begin, lambda: any(job["progress"] for job in service.jobs(number)))
    print(f"urgent submission, first result at work: {started}")


def print_jobs(service: Service) -> None:
    begun = sorted((job for job in service.jobs() if job["started_at"]), key=lambda job: str(job["started_at"]))
    for job in begun:
        start = (datetime.fromisoformat(job["started_at"]) - datetime.fromisoformat(begun[0]["started_at"])).seconds
        lasted = f"{_lasted(job):.1f} s" if job["finished_at"] else job["state"]
        what = f"{start} s: {job['kind']} of {job['commit_sha'][:9]}, priority {job['priority']}"
        print(f"{what}, {lasted}: {_describe_times(service, job)}")
        if job["kind"] == "compare":
            pieces = service.client.get(f"/jobs/{job['id']}/log")["items"]
            lines = "\n".join(piece["text"] for piece in pieces).splitlines()
            print(*(f"    {line}" for line in lines if line.startswith("compare ")), sep="\n")


def wait_idle(service: Service) -> None:
    def is_idle() -> bool:
        return not any(service.client.get("/jobs", state=state)["items"] for state in ("queued", "running"))

    service.seconds_until(time.monotonic(), is_idle)


def _describe_comparisons(service: Service) -> str:
    seconds = [_lasted(job) for job in service.jobs(kind="compare") if job["state"] == "done"]
    return f"{len(seconds)} comparisons of {median(seconds):.1f} s in the median" if seconds else "no comparison"


def _describe_times(service: Service, job: dict[str, Any]) -> str:
    """What the last attempt of a job spent its time on."""
    times = service.client.get(f"/jobs/{job['id']}")["runs"][-1]["times"] or {}
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items() if seconds)


def _lasted(job: dict[str, Any]) -> float:
    begun, ended = (datetime.fromisoformat(job[name]) for name in ("started_at", "finished_at"))
    return (ended - begun).total_seconds()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", action="store_true", help="print where the time of each job went")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds to wait for each thing")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    kind = device.partition(":")[0]
    with empty_database() as (settings, url):
        source = settings.home / "source"
        repository = Repository(source, kind)
        with running_services(settings, url, [device]):
            client = Client(settings.server_url)
            wait_for_worker(client)
            client.post("/repositories", {"name": NAME, "url": str(source)})
            (name,) = {item["key"] for item in client.get("/devices")["items"]}
            service = Service(client, name, arguments.limit)
            try:
                measure(service, repository)
            finally:
                if arguments.jobs:
                    print_jobs(service)


if __name__ == "__main__":
    main()
