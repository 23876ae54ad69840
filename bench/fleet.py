"""Measures a fleet of workers: how fast they take jobs and record results, and whether faults lose or double any.

python bench/fleet.py [--workers 100] [--jobs 1500] [--seconds 1.0] [--rate 0] [--faults]
                      [--results 30] [--metrics 1] [--samples 100]

Simulated workers take jobs of one device, renew their lease and write log and progress as real ones do; a job
"measures" by sleeping for --seconds and then records --results results, each with --metrics timings of --samples
samples. Everything else is the product, on one machine: coordinator, guard, log writer, `warpwatch serve`, and an
embedded PostgreSQL.

--rate submits so many jobs a second instead of all at once, so that workers wait and the time until a job is picked up
shows. --faults stops a process of workers for longer than its lease, kills another one, evicts a third, and restarts
the database and the server, all while jobs run.

Workers are threads of a few processes, so the Python of a hundred workers shares the cores with server and PostgreSQL.
The last lines say what each of them took.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty

import psutil
from sqlalchemy import text

from warpwatch.contract.catalogue import CaseEntry, Catalogue, CommitInfo, OperatorEntry, VariantEntry
from warpwatch.contract.claims import ClaimedJob, EndingKind, RunEnding, WorkerDescription
from warpwatch.contract.environment import Environment, key_of
from warpwatch.contract.measurement import Measurement
from warpwatch.contract.messages import BenchReply
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Status
from warpwatch.db import embedded, migrate, registry, submissions
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.worker_keys import add_key
from warpwatch.worker.coordinator import LostRunError
from warpwatch.worker.guard import STOPPING, LeaseGuard
from warpwatch.worker.http_coordinator import connect_to_server
from warpwatch.worker.reporter import LogWriter

PROCESSES = 8
"""More threads in one process wait for one another; more processes take seconds to start."""
OPERATORS = 10
LEASE_SECONDS = 15.0
OPTIONS = ("-c", "max_connections=500")
"""The workers' connections are counted, not limited."""
VARIANTS = ("v1", "v2", "v3")
PEAKS = {"copy": 1e10, "f32": 1e11}
METRICS = ("hot", "cold", "call", "kernel", "graph")
FACTS = {"torch": "2.13.0"}
ENVIRONMENT = Environment(key_of(FACTS), "cpu", "fleet", "Fleet", FACTS)
FAULTS_BEGIN_SECONDS = 8.0
BETWEEN_FAULTS_SECONDS = 8.0
MEBIBYTE = 2**20
SETTLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What every process of the fleet does. results, metrics, samples: of one job. url, key: of the server."""

    url: str
    key: str
    folder: Path
    workers: int
    seconds: float
    results: int
    metrics: int
    samples: int


@dataclass(frozen=True, slots=True)
class JobTimes:
    """When a job reached its worker and when it ended, on the clock that all processes share; seconds that its
    recording took."""

    job_id: int
    picked_up_at: float
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


def submit_jobs(url: str, count: int, rate: float) -> None:
    """Queues the jobs, every operator at every commit of a history that is long enough: all at once, or `rate` a
    second."""
    database = Database(url)
    with database.session() as s:
        repository = registry.ensure_repository(s, "fleet", "/nowhere")
        device = registry.ensure_device(s, ENVIRONMENT.device_key, ENVIRONMENT.device_kind, ENVIRONMENT.device_name)
        operators = registry.ensure_operators(s, repository, [f"operator{n}" for n in range(OPERATORS)])
        now = datetime.now(UTC)
        rows = [CommitInfo(f"{n:040x}", None, n, "A", now, "s") for n in range(1, -(-count // OPERATORS) + 1)]
        commits = registry.record_commits(s, repository, rows)
    jobs = [
        submissions.NewJob("bench", commit, operator, device, JobSpec())
        for commit in commits.values()
        for operator in operators.values()
    ][:count]
    for batch in [[job] for job in jobs] if rate else [jobs]:
        with database.session() as s:
            submissions.create_submission(s, submissions.NewSubmission(repository, {}, batch))
        if rate:
            time.sleep(1 / rate)
    database.close()


class FleetWorker:
    """One simulated worker: real coordinator, guard, log and results around a job that only sleeps."""

    def __init__(self, plan: FleetPlan, name: str, times: list[JobTimes]) -> None:
        self._plan = plan
        self._times = times
        described = WorkerDescription(name, "0", "cpu", "none", [], name, ENVIRONMENT, PEAKS)
        connect = connect_to_server(plan.url, plan.key, plan.folder)
        self._coordinator = connect(threading.Event())
        self._coordinator.register(described)
        self._guard = LeaseGuard(self._coordinator)
        self._guard.start()

    async def serve(self, stop: asyncio.Event) -> None:
        await self._coordinator.serve(self._handle, stop)

    def stop(self) -> None:
        """Hands back the running job, if there is one."""
        self._guard.stop()

    def close(self) -> None:
        self._guard.close()
        self._coordinator.close()

    def _handle(self, job: ClaimedJob) -> None:
        picked_up_at = time.time()
        log = LogWriter(self._coordinator, job.run_id)
        with self._guard.watching(job.run_id):
            outcome = outcome_of(self._plan)
            for number in range(4):
                if self._guard.reason() is not None:
                    break
                log.progress(number, 4, "step")
                log.log(f"step {number}")
                time.sleep(self._plan.seconds / 4)
            rest = log.close()
            measured = time.perf_counter()
            reason = self._guard.reason()
            # A run that lost its job does not end it, as in a real worker.
            with suppress(LostRunError):
                if reason == STOPPING:
                    self._coordinator.end_run(job, RunEnding(EndingKind.RELEASED), None, rest)
                elif reason is None:
                    self._coordinator.end_run(job, RunEnding(EndingKind.DONE), outcome, rest)
                    finish = time.perf_counter() - measured
                    self._times.append(JobTimes(job.job_id, picked_up_at, finish, time.time()))


def run_process(
    plan: FleetPlan, prefix: str, count: int, results: Queue[list[JobTimes]], ready: Queue[int], stop: threading.Event
) -> None:
    """Runs some of the workers until `stop` is set."""
    times: list[JobTimes] = []
    workers = [FleetWorker(plan, f"{prefix}-{number}", times) for number in range(count)]
    ready.put(count)
    is_evicted = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_evicted.set())

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        # Every worker's handler blocks a thread, as it does in a process of its own.
        loop.set_default_executor(ThreadPoolExecutor(2 * count))
        stopped = asyncio.Event()
        serving = [asyncio.create_task(worker.serve(stopped)) for worker in workers]
        while not stop.is_set() and not is_evicted.is_set():
            await asyncio.sleep(0.2)
        for worker in workers if is_evicted.is_set() else ():
            worker.stop()
        stopped.set()
        await asyncio.gather(*serving)

    asyncio.run(serve())
    for worker in workers:
        worker.close()
    results.put(times)


class Fleet:
    """The processes of the workers."""

    def __init__(self, plan: FleetPlan) -> None:
        self._plan = plan
        context = multiprocessing.get_context("spawn")
        self._context = context
        self._results: Queue[list[JobTimes]] = context.Queue()
        self._ready: Queue[int] = context.Queue()
        self._stop = context.Event()
        share = -(-plan.workers // PROCESSES)
        self._counts = [min(share, plan.workers - first) for first in range(0, plan.workers, share)]
        self.processes = [self._start(f"fleet{n}", count) for n, count in enumerate(self._counts)]
        for _ in self.processes:
            self._ready.get()

    def _start(self, prefix: str, count: int) -> SpawnProcess:
        arguments = (self._plan, prefix, count, self._results, self._ready, self._stop)
        process = self._context.Process(target=run_process, args=arguments, daemon=True)
        process.start()
        return process

    def kill(self, index: int) -> None:
        """Kills a process of workers; a new one takes its place."""
        self.processes[index].kill()
        self.processes[index].join()
        self.processes[index] = self._start(f"again{index}", self._counts[index])

    def evict(self, index: int) -> None:
        """Asks a process of workers to stop, as schedulers do; a new one takes its place."""
        self.processes[index].terminate()
        self.processes[index].join()
        self.processes[index] = self._start(f"later{index}", self._counts[index])

    def end(self) -> list[JobTimes]:
        """Stops the workers; what they noted, without those that were killed."""
        self._stop.set()
        times: list[JobTimes] = []
        # A process does not end before its notes are taken.
        while any(process.is_alive() for process in self.processes):
            with suppress(Empty):
                times += self._results.get(timeout=0.5)
        with suppress(Empty):
            while True:
                times += self._results.get(timeout=0.5)
        return times

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(process.pid) for process in self.processes if process.pid is not None)


class ServerProcess:
    """`warpwatch serve` on a port of its own."""

    def __init__(self, url: str, home: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        values = {"WARPWATCH_DATABASE_URL": url, "WARPWATCH_HOME": str(home / "server"), "WARPWATCH_PORT": str(port)}
        self._environment = os.environ | values
        self.ended_seconds = 0.0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", "warpwatch", "serve"], env=self._environment)
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"{self.url}/api/v1/health", timeout=5).close()
                return
            time.sleep(0.1)

    def stop(self) -> None:
        self.ended_seconds += cpu_seconds(self.process.pid)
        self.process.terminate()
        self.process.wait()

    def cpu_seconds(self) -> float:
        return self.ended_seconds + cpu_seconds(self.process.pid)


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU time that a process has taken; 0 for one that has ended."""
    with suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


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
        with suppress(EngineError), database.session() as s:
            connections.append(s.scalars(text(counting)).one())
            if len(connections) % 10 == 0:
                ended = s.scalars(text("SELECT count(*) FROM jobs WHERE state NOT IN ('queued', 'running')")).one()
    database.close()
    return connections


