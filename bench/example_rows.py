"""Makes the example data of the repository `rows`, whose commits have known faults: its git history, and its results.

python bench/example_rows.py FOLDER

Writes `rows.wwb`, a results file measured on this machine's CPU, and `rows.bundle`, the git repository that it is
about: the files of examples/rows, changed by fourteen commits. Their names and dates are fixed, so their ids are the
same wherever the script runs. The commits are measured as in use: checks and benchmarks are submitted, the judge reads
each ended job, and the comparisons that it asks for are measured, until it asks for no more. Takes about
fifteen minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import text

from warpwatch import __version__, git
from warpwatch.bundle import BundleWriter
from warpwatch.cli.services import running_database
from warpwatch.contract.words import JobKind
from warpwatch.db import registry, runs
from warpwatch.db.database import Database
from warpwatch.server.intake.submission_request import SubmissionRequest
from warpwatch.server.intake.submissions import submit
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import SilentReporter
from warpwatch.worker.tools import Tools

SOURCE = Path(__file__).parents[1] / "examples" / "rows"
SOFTMAX, RMS_NORM, README = "csrc/softmax/softmax.cpp", "csrc/rms_norm/rms_norm.cpp", "README.md"
FIRST_DAY = datetime(2026, 11, 2, 15, tzinfo=UTC)
AUTHOR = "Warpwatch examples <examples@warpwatch.invalid>"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: the text that it replaces in a file; the first commit replaces nothing."""

    subject: str
    path: str = ""
    old: str = ""
    new: str = ""


_SUM = """    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum;
"""
_PARTIAL_SUMS = """    // One sum would wait for each addition, and these do not wait for each other.
    float partial[16] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int lane = 0; lane < 16; ++lane) partial[lane] += x[i + lane] * x[i + lane];
    float sum = 0;
    for (; i < n; ++i) sum += x[i] * x[i];
    for (float value : partial) sum += value;
    return sum;
"""
_MAXIMUM = """    float largest = x[0];
    for (int64_t i = 1; i < n; ++i) largest = std::max(largest, x[i]);
"""
_POWERS = """    float sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        y[i] = std::exp(x[i] - largest);
        sum += y[i];
    }
    const float inverse = 1 / sum;
"""
_DOUBLE_POWERS = """    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double power = std::exp(static_cast<double>(x[i]) - largest);
        y[i] = static_cast<float>(power);
        sum += power;
    }
    const float inverse = static_cast<float>(1 / sum);
"""
COMMITS = (
    Commit("Add softmax and rms_norm in torch and in C++"),
    Commit("rms_norm: Say what the constant is for", RMS_NORM, "constexpr", "// Rows of zeros stay zeros.\nconstexpr"),
    Commit(
        "softmax: Name the passes over a row",
        SOFTMAX,
        "    float sum = 0;\n",
        "    // Powers and their sum.\n    float sum = 0;\n",
    ),
    Commit("rms_norm: Sum each row in sixteen partial sums", RMS_NORM, _SUM, _PARTIAL_SUMS),
    Commit("docs: Say that rows are independent", README, "for CPUs.", "for CPUs. Rows are independent."),
    Commit(
        "softmax: Say what the gradient is",
        SOFTMAX,
        "void backward_row",
        "// dx = y (g - sum of g y).\nvoid backward_row",
    ),
    Commit(
        "softmax: Subtract the first element, which saves a pass",
        SOFTMAX,
        _MAXIMUM,
        "    const float largest = x[0];\n",
    ),
    Commit("rms_norm: Rename the inner counter", RMS_NORM, "lane", "slot"),
    Commit("softmax: Subtract the maximum again", SOFTMAX, "    const float largest = x[0];\n", _MAXIMUM),
    Commit("softmax: Say that views are copied", SOFTMAX, "a view is copied first", "views are copied first"),
    Commit("softmax: Take powers in double, which loses no digits", SOFTMAX, _POWERS, _DOUBLE_POWERS),
    Commit("softmax: Call the row offset what it is", SOFTMAX, "start", "offset"),
    Commit("rms_norm: Say that views are copied", RMS_NORM, "a view is copied first", "views are copied first"),
    Commit(
        "softmax: Say which passes vectorize",
        SOFTMAX,
        "// Powers and their sum.",
        "// Powers and their sum; the other passes vectorize.",
    ),
)


CHECKED = (0, 2, 5, 6, 8, 10, 12, 13)
BENCHED = (0, 2, 5, 8, 12, 13)
"""Every push is checked, and each night the newest commit is benchmarked."""
BUDGET_MS = 400
NAME = "rows"


