"""Measures the first five minutes of a newcomer: from `git clone` to a confirmed regression, and to a first own point.

python bench/first_minutes.py [--source .] [--port 8399] [--limit 1800]

Clones the repository at --source into an empty folder, runs `make up` there, and prints how many seconds after the
start of the clone each of these can be seen: a page, the confirmed regression of the example data, a job at work, and
the first time measured on this machine. The last line is the longest time in which neither the terminal nor the page
showed anything new. Everything is stopped and removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "warpwatch"


def has_page(port: int) -> bool:
    return bool(read(port, "/health"))


def has_regression(port: int) -> bool:
    page = read(port, "/regressions?repository=example-rows") or {"items": []}
    return any(row["direction"] == "slower" and row["culprit_sha"] for row in page["items"])


def has_job(port: int) -> bool:
    page = read(port, f"/jobs?repository={NAME}&state=running") or {"items": []}
    return bool(page["items"])


def has_point(port: int) -> bool:
    page = read(port, f"/commits?repository={NAME}") or {"items": []}
    return any(commit["points"] for commit in page["items"])


MILESTONES: dict[str, Callable[[int], bool]] = {
    "first page": has_page,
    "confirmed regression of the example": has_regression,
    "own job at work": has_job,
    "first own time": has_point,
}


def read(port: int, path: str) -> Any:
    """The answer of the API; None while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1{path}", timeout=10) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def main(source: Path, port: int, limit: float) -> None:
    """Prints a line for every milestone."""
    with tempfile.TemporaryDirectory() as folder:
        began, checkout = time.monotonic(), Path(folder) / NAME
        subprocess.run(["git", "clone", "--quiet", str(source.resolve()), str(checkout)], check=True)
        print(f"{time.monotonic() - began:6.1f} s  cloned", flush=True)
        with (Path(folder) / "log").open("wb") as log:
            environment = os.environ | {"WARPWATCH_PORT": str(port), "WARPWATCH_HOME": str(Path(folder) / "home")}
            command = subprocess.Popen(
                ["make", "up"], cwd=checkout, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                follow(command, Path(log.name), began, port, limit)
            finally:
                os.killpg(command.pid, signal.SIGINT)
                command.wait(timeout=60)


def follow(command: subprocess.Popen[bytes], log: Path, began: float, port: int, limit: float) -> None:
    """Prints each milestone when it is reached, until the last one, or `limit` seconds have passed."""
    missing = dict(MILESTONES)
    shown: object = None
    changed, longest, since = time.monotonic(), 0.0, 0.0
    while missing and time.monotonic() - began < limit and command.poll() is None:
        for name in [name for name, is_reached in missing.items() if is_reached(port)]:
            print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
            del missing[name]
        visible = (log.stat().st_size, read(port, f"/jobs?repository={NAME}&limit=100"))
        if visible != shown:
            shown, changed = visible, time.monotonic()
        if time.monotonic() - changed > longest:
            longest, since = time.monotonic() - changed, changed - began
        time.sleep(0.5)
    for name in missing:
        print(f"  never  {name}")
    print(f"{longest:6.1f} s  was the longest time without anything new, from {since:.1f} s on")
    if missing:
        print(log.read_text()[-2000:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path(), help="the repository to clone")
    parser.add_argument("--port", type=int, default=8399, help="port of the server")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which it gives up")
    options = parser.parse_args()
    main(options.source, options.port, options.limit)
