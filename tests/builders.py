"""Builds what tests look at: a real git repository, and results written the way a worker writes them."""

from __future__ import annotations

import atexit
import gzip
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch import git
from warpwatch.contract.catalogue import CaseEntry, Catalogue, CommitInfo, OperatorEntry, VariantEntry
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import Counter, Measurement, TraceKernel
from warpwatch.contract.messages import BenchReply, BuildReply, KernelResources, ProfileReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.rounds import CellRounds
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Purpose, Status
from warpwatch.db import registry, regressions, runs, submissions, trials
from warpwatch.db.database import Database

VARIANTS = ("v1", "v2", "v3")
CASES = ("n=1024,f32,fwd", "n=1024,f32,bwd", "n=4096,f32,fwd")
CPU = Environment("c" * 64, "cpu", "test-cpu", "Test CPU", {"torch": "2.13.0", "threads": 2})
GPU = Environment("9" * 64, "cuda", "test-gpu", "Test GPU", {"torch": "2.13.0", "cuda": "13.0"})
PEAKS = {"cpu": {"copy": 1e10, "f32": 1e11}, "cuda": {"copy": 3e12, "f32": 5e13}}
Cells = Mapping[tuple[str, str], Any]


def make_repository(path: Path, commits: int = 6, operators: tuple[str, ...] = ("square",)) -> list[str]:
    """A git repository whose commits each touch the operators; ids, oldest first."""
    return write_commits(
        path,
        [
            (f"Change {number}", {f"kernels/{name}.py": f"NUMBER = {number}\n" for name in operators})
            for number in range(1, commits + 1)
        ],
    )


def write_commits(path: Path, commits: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """A git repository of the commits, each with its subject and the files that it writes; ids, oldest first."""
    written, shas = _write_once(tuple((subject, tuple(contents.items())) for subject, contents in commits))
    shutil.copytree(written, path)
    # git takes a copied file for a changed one until it has read it.
    run_git(path, "update-index", "-q", "--refresh")
    return list(shas)


@cache
def _write_once(commits: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]) -> tuple[Path, tuple[str, ...]]:
    """The repository that tests of the same commits copy, and its ids. A copy takes less than four processes of git."""
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name)
    run_git(path, "init", "--quiet", "--template=", "--initial-branch", "main")
    # All commits at once: `git commit` for each would start three processes each.
    run_git(path, "fast-import", "--quiet", text="".join(_import_commit(name, dict(files)) for name, files in commits))
    run_git(path, "reset", "--quiet", "--hard")
    return path, tuple(run_git(path, "rev-list", "--reverse", "main").split())


def _import_commit(subject: str, contents: Mapping[str, str]) -> str:
    """A commit as fast-import reads it, on top of the one before."""
    files = "".join(f"M 644 inline {name}\ndata {len(text)}\n{text}\n" for name, text in contents.items())
    when = f"{int(time.time())} +0000"
    return f"commit refs/heads/main\ncommitter Ann <ann@example.com> {when}\ndata {len(subject)}\n{subject}\n{files}\n"


def commit(path: Path, subject: str, operators: tuple[str, ...] = ("square",)) -> str:
    """One more commit; its id."""
    (path / "kernels").mkdir(exist_ok=True)
    for name in operators:
        (path / "kernels" / f"{name}.py").write_text(f"SUBJECT = {subject!r}\n")
    run_git(path, "add", "--all")
    run_git(path, "commit", "--quiet", "--message", subject)
    return run_git(path, "rev-parse", "HEAD").strip()


def count(database: Database, table: str) -> int:
    """How many rows a table has."""
    with database.session() as s:
        return s.scalars(text(f"SELECT count(*) FROM {table}")).one()


def run_git(path: Path, *arguments: str, text: str | None = None) -> str:
    """The output of git with `text` on its standard input."""
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Ann"), ("EMAIL", "ann@example.com"))
    }
    # After each commit git would start a process that looks whether there is anything to tidy up.
    done = subprocess.run(
        ["git", "-c", "maintenance.auto=false", *arguments],
        cwd=path,
        env=os.environ | who,
        check=True,
        capture_output=True,
        text=True,
        input=text,
    )
    return done.stdout


_described: dict[tuple[str, ...], list[CommitInfo]] = {}


def described(source: Path, shas: tuple[str, ...]) -> list[CommitInfo]:
    """The commits of a repository, which never change, so that every test of them need not ask git."""
    if shas not in _described:
        _described[shas] = git.describe_many(source, shas)
    return _described[shas]