def make_faults(fleet: Fleet, server: ServerProcess, home: Path) -> None:
    """One after the other, while jobs run."""
    time.sleep(FAULTS_BEGIN_SECONDS)
    paused = fleet.processes[0].pid
    assert paused is not None
    print("fault: a process of workers is stopped for two leases", flush=True)
    os.kill(paused, signal.SIGSTOP)
    time.sleep(BETWEEN_FAULTS_SECONDS)
    print("fault: another process of workers is killed", flush=True)
    fleet.kill(1)
    time.sleep(max(0.0, 2 * LEASE_SECONDS - BETWEEN_FAULTS_SECONDS))
    os.kill(paused, signal.SIGCONT)
    time.sleep(BETWEEN_FAULTS_SECONDS)
    print("fault: a third process of workers is evicted", flush=True)
    fleet.evict(2)
    time.sleep(BETWEEN_FAULTS_SECONDS)
    print("fault: the database restarts", flush=True)
    embedded.stop(home)
    embedded.start(home, options=OPTIONS)
    time.sleep(BETWEEN_FAULTS_SECONDS)
    print("fault: the server restarts", flush=True)
    server.stop()
    server.start()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def show_times(name: str, seconds: list[float]) -> None:
    p50, p99 = (1e3 * percentile(seconds, share) for share in (0.5, 0.99))
    print(f"{name:8} p50 {p50:6.0f} ms, p99 {p99:6.0f} ms, longest {1e3 * max(seconds):6.0f} ms")


