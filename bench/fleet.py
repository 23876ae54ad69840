"""Measures how fast a fleet of workers can take jobs and record their results.

python bench/fleet.py [--workers 100] [--jobs 1500] [--seconds 1.0] [--results 30] [--metrics 1] [--samples 100]

Simulated workers take jobs from the queue of one device, renew their lease and write log and progress as real ones do;
a job "measures" by sleeping for --seconds and then records --results results, each with --metrics timings of --samples
samples. Everything else is the product: queue, guard, log writer, and the fenced transaction, against an embedded
PostgreSQL on the same machine. Prints jobs per second, the time that the recording of a job takes (p50, p99), and how
many connections PostgreSQL had.

Workers are threads of a few processes, so the Python of a hundred workers shares the cores with PostgreSQL. The last
lines say how busy the cores were, and how many jobs PostgreSQL's own CPU time would allow on them, which is the limit
where workers have machines of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.queues import Queue
from pathlib import Path

import psutil
from sqlalchemy import text

from warpwatch.contract.catalogue import CaseEntry, Catalogue, OperatorEntry, VariantEntry
from warpwatch.contract.claims import ClaimedJob, EndingKind, RunEnding, WorkerDescription
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import Measurement
from warpwatch.contract.messages import BenchReply
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Status
from warpwatch.db import embedded, migrate, registry, submissions
from warpwatch.db.database import Database
from warpwatch.worker.database_coordinator import connect_to_database
from warpwatch.worker.guard import LeaseGuard
from warpwatch.worker.log_writer import LogWriter

PROCESSES = 8
"""More threads in one process wait for one another; more processes take seconds to start."""
OPERATORS = 10
LEASE_SECONDS = 15.0
OPTIONS = ("-c", "max_connections=500")
"""The workers' connections are counted, not limited."""
VARIANTS = ("v1", "v2", "v3")
PEAKS = {"copy": 1e10, "f32": 1e11}
METRICS = ("hot", "cold", "call", "kernel", "graph")
ENVIRONMENT = Environment("f" * 64, "cpu", "fleet", "Fleet", {"torch": "2.13.0"})


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What every process of the fleet does. results, metrics, samples: of one job."""

    url: str
    workers: int
    seconds: float
    results: int
    metrics: int
    samples: int


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Seconds that the recording of one job took, and when it ended, on the clock that all processes share."""

    finish: float
    ended_at: float


