"""Measures how long Warpwatch takes from a command to its results, and how busy the device is meanwhile.

python bench/throughput.py [--device auto] [--rows check-attention,check-kron,bench-kron,compare-kron,pass]
                           [--commits 2] [--limit 1500] [--home FOLDER]

check-attention, check-kron, bench-kron and compare-kron are `warpwatch run` on HEAD, once with empty caches (cold)
and once with what the first left (warm); the comparison takes twelve pairs (three variants, four cases) of HEAD with
itself. pass is `warpwatch up --once --commits N`, all operators; after --limit seconds it is stopped, and what ran by
then is printed. --home reads the runs of a service that has ended, and measures nothing.

Prints a Markdown table, and after each row what the time of its two commands went to. "busy" is the mean utilisation:
of the GPU as nvidia-smi reports it, else of all cores. For passes, "in jobs" is the share of the time between the first
start and the last end in which the device had a job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from warpwatch.contract.activities import RunTimes
from warpwatch.db import embedded
from warpwatch.db.database import Database
from warpwatch.db.reads.devices import list_devices
from warpwatch.db.reads.occupancy import DeviceRun, list_device_runs, list_timed_runs
from warpwatch.worker.devices import choose_device

ROOT = Path(__file__).parents[1]
KRON_PAIRS = 4
"""Cases of the comparison, with three variants each."""
MOST_RUNS = 100_000
EVER = datetime(2000, 1, 1, tzinfo=UTC)
RECENT = timedelta(days=1)
POLL_SECONDS = 0.5
_LAST_WORDS = 80
"""Lines of a pass that ended badly."""
ROWS = {
    "check-attention": ["--kinds", "check", "--operators", "attention"],
    "check-kron": ["--kinds", "check", "--operators", "kron"],
    "bench-kron": ["--kinds", "bench", "--operators", "kron"],
    "compare-kron": ["--kinds", "compare", "--operators", "kron", "--base", "HEAD"],
}


@dataclass(slots=True)
class BusySampler:
    """Samples how busy the device is, in percent."""

    device: str
    samples: list[float] = field(default_factory=list)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._sample, args=(ended,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def mean(self) -> str:
        return f"{statistics.mean(self.samples):.0f} %" if self.samples else "–"

    def _sample(self, ended: threading.Event) -> None:
        idle, total = _cpu_ticks()
        while not ended.wait(POLL_SECONDS):
            if self.device.startswith("cuda"):
                self.samples.append(_gpu_percent())
                continue
            new_idle, new_total = _cpu_ticks()
            if new_total > total:
                self.samples.append(100 * (1 - (new_idle - idle) / (new_total - total)))
            idle, total = new_idle, new_total


def _cpu_ticks() -> tuple[int, int]:
    """(idle, all) clock ticks of all cores since the machine started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _gpu_percent() -> float:
    """Of the GPU that choose_device left visible, named by its UUID."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    query += ["-i", os.environ["CUDA_VISIBLE_DEVICES"]]
    return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip())


def measure_command(name: str, device: str, home: Path) -> list[str]:
    """Runs `warpwatch run`; its cells of the table."""
    words = ["--commits", "HEAD", *ROWS[name], "--device", device, "--output", str(home / f"{name}.wwb")]
    if name == "compare-kron":
        words += [word for pair in _pairs() for word in ("--pairs", pair)]
    sampler = BusySampler(device)
    begin = time.monotonic()
    with sampler.sampling():
        (home / f"{name}.wwb").unlink(missing_ok=True)
        code = _warpwatch(["run", *words], home)
    # 1 says that a result is wrong, which is a measurement as well.
    seconds = f"{time.monotonic() - begin:.1f} s" if code in (0, 1) else f"exit {code}"
    return [seconds, sampler.mean()]


def _pairs() -> list[str]:
    """The pairs of the comparison, as `--pairs` takes them: read by a process of its own, because it imports torch."""
    code = (
        "from kernels.kron import operator\n"
        f"for case in operator.cases['quick'][:{KRON_PAIRS}]:\n"
        "    for variant in ('v1', 'v2', 'v3'):\n"
        "        print(f'{variant}:{case.key}')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def print_times(home: Path) -> None:
    """Prints what each command spent its time on, as it said itself."""
    for line in _read_log(home):
        if line.startswith("time: "):
            print(line, flush=True)


def _read_log(home: Path) -> list[str]:
    return (home / "log").read_text(errors="replace").splitlines()


def _warpwatch(words: Sequence[str], home: Path, limit: float | None = None, **variables: str) -> int | None:
    """The exit status of a command; None where it was stopped after `limit` seconds."""
    environment = os.environ | {"WARPWATCH_HOME": str(home)} | variables
    command = [sys.executable, "-m", "warpwatch", *words]
    with (
        (home / "log").open("ab") as log,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)


def measure_pass(device: str, home: Path, commits: int, limit: float) -> None:
    """Runs the whole service once, and prints where its time went."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = datetime.now(UTC)
    sampler = BusySampler(device)
    with sampler.sampling():
        code = _warpwatch(["up", "--once", "--commits", str(commits)], home, limit, WARPWATCH_PORT=str(port))
    seconds = (datetime.now(UTC) - began).total_seconds()
    end = "stopped" if code is None else f"exit {code}"
    print(f"\n`warpwatch up --once --commits {commits}`: {end} after {seconds:.0f} s, busy {sampler.mean()}")
    if code:
        # The service names what is wrong at its end, and its folder is removed.
        print(*_read_log(home)[-_LAST_WORDS:], sep="\n", flush=True)
    print_runs(home, began)


