"""Keeps cores busy, to see whether verdicts hold on a busy host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_SPIN = """
import os
parent, total = os.getppid(), 0
while os.getppid() == parent:
    total += sum(range(100_000))
"""
"""Ends with the process that started it, however that ends."""


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs `count` processes that each keep a core busy."""
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            started.append(stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", _SPIN])))
            stack.callback(started[-1].kill)
        yield started