def show_counts(url: str, plan: FleetPlan, times: list[JobTimes], rate: float) -> None:
    """What became of the jobs, as the database has it."""
    database = Database(url, pool_size=1)
    with database.session() as s:
        states = s.execute(text("SELECT state, count(*) FROM jobs GROUP BY state")).all()
        runs = s.execute(text("SELECT state, count(*) FROM runs GROUP BY state ORDER BY state")).all()
        wrong = s.scalars(
            text(
                "SELECT count(*) FROM (SELECT jobs.id FROM jobs JOIN runs ON runs.job_id = jobs.id "
                "LEFT JOIN results ON results.run_id = runs.id GROUP BY jobs.id HAVING count(results.id) <> :results)"
            ),
            {"results": len(outcome_of(plan).findings)},
        ).one()
        rows = s.execute(text("SELECT id, extract(epoch FROM created_at)::float AS made_at FROM jobs")).all()
        made_at: dict[int, float] = {row.id: row.made_at for row in rows}
    database.close()
    print(
        f"jobs: {', '.join(f'{count} {state}' for state, count in states)}; {wrong} with other results than one run's"
    )
    print(f"runs: {', '.join(f'{count} {state}' for state, count in runs)}")
    if rate:
        waits = [(row.picked_up_at - made_at[row.job_id], made_at[row.job_id] - min(made_at.values())) for row in times]
        show_times("pick-up", [wait for wait, _ in waits])
        print("slowest:", ", ".join(f"{1e3 * wait:.0f} ms at {at:.1f} s" for wait, at in sorted(waits)[-5:]))


