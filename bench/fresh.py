"""Fresh processes for benchmarks of how much identical code differs between processes.

A process serves requests of the harness (contract.messages.Request) for a repository, as a worker's child does, but
without the sandbox.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from warpwatch import native
from warpwatch.worker.harness.child.verbs import ChildSettings, Verbs
from warpwatch.worker.sandbox import KEEP_FREED_MEMORY, SHORT_SPIN

ROOT = Path(__file__).parents[1]
Handler = Callable[[dict[str, Any]], dict[str, Any]]
_REPLY = "reply "


class FreshProcess:
    """A child that runs `script --child …`: it imports, initialises the device, and serves requests as JSON lines."""

    def __init__(self, script: Path, arguments: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script), "--child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            # The same environment as in a worker's children.
            env={**os.environ, **SHORT_SPIN, **KEEP_FREED_MEMORY, **environment},
        )

    def begin(self) -> None:
        """Lets the child use the device, which it does not while others measure."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def request(self, **request: Any) -> dict[str, Any]:
        """Sends one request and returns the reply; raises SystemExit when the child has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        # Libraries print to the same stream, so replies have a prefix.
        for line in self._process.stdout:
            if line.startswith(_REPLY):
                reply: dict[str, Any] = json.loads(line.removeprefix(_REPLY))
                return reply
        raise SystemExit(f"a child exited with status {self._process.wait()} without a reply to {request}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def fresh_processes(
    script: Path, device: str, count: int, *arguments: str, ahead: int = 1, **environment: str
) -> Iterator[FreshProcess]:
    """Yields `count` children for `device` one after another; the caller closes each.

    On a GPU the next `ahead` children import meanwhile, and use the device once they are yielded; on a CPU they would
    disturb the timings.
    """
    started_early = ahead if device.startswith("cuda") else 0
    waiting: list[FreshProcess] = []
    for index in range(count):
        while len(waiting) < min(1 + started_early, count - index):
            waiting.append(FreshProcess(script, ["--device", device, *arguments], environment))
        process = waiting.pop(0)
        process.begin()
        yield process


def serve(handle: Handler) -> None:
    """Serves requests from standard input until it ends."""
    for line in sys.stdin:
        print(_REPLY + json.dumps(handle(json.loads(line))), flush=True)


def open_verbs(repository: Path, device: torch.device) -> Verbs:
    """The harness for `repository` on an initialised device, with as many threads as cores; waits for `begin`."""
    sys.stdin.readline()
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    torch.zeros(1, device=device)
    verbs = Verbs(ChildSettings(repository, "kernels", device, repository, cores, cores))
    native.configure(repository / "csrc", ROOT / ".warpwatch" / "builds", device.type)
    return verbs