def outcome_of(plan: FleetPlan) -> Outcome:
    """What one job finds: each variant on as many cases as make the results asked for.

    The catalogue names all operators, as that of a commit does.
    """
    cases = [f"n={n},f32,fwd" for n in range(plan.results // len(VARIANTS))]
    entries = [CaseEntry(key, {"n": 1}, "f32", "fwd", "contiguous", ["quick"], 1000, 8000) for key in cases]
    variants = [VariantEntry(name, "", "", ["cpu"], native=False) for name in VARIANTS]
    catalogue = Catalogue(1, [OperatorEntry(f"operator{n}", "", variants, entries) for n in range(OPERATORS)])
    samples = [1000.0 + number % 7 for number in range(plan.samples)]
    timings = [Measurement(metric, samples, 1003.0, 1002.0, 1004.0, 0.001) for metric in METRICS[: plan.metrics]]
    reply = BenchReply(Status.OK, flops=1000, bytes=8000, measurements=timings)
    findings = [Finding(variant, case, Status.OK, bench=reply) for variant in VARIANTS for case in cases]
    return Outcome(ENVIRONMENT, PEAKS, catalogue, findings=findings)


def submit_jobs(url: str, count: int) -> None:
    """Queues the jobs: every operator at every commit of a history that is long enough."""
    database = Database(url)
    with database.session() as s:
        repository = registry.ensure_repository(s, "fleet", "/nowhere")
        device = registry.ensure_device(s, ENVIRONMENT.device_key, ENVIRONMENT.device_kind, ENVIRONMENT.device_name)
        operators = registry.ensure_operators(s, repository, [f"operator{n}" for n in range(OPERATORS)])
        now = datetime.now(UTC)
        rows = [registry.NewCommit(f"{n:040x}", None, n, "A", now, "s") for n in range(1, -(-count // OPERATORS) + 1)]
        commits = registry.record_commits(s, repository, rows)
        jobs = [
            submissions.NewJob("bench", commit, operator, device, JobSpec())
            for commit in commits.values()
            for operator in operators.values()
        ]
        submissions.create_submission(s, submissions.NewSubmission(repository, {}, jobs[:count]))
    database.close()


class FleetWorker:
    """One simulated worker: real queue, guard, log and results around a job that only sleeps."""

    def __init__(self, plan: FleetPlan, number: int, times: list[JobTimes]) -> None:
        self._plan = plan
        self._times = times
        described = WorkerDescription(f"fleet-{number}", "0", "cpu", "none", [], f"fleet {number}", ENVIRONMENT, PEAKS)
        self._coordinator = connect_to_database(plan.url, LEASE_SECONDS)(described, threading.Event())
        self._guard = LeaseGuard(self._coordinator)
        self._guard.start()

    async def serve(self, stop: asyncio.Event) -> None:
        await self._coordinator.serve(self._handle, stop)

    def close(self) -> None:
        self._guard.close()
        self._coordinator.close()

    def _handle(self, job: ClaimedJob) -> None:
        log = LogWriter(self._coordinator, job.run_id)
        with self._guard.watching(job.run_id):
            outcome = outcome_of(self._plan)
            for number in range(4):
                log.progress(number, 4, "step")
                log.log(f"step {number}")
                time.sleep(self._plan.seconds / 4)
            log.close()
            measured = time.perf_counter()
            self._coordinator.end_run(job, RunEnding(EndingKind.DONE), outcome)
            ended = time.perf_counter()
        self._times.append(JobTimes(ended - measured, time.time()))


def run_process(
    plan: FleetPlan,
    first: int,
    count: int,
    results: Queue[list[JobTimes]],
    ready: threading.Barrier,
    stop: threading.Event,
) -> None:
    """Runs some of the workers, once all of them are there, until `stop` is set."""
    times: list[JobTimes] = []
    workers = [FleetWorker(plan, number, times) for number in range(first, first + count)]
    ready.wait()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        # Every worker's handler blocks a thread, as it does in a process of its own.
        loop.set_default_executor(ThreadPoolExecutor(2 * count))
        stopped = asyncio.Event()
        serving = [asyncio.create_task(worker.serve(stopped)) for worker in workers]
        while not stop.is_set():
            await asyncio.sleep(0.2)
        stopped.set()
        await asyncio.gather(*serving)

    asyncio.run(serve())
    for worker in workers:
        worker.close()
    results.put(times)


def postgres_seconds(home: Path) -> float:
    """Seconds of CPU time that PostgreSQL has taken, with all its processes, also those that have ended."""
    server = psutil.Process(int((embedded.data_folder(home) / "postmaster.pid").read_text().split("\n", 1)[0]))
    times = []
    for process in server.children():
        # One that ends meanwhile is counted among those that have ended.
        with suppress(psutil.NoSuchProcess):
            times.append(process.cpu_times())
    ended = server.cpu_times()
    return float(sum(own.user + own.system for own in times) + ended.children_user + ended.children_system)


def watch(url: str, count: int) -> list[int]:
    """Waits until all jobs have ended; the number of PostgreSQL's connections, without this one, every 0.1 s."""
    connections: list[int] = []
    database = Database(url, pool_size=1)
    counting = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ended = 0
    while ended < count:
        time.sleep(0.1)
        with database.session() as s:
            connections.append(s.scalars(text(counting)).one())
            if len(connections) % 10 == 0:
                ended = s.scalars(text("SELECT count(*) FROM jobs WHERE state NOT IN ('queued', 'running')")).one()
    database.close()
    return connections


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def measure(plan: FleetPlan, jobs: int, home: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: Queue[list[JobTimes]] = context.Queue()
    stop = context.Event()
    share = -(-plan.workers // PROCESSES)
    parts = [(first, min(share, plan.workers - first)) for first in range(0, plan.workers, share)]
    ready = context.Barrier(len(parts) + 1)
    processes = [
        context.Process(target=run_process, args=(plan, *part, results, ready, stop), daemon=True) for part in parts
    ]
    for process in processes:
        process.start()
    ready.wait()

    def seconds() -> tuple[float, float, float]:
        """Now, and the CPU time of PostgreSQL and of all workers."""
        own = sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes)
        return time.monotonic(), postgres_seconds(home), own

    began = seconds()
    connections = watch(plan.url, jobs)
    elapsed, database, own = (after - before for after, before in zip(seconds(), began, strict=True))
    stop.set()
    times = [row for _ in processes for row in results.get()]
    for process in processes:
        process.join()
    # The first jobs wait for the fleet to start, and the last ones run while most workers have nothing to do.
    ends = sorted(row.ended_at for row in times)
    low, high = len(ends) // 10, len(ends) * 9 // 10
    print(f"{len(times)} jobs by {plan.workers} workers: {(high - low) / (ends[high] - ends[low]):.1f} jobs/s")
    finishes = [row.finish for row in times]
    p50, p99 = (1e3 * percentile(finishes, share) for share in (0.5, 0.99))
    print(f"finish p50 {p50:6.0f} ms, p99 {p99:6.0f} ms, longest {1e3 * max(finishes):6.0f} ms")
    cores = os.cpu_count() or 1
    print(f"CPU time per job: workers {1e3 * own / jobs:.0f} ms, PostgreSQL {1e3 * database / jobs:.0f} ms")
    print(f"cores busy with both: {(own + database) / elapsed:.2f} of {cores}")
    print(f"PostgreSQL alone would fill the cores at {cores * jobs / database:.0f} jobs/s")
    print(f"connections: median {statistics.median(connections):.0f}, most {max(connections)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--results", type=int, default=30)
    parser.add_argument("--metrics", type=int, default=1, choices=range(1, len(METRICS) + 1))
    parser.add_argument("--samples", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ww") as folder, embedded.running(Path(folder), options=OPTIONS) as url:
        migrate.upgrade(url)
        submit_jobs(url, arguments.jobs)
        plan = FleetPlan(
            url,
            arguments.workers,
            arguments.seconds,
            arguments.results,
            arguments.metrics,
            arguments.samples,
        )
        measure(plan, arguments.jobs, Path(folder))


if __name__ == "__main__":
    main()