def measure(plan: FleetPlan, url: str, home: Path, server: ServerProcess, options: argparse.Namespace) -> None:
    jobs: int = options.jobs
    fleet = Fleet(plan)

    def seconds() -> tuple[float, float, float, float]:
        """Now, and the CPU time of PostgreSQL, of the server and of all workers."""
        return time.monotonic(), postgres_seconds(home), server.cpu_seconds(), fleet.cpu_seconds()

    if options.rate:
        # The workers that came together have asked for their first jobs.
        time.sleep(SETTLE_SECONDS)
    began = seconds()
    submitting = threading.Thread(target=submit_jobs, args=(url, jobs, options.rate))
    submitting.start()
    faults = threading.Thread(target=make_faults, args=(fleet, server, home))
    if options.faults:
        faults.start()
    connections = watch(url, jobs)
    submitting.join()
    if options.faults:
        faults.join()
    memory = psutil.Process(server.process.pid).memory_info().rss
    elapsed, *cpu = (after - before for after, before in zip(seconds(), began, strict=True))
    times = fleet.end()
    # The first jobs wait for the fleet to start, and the last ones run while most workers have nothing to do.
    ends = sorted(row.ended_at for row in times)
    low, high = len(ends) // 10, len(ends) * 9 // 10
    print(f"{len(times)} jobs by {plan.workers} workers: {(high - low) / (ends[high] - ends[low]):.1f} jobs/s")
    show_counts(url, plan, times, options.rate)
    show_times("finish", [row.finish for row in times])
    print(f"connections: median {statistics.median(connections):.0f}, most {max(connections)}")
    if options.faults:
        # The counters of a process end with it.
        return
    cores = os.cpu_count() or 1
    names = ("PostgreSQL", "server", "workers")
    print("CPU time per job: " + ", ".join(f"{n} {1e3 * own / jobs:.0f} ms" for n, own in zip(names, cpu, strict=True)))
    print(f"cores busy with these: {sum(cpu) / elapsed:.2f} of {cores}")
    print(f"memory of the server: {memory / MEBIBYTE:.0f} MiB")


@contextmanager
def serving(url: str, home: Path) -> Iterator[tuple[ServerProcess, str]]:
    """A server, and a key of it for workers."""
    database = Database(url, pool_size=1)
    with database.session() as s:
        key = add_key(s, "fleet")
    database.close()
    server = ServerProcess(url, home)
    try:
        yield server, key
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--results", type=int, default=30)
    parser.add_argument("--metrics", type=int, default=1, choices=range(1, len(METRICS) + 1))
    parser.add_argument("--samples", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ww") as folder, embedded.running(Path(folder), options=OPTIONS) as url:
        migrate.upgrade(url)
        home = Path(folder)
        with serving(url, home) as (server, key):
            plan = FleetPlan(
                server.url,
                key,
                home / "undelivered",
                options.workers,
                options.seconds,
                options.results,
                options.metrics,
                options.samples,
            )
            measure(plan, url, home, server, options)


if __name__ == "__main__":
    main()