def build(folder: Path) -> list[str]:
    """Writes the repository at `folder`, which must not exist; ids of its commits, oldest first."""
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    _git(folder, "init", "--quiet", "--initial-branch=main")
    return [_commit(folder, number, commit) for number, commit in enumerate(COMMITS)]


def _commit(folder: Path, number: int, commit: Commit) -> str:
    if commit.path:
        file = folder / commit.path
        text = file.read_text()
        if commit.old not in text:
            raise ValueError(f"{commit.path} does not hold what {commit.subject!r} replaces")
        file.write_text(text.replace(commit.old, commit.new))
    _git(folder, "add", "--all")
    when = (FIRST_DAY + timedelta(hours=18 * number)).isoformat()
    _git(folder, "commit", "--quiet", "--message", commit.subject, when=when)
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *arguments: str, when: str = "") -> str:
    name, _, address = AUTHOR.rstrip(">").partition(" <")
    identity = ("-c", f"user.name={name}", "-c", f"user.email={address}", "-c", "commit.gpgsign=false")
    dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when} if when else {}
    options = (*identity, "-c", "core.autocrlf=false", "-c", "core.fileMode=false")
    return subprocess.run(
        ["git", *options, *arguments], cwd=folder, env=os.environ | dates, check=True, capture_output=True, text=True
    ).stdout.strip()


class PrintingReporter(SilentReporter):
    """Prints what a job logs."""

    def log(self, text: str) -> None:
        print(f"    {text}", flush=True)


@dataclass
class Bench:
    """The service in one process: a database, a judge, and one worker that measures on the CPU."""

    database: Database
    settings: Settings
    tools: Tools
    bundle: BundleWriter
    device_key: str
    worker_id: int

    def measure(self, sha: str, kind: JobKind) -> None:
        """Submits one commit and executes jobs until none is waiting, those of the judge included."""
        with self.database.session() as session:
            registry.worker_heartbeat(session, self.worker_id)
        request = SubmissionRequest(
            repository=NAME,
            commits=sha,
            kinds=[kind],
            device=self.device_key,
            budget_ms=BUDGET_MS if kind == JobKind.BENCH else None,
            skip_unchanged=True,
        )
        submit(self.database, self.settings, request, "api")
        judge = Judge(self.settings, self.database)
        judge.sweep()
        while self._execute_next():
            judge.sweep()

    def _execute_next(self) -> bool:
        with self.database.session() as session:
            newest = "SELECT id FROM jobs WHERE state = 'queued' ORDER BY priority DESC, id LIMIT 1"
            job_id = session.execute(text(newest)).scalar()
            job = runs.begin_run(session, job_id, self.worker_id) if job_id is not None else None
        if job is None:
            return False
        request, began = job.request, time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            started_at = datetime.now(UTC)
            outcome = execute(request, self.tools, PrintingReporter(), Path(folder))
            # The repository is shipped beside the results, so where it lay here says nothing.
            self.bundle.add(replace(request, url=f"{NAME}.bundle"), outcome, started_at, datetime.now(UTC))
            with self.database.session() as session:
                runs.finish_run(session, job.run_id, outcome)
        base = f"{request.base_sha[:9]}.." if request.base_sha else ""
        seconds = time.monotonic() - began
        print(f"{request.kind} {request.operator} {base}{request.sha[:9]}: {seconds:.0f} s", flush=True)
        return True


def main(folder: Path) -> None:
    """Writes both files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        source, home = Path(work) / NAME, Path(work) / "home"
        shas = build(source)
        (folder / f"{NAME}.bundle").unlink(missing_ok=True)
        _git(source, "bundle", "create", "--quiet", str((folder / f"{NAME}.bundle").resolve()), "HEAD", "main")
        settings = Settings(home=home, fork_isolation="none")
        tools = Tools(Host(settings, "cpu"))
        infos = git.describe_many(source, shas)
        with (
            running_database(settings) as url,
            BundleWriter(folder / f"{NAME}.wwb", NAME, f"{NAME}.bundle", infos, __version__) as bundle,
        ):
            database = Database(url)
            environment, peaks = tools.identify(PrintingReporter())
            with database.session() as session:
                registry.ensure_repository(session, NAME, str(source))
                _, device_id = registry.ensure_environment(session, environment, peaks)
                worker_id = registry.register_worker(session, "example", device_id, __version__, {})
            bench = Bench(database, settings, tools, bundle, environment.device_key, worker_id)
            for number, sha in enumerate(shas):
                if number in CHECKED:
                    bench.measure(sha, JobKind.CHECK)
                if number in BENCHED:
                    bench.measure(sha, JobKind.BENCH)
            database.close()
        tools.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
