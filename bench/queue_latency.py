"""Measures the latency of the queue and of a warm worker.

python bench/queue_latency.py [--jobs 200] [--repeats 10]

Pick-up: from the commit of a submission until the worker's handler starts, one job at a time on an idle worker; p50 and
p99. First result: from POST /api/v1/submissions until the job is done, for one check of one variant on one case of this
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.own_service import empty_database, wait_for_worker
from warpwatch import git
from warpwatch.cli.client import Client
from warpwatch.cli.services import running_services
from warpwatch.contract.spec import JobSpec
from warpwatch.db import queue, registry, submissions
from warpwatch.db.database import Database

ROOT = Path(__file__).parent.parent


async def pick_ups(url: str, count: int) -> list[float]:
    """Milliseconds from commit to handler of each job."""
    database = Database(url)
    with database.session() as s:
        repository = registry.ensure_repository(s, "queue", "/nowhere")
        row = registry.NewCommit("0" * 40, None, 1, "bench", datetime.now(UTC), "bench")
        commit = registry.record_commits(s, repository, [row])[row.sha]
        operator = registry.ensure_operators(s, repository, ["none"])["none"]
        device = registry.ensure_device(s, "queue-bench", "cpu", "queue bench")
    started: list[float] = []
    stop = asyncio.Event()
    worker = asyncio.create_task(
        queue.run_worker(database, "queue-bench", lambda _job: started.append(time.perf_counter()), stop)
    )
    await asyncio.sleep(2)
    taken = []
    for number in range(count):
        with database.session() as s:
            job = submissions.NewJob("check", commit, operator, device, JobSpec())
            submissions.create_submission(s, submissions.NewSubmission(repository, {}, [job]))
        committed = time.perf_counter()
        while len(started) <= number:
            await asyncio.sleep(0.0005)
        taken.append((started[-1] - committed) * 1e3)
    stop.set()
    await worker
    database.close()
    return taken


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
    arguments = parser.parse_args()
    with empty_database() as (settings, url):
        taken = sorted(asyncio.run(pick_ups(url, arguments.jobs)))
        p50, p99 = statistics.median(taken), taken[int(0.99 * (len(taken) - 1))]
        print(f"queue pick-up, {len(taken)} jobs: p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {taken[-1]:.0f} ms")
        with running_services(settings, url, ["cpu"]):
            client = Client(settings.server_url)
            wait_for_worker(client)
            seconds = first_results(client, arguments.repeats)
    spread = f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} … {max(seconds):.2f})"
    print(f"submission to result, warm, {len(seconds)} times: median {spread}")


if __name__ == "__main__":
    main()
