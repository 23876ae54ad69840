"""Measures the latency of the queue and of a warm worker.

python bench/queue_latency.py [--jobs 200] [--repeats 10] [--waiting 100000]

Pick-up: from the commit of a submission until the worker's handler starts, one job at a time on an idle worker that
speaks to a server on this machine; p50 and p99. Claim: of one job among --waiting that wait, in the database.
First result: from POST /api/v1/submissions until the job is done, for one check of one variant on one case of this
checkout's HEAD, on a worker that has just measured the same commit; median and range. Both use an embedded database
over its socket.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

sys.path.insert(0, str(Path(__file__).parents[1]))

from sqlalchemy import text

from bench.own_service import empty_database, wait_for_worker
from warpwatch import git
from warpwatch.cli.client import Client
from warpwatch.cli.services import ensure_worker_key, running_services
from warpwatch.contract.catalogue import CommitInfo
from warpwatch.contract.claims import ClaimedJob, EndingKind, RunEnding, WorkerDescription
from warpwatch.contract.environment import Environment, key_of
from warpwatch.contract.spec import JobSpec
from warpwatch.db import registry, runs, submissions
from warpwatch.db.database import Database
from warpwatch.worker.http_coordinator import connect_to_server

ROOT = Path(__file__).parent.parent


FACTS = {"torch": "none"}
ENVIRONMENT = Environment(key_of(FACTS), "cpu", "queue-bench", "queue bench", FACTS)


class Queue:
    """Jobs for a device of its own."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        with self.database.session() as s:
            self._repository = registry.ensure_repository(s, "queue", "/nowhere")
            row = CommitInfo("0" * 40, None, 1, "bench", datetime.now(UTC), "bench")
            commit = registry.record_commits(s, self._repository, [row])[row.sha]
            operator = registry.ensure_operators(s, self._repository, ["none"])["none"]
            self.device = registry.ensure_device(s, ENVIRONMENT.device_key, "cpu", ENVIRONMENT.device_name)
        self._job = submissions.NewJob("check", commit, operator, self.device, JobSpec())

    def add(self, count: int = 1) -> None:
        new = submissions.NewSubmission(self._repository, {}, [self._job] * count)
        with self.database.session() as s:
            submissions.create_submission(s, new)


async def pick_ups(queue: Queue, server: str, key: str, folder: Path, count: int) -> list[float]:
    """Milliseconds from commit to handler of each job."""
    started: list[float] = []
    described = WorkerDescription("queue-bench", "0", "cpu", "none", [], "queue bench", ENVIRONMENT, None)
    coordinator = connect_to_server(server, key, folder)(Event())
    coordinator.register(described)

    def handle(job: ClaimedJob) -> None:
        started.append(time.perf_counter())
        coordinator.end_run(job, RunEnding(EndingKind.FAILED, message="it measures nothing"), None)

    stop = asyncio.Event()
    worker = asyncio.create_task(coordinator.serve(handle, stop))
    await asyncio.sleep(2)
    taken = []
    for number in range(count):
        await asyncio.to_thread(queue.add)
        committed = time.perf_counter()
        while len(started) <= number:
            await asyncio.sleep(0.0005)
        taken.append((started[-1] - committed) * 1e3)
        # The worker has asked for its next job.
        await asyncio.sleep(0.1)
    stop.set()
    await worker
    coordinator.close()
    return taken


def claims(queue: Queue, waiting: int, count: int) -> list[float]:
    """Milliseconds of each claim among so many jobs."""
    queue.add(waiting)
    taken = []
    with queue.database.session() as s:
        s.execute(text("ANALYZE jobs"))
        worker = registry.register_worker(s, "queue-bench", queue.device, "0", {})
    for _ in range(count):
        began = time.perf_counter()
        with queue.database.session() as s:
            runs.claim_next(s, queue.device, worker)
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


def show(name: str, taken: list[float]) -> None:
    ordered = sorted(taken)
    p50, p99 = statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]
    print(f"{name}, {len(taken)} jobs: p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {ordered[-1]:.0f} ms", flush=True)


def first_results(client: Client, count: int) -> list[float]:
    """Seconds from request to result, on a worker that is warm for the commit."""
    client.post("/repositories", {"name": "first", "url": str(ROOT)})
    sha = git.resolve(ROOT, "HEAD")
    request = {
        "repository": "first",
        "commits": sha,
        "kinds": ["check"],
        "operators": ["square"],
        "variants": ["v2"],
        "suite": "quick",
        "device": "cpu",
    }
    taken = []
    for _ in range(count + 1):
        began = time.perf_counter()
        number = client.post("/submissions", request)["id"]
        while client.get(f"/submissions/{number}")["state"] not in ("done", "failed"):
            time.sleep(0.01)
        taken.append(time.perf_counter() - began)
    print(f"first job, cold: checkout, start and check       {taken[0]:6.2f} s")
    return taken[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--waiting", type=int, default=100_000)
    arguments = parser.parse_args()
    with empty_database() as (settings, url):
        queue = Queue(url)
        with running_services(settings, url, ["cpu"]):
            key = ensure_worker_key(settings.home)
            coroutine = pick_ups(queue, settings.local_url, key, settings.home / "undelivered", arguments.jobs)
            show("queue pick-up", asyncio.run(coroutine))
            client = Client(settings.server_url)
            wait_for_worker(client)
            seconds = first_results(client, arguments.repeats)
        show(f"claim among {arguments.waiting}", claims(queue, arguments.waiting, arguments.jobs))
        queue.database.close()
    spread = f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} … {max(seconds):.2f})"
    print(f"submission to result, warm, {len(seconds)} times: median {spread}")


if __name__ == "__main__":
    main()