def catalogue(operators: tuple[str, ...] = ("square",), variants: tuple[str, ...] = VARIANTS) -> Catalogue:
    """Every operator has the same variants and CASES, the last case in the full suite only."""
    cases = [
        CaseEntry(
            key,
            sizes={"n": int(key.split(",")[0][2:])},
            precision="f32",
            direction=key.split(",")[2],
            layout="contiguous",
            suites=["full"] if key == CASES[-1] else ["quick", "full"],
            flops=1000,
            bytes=8000,
        )
        for key in CASES
    ]
    entries = [VariantEntry(name, f"idea of {name}", "", ["cpu", "cuda"], native=False) for name in variants]
    return Catalogue(1, [OperatorEntry(name, f"About {name}.", entries, cases) for name in operators])


def measurement(median_ns: float, metric: str, spread: float = 0.002) -> Measurement:
    """A metric whose 95 % interval is `spread` of its median to either side."""
    low, high = median_ns * (1 - spread), median_ns * (1 + spread)
    return Measurement(metric, [low, median_ns, high], median_ns, low, high, 2 * spread)


def bench(*measurements: Measurement, **more: Any) -> BenchReply:
    """The reply of a bench of any of the catalogue's cases."""
    return BenchReply(Status.OK, flops=1000, bytes=8000, measurements=list(measurements), **more)


def energy(joules: float) -> dict[str, Counter]:
    """What a GPU that counts its energy says of a call."""
    return {
        "energy": Counter("joules per call", joules, joules * 0.98, joules * 1.02, 5),
        "power": Counter("W", 412.0, 405.0, 419.0, 5),
    }


def trace(folder: Path, kernels: int = 3, padding: int = 0) -> ProfileReply:
    """A small Chrome trace; `padding` adds bytes that hardly compress."""
    text = json.dumps(
        {
            "traceEvents": [
                {"name": f"kernel {n}", "ph": "X", "ts": n, "dur": 1, "pid": 1, "tid": 1} for n in range(kernels)
            ],
            "padding": os.urandom(padding).hex(),
        }
    )
    path = folder / f"{os.urandom(8).hex()}.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    rows = [TraceKernel(f"kernel {n}", 2, 2000.0 - n, 1000.0, 0.5, {"grid": [1, 1, 1]}) for n in range(kernels)]
    return ProfileReply(Status.OK, "", str(path), len(text), rows, {"cudaLaunchKernel": 1.0})


def list_job_ids(session: Session, submission_id: int) -> list[int]:
    """Ids of the jobs of a submission, oldest first."""
    sql = "SELECT id FROM jobs WHERE submission_id = :id ORDER BY id"
    return list(session.scalars(text(sql), {"id": submission_id}))