def print_runs(home: Path, began: datetime | None = None) -> None:
    """Prints, per device, when the first chart was there, the seconds per kind and operator, and what they went to."""
    with embedded.running(home) as url:
        database = Database(url)
        with database.session() as s:
            runs = list_device_runs(s, EVER, MOST_RUNS)
            timed = list_timed_runs(s, EVER, MOST_RUNS)
            names = {device.id: device.name for device in list_devices(s)}
        database.close()
    # Imported example data was measured long ago.
    since = max((run.started_at for run in runs), default=datetime.now(UTC)) - RECENT
    by_device: dict[int, list[DeviceRun]] = defaultdict(list)
    for run in runs:
        if run.started_at > since:
            by_device[run.device_id].append(run)
    for device_id, device_runs in by_device.items():
        times: dict[str, RunTimes] = defaultdict(RunTimes)
        for ended in timed:
            if ended.device_id == device_id and ended.finished_at > since:
                times[ended.kind] = times[ended.kind].plus(ended.times)
        _print_device(names[device_id], device_runs, began or min(run.started_at for run in device_runs))
        print()
        for kind in sorted(times):
            print(f"time of {kind}: {times[kind]}", flush=True)


def _print_device(name: str, runs: list[DeviceRun], began: datetime) -> None:
    ended = [(run, run.finished_at) for run in runs if run.finished_at is not None]
    first, last = min(run.started_at for run in runs), max((end for _, end in ended), default=datetime.now(UTC))
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for run, finished_at in ended:
        seconds[run.operator, run.kind] += (finished_at - run.started_at).total_seconds()
    in_jobs = sum(seconds.values()) / max(1e-9, (last - first).total_seconds())
    benches = [finished_at for run, finished_at in ended if run.kind == "bench"]
    chart = f"first chart after {(min(benches) - began).total_seconds():.0f} s, " if benches else ""
    not_done = Counter(run.state for run in runs if run.state != "done")
    counts = ", ".join([f"{len(runs)} runs", *(f"{count} {state}" for state, count in not_done.items())])
    end = f"the end after {(last - began).total_seconds():.0f} s"
    print(f"\n{name}, {counts}: {chart}{end}, in jobs {in_jobs:.0%}\n")
    kinds = sorted({run.kind for run, _ in ended})
    print_row("operator", *(f"{kind}, s" for kind in kinds), "all, s")
    print_row(*["---"] * (len(kinds) + 2))
    totals = {operator: sum(seconds[operator, kind] for kind in kinds) for operator in {run.operator for run in runs}}
    for operator in sorted(totals, key=lambda name: -totals[name]):
        print_row(operator, *(f"{seconds[operator, kind]:.1f}" for kind in kinds), f"{totals[operator]:.1f}")
    sums = [sum(value for (_, named), value in seconds.items() if named == kind) for kind in kinds]
    print_row("all", *(f"{value:.1f}" for value in sums), f"{sum(sums):.1f}")


def print_row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", default=",".join([*ROWS, "pass"]))
    parser.add_argument("--commits", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds after which a pass is stopped")
    parser.add_argument("--home", type=Path, help="print the runs of the service that used this folder")
    arguments = parser.parse_args()
    if arguments.home is not None:
        print_runs(arguments.home)
        return
    device = choose_device(arguments.device)
    rows = arguments.rows.split(",")
    print(f"{socket.gethostname()}, {device}, {os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}\n")
    print_row("what", "cold", "busy", "warm", "busy")
    print_row(*["---"] * 5)
    for name in [row for row in rows if row in ROWS]:
        home = Path(tempfile.mkdtemp(prefix="throughput-"))
        print_row(name, *measure_command(name, device, home), *measure_command(name, device, home))
        print_times(home)
        shutil.rmtree(home)
    if "pass" in rows:
        home = Path(tempfile.mkdtemp(prefix="throughput-"))
        measure_pass(device, home, arguments.commits, arguments.limit)
        shutil.rmtree(embedded.data_folder(home), ignore_errors=True)
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
