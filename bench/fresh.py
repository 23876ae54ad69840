"""Fresh processes for benchmarks that ask how much identical code differs from process to process.

A process answers the harness's own requests (contract.messages.Request) about a repository, as a worker's child does;
only the confinement is missing.
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

from warpwatch.worker.harness.verbs import Setting, Verbs
from warpwatch.worker.sandbox import KEEP_FREED_MEMORY, SHORT_SPIN

ROOT = Path(__file__).parents[1]
Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Fresh:
    """A child that runs `script --child …`: it imports and warms up at once, and then answers one JSON line per
    request."""

    def __init__(self, script: Path, arguments: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script), "--child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            # As in a worker's children.
            env={**os.environ, **SHORT_SPIN, **KEEP_FREED_MEMORY, **environment},
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """The child's answer; SystemExit when it died instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        # Libraries print as they like, so an answer is marked.
        for line in self._process.stdout:
            if line.startswith("answer "):
                answer: dict[str, Any] = json.loads(line.removeprefix("answer "))
                return answer
        raise SystemExit(f"a child ended with status {self._process.wait()} before it had answered {request}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def fresh_ones(
    script: Path, device: str, count: int, *arguments: str, ahead: int = 1, **environment: str
) -> Iterator[Fresh]:
    """`count` children for `device` one after another, each the caller's to close.

    On a GPU the next `ahead` import while the last one works; on a CPU they would be in the way of what is timed.
    """
    beyond = ahead if device.startswith("cuda") else 0
    waiting: list[Fresh] = []
    for index in range(count):
        while len(waiting) < min(1 + beyond, count - index):
            waiting.append(Fresh(script, ["--device", device, *arguments], environment))
        yield waiting.pop(0)


def serve(answer: Answer) -> None:
    """Answers requests until there are no more."""
    for line in sys.stdin:
        print("answer " + json.dumps(answer(json.loads(line))), flush=True)


def open_verbs(repository: Path, device: torch.device) -> Verbs:
    """The harness for the repository at `repository`, with as many threads as cores, and the device awake."""
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    torch.zeros(1, device=device)
    return Verbs(Setting(repository, "kernels", "csrc", device, ROOT / ".warpwatch" / "builds", cores, cores))