@dataclass
class Lab:
    """A registered repository with one CPU device and one worker, and short ways to have things measured."""

    database: Database
    source: Path
    shas: list[str]
    folder: Path
    environment: Environment = CPU
    name: str = "kernels"
    operators: tuple[str, ...] = ("square",)
    repository: int = 0
    device: int = 0
    worker: int = 0
    commits: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with self.database.session() as session:
            self.repository = registry.ensure_repository(session, self.name, str(self.source))
            self.commits = registry.record_commits(session, self.repository, described(self.source, tuple(self.shas)))
            self.use(session, self.environment)

    def use(self, session: Any, environment: Environment) -> None:
        """Register the device of an environment, with a worker on it, and measure there from now on."""
        self.environment = environment
        self.device = registry.ensure_device(
            session, environment.device_key, environment.device_kind, environment.device_name
        )
        self.worker = registry.register_worker(session, f"node-1-{environment.device_key}", self.device, "0.1.0", {})

    def switch(self, environment: Environment) -> None:
        """Measure on another device from now on."""
        with self.database.session() as session:
            self.use(session, environment)

    def submit(
        self,
        kind: str,
        index: int,
        *,
        base: int | None = None,
        operator: str = "square",
        origin: str = "api",
        **spec: Any,
    ) -> int:
        """The id of a queued job for the commit number `index`."""
        with self.database.session() as session:
            operator_id = registry.ensure_operators(session, self.repository, [operator])[operator]
            base_id = None if base is None else self.commits[self.shas[base]]
            job = submissions.NewJob(
                kind, self.commits[self.shas[index]], operator_id, self.device, JobSpec.from_stored(spec), base_id
            )
            new = submissions.NewSubmission(
                self.repository, {"kinds": [kind], "commits": self.shas[index]}, [job], origin
            )
            return list_job_ids(session, submissions.create_submission(session, new))[0]

    def confirm(self, base: int, head: int, purpose: Purpose = Purpose.CONFIRM, series: int = 1) -> tuple[int, int]:
        """Suspects a series of the first operator, between two measured commits, and asks for a trial of it;
        the ids of regression and job."""
        ends = self.commits[self.shas[base]], self.commits[self.shas[head]]
        with self.database.session() as session:
            number = regressions.open_suspicion(
                session,
                operator_id=1,
                device_id=self.device,
                direction="slower",
                ratio=1.5,
                series=[(series, 1.5)],
                base_commit_id=ends[0],
                head_commit_id=ends[1],
            )
            assert number is not None
            spec = JobSpec(pairs=[(VARIANTS[0], CASES[0])])
            trial = trials.NewTrial(number, self.repository, 1, self.device, "compare", purpose, *ends, spec, -1)
            return number, trials.ask(session, trial)

    def begin(self, job_id: int) -> int:
        """The id of a new run of the job."""
        with self.database.session() as session:
            order = runs.begin_run(session, job_id, self.worker)
        assert order is not None
        return order.run_id

    def finish(self, job_id: int, outcome: Outcome) -> int:
        """Run the job to its end; the run's id."""
        run_id = self.begin(job_id)
        with self.database.session() as session:
            runs.finish_run(session, run_id, outcome)
        return run_id

    def bench(
        self, index: int, medians: Cells, *, operator: str = "square", origin: str = "api", spread: float = 0.002
    ) -> int:
        """Time (variant, case) → median in ns, or a median by metric, or a Status, at the commit number `index`; the
        job's id."""
        job = self.submit("bench", index, operator=operator, origin=origin)
        self.finish(job, self.outcome([self._timed(*cell, value, spread) for cell, value in medians.items()]))
        return job

    def check(self, index: int, statuses: Cells, *, operator: str = "square", origin: str = "api", **spec: Any) -> int:
        """Check (variant, case) → Status at the commit number `index`; the job's id."""
        job = self.submit("check", index, operator=operator, origin=origin, **spec)
        rows = [
            Finding(*cell, status, "" if status == Status.OK else f"it was {status}")
            for cell, status in statuses.items()
        ]
        kernel = KernelResources("kernel", "sm_90", 32, 0, 0)
        build = BuildReply(Status.OK, "", "key", False, 1.5, "compiled", [kernel])
        self.finish(job, replace(self.outcome(rows), build=build))
        return job

    def profile(
        self, index: int, variant: str = "v1", case: str = CASES[0], padding: int = 0, joules: float | None = None
    ) -> int:
        """Profile one cell, with the energy of a call where `joules` says it; the job's id."""
        job = self.submit("profile", index)
        reply = trace(self.folder, padding=padding)
        if joules is not None:
            reply = replace(reply, counters=energy(joules))
        self.finish(job, self.outcome([Finding(variant, case, Status.OK, profile=reply)]))
        return job

    def compare(self, job: int, rounds: Cells, status: Status = Status.OK) -> None:
        """End a compare job: (variant, case) → (base_ns, head_ns), each a list with one median per round, or the rounds
        of four cells, or these by metric, with a trace of both commits."""
        metric = "graph" if self.environment.device_kind == "cuda" else "hot"
        by_metric = {cell: times if isinstance(times, Mapping) else {metric: times} for cell, times in rounds.items()}
        rows = [
            Comparison(*cell, name, "1", status, "", times.base_ns, times.head_ns, cells=times)
            if isinstance(times, CellRounds)
            else Comparison(*cell, name, "1", status, "", list(times[0]), list(times[1]))
            for cell, of_metrics in by_metric.items()
            for name, times in of_metrics.items()
        ]
        traced = [[Finding(*cell, Status.OK, profile=trace(self.folder)) for cell in rounds] for _ in range(2)]
        names = catalogue(self.operators)
        self.finish(
            job, replace(self.outcome(traced[0]), base_catalogue=names, base_findings=traced[1], comparisons=rows)
        )

    def outcome(self, findings: list[Finding]) -> Outcome:
        peaks = PEAKS[self.environment.device_kind]
        return Outcome(self.environment, peaks, catalogue(self.operators), findings=findings)

    def _timed(self, variant: str, case: str, value: Any, spread: float) -> Finding:
        if isinstance(value, Status):
            return Finding(variant, case, value, f"it was {value}")
        if isinstance(value, Mapping):
            times = [measurement(median_ns, metric, spread) for metric, median_ns in value.items()]
            return Finding(variant, case, Status.OK, bench=bench(*times))
        metrics = ("graph", "cold", "call") if self.environment.device_kind == "cuda" else ("hot", "cold")
        return Finding(variant, case, Status.OK, bench=bench(*(measurement(value, m, spread) for m in metrics)))
