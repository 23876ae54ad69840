"""What CI costs: core minutes of each part of `make ci` beside its budget, and core seconds of the dearest test files.

`python -m tests.costs PART COMMAND…` runs a part and writes down what it took; without arguments it prints the parts
since the file was removed. Every run of pytest ends with its dearest files. A file that costs more than it tells is
merged, goes to `make nightly`, or goes.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

FILE = Path(sys.prefix) / ".costs"
BUDGET = {
    "measured": 7.5,
    "served": 7.5,
    "later": 5.5,
    "timed": 1.2,
    "types": 0.7,
    "libraries": 0.9,
    "cuda": 1.0,
    "lint": 0.1,
    "migrations": 0.1,
}
"""Core minutes of each part, on two cores that do nothing else."""
MINUTES = 15.0
"""Of all parts, on two cores."""
DEAREST = 12
_BECOME_SUBREAPER = 36


def processor_seconds(root: int) -> float:
    """Of a process, of its living descendants, and of those that have ended and were waited for."""
    parent, total = psutil.Process(root), 0.0
    for process in (parent, *parent.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class FileCosts:
    """A plugin of pytest that sums core seconds by test file, those of the fixtures that began or ended there too."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._before = 0.0

    def pytest_collection_finish(self) -> None:
        self._before = processor_seconds(os.getpid())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        result = yield
        if nextitem is None or nextitem.path != item.path:
            now = processor_seconds(os.getpid())
            self._seconds[item.nodeid.partition("::")[0]] += now - self._before
            self._before = now
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = dict(self._seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for file, seconds in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self._seconds[file] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if sum(self._seconds.values()) < 60:
            return
        terminalreporter.section(f"{sum(self._seconds.values()):.0f} core seconds, and the dearest files")
        for file, seconds in sorted(self._seconds.items(), key=lambda pair: -pair[1])[:DEAREST]:
            terminalreporter.write_line(f"{seconds:6.1f} {file}")


def run(part: str, *command: str) -> int:
    """Runs a command, and counts what its orphans take as well, PostgreSQL among them."""
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    status = subprocess.run(command, check=False).returncode
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    row = {"part": part, "cores": processor_seconds(os.getpid()) / 60, "minutes": (time.monotonic() - began) / 60}
    with FILE.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return status


def report() -> None:
    """Prints the parts since the file was removed."""
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    print("core minutes  budget  minutes  part")
    for row in sorted(rows, key=lambda row: -row["cores"]):
        budget = BUDGET.get(row["part"], 0.0)
        mark = "  over its budget" if row["cores"] > budget else ""
        print(f"{row['cores']:12.1f}{budget:8.1f}{row['minutes']:9.1f}  {row['part']}{mark}")
    cores, budget = sum(row["cores"] for row in rows), sum(BUDGET.values())
    print(f"{cores:12.1f}{budget:8.1f}{'':9}  all; at most {MINUTES:.0f} minutes on two cores")


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(run(*sys.argv[1:]))
    report()
