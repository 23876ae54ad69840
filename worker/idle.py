"""Tells which children of this worker work although nothing is asked of them."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from warpwatch.worker.child import LIVING, Child

_MOST_SHARE = 0.2
"""Of a core, that an idle child asks for at most. One that waits uses a thousandth."""


class IdleWatch:
    """The children of which nothing is asked, from the beginning of the block until they are listed."""

    def __init__(self) -> None:
        self._begin_ns = time.monotonic_ns()
        self._before = {child: (child.requests, _work_ns(child)) for child in {*LIVING}}

    def list_working(self) -> list[str]:
        """A message for each that got no request meanwhile and used much of a core."""
        passed_ns = time.monotonic_ns() - self._begin_ns
        messages = []
        for child, (requests, before_ns) in self._before.items():
            share = (_work_ns(child) - before_ns) / passed_ns
            if child in LIVING and child.requests == requests and share > _MOST_SHARE:
                who = f"process {child.pid}, {share:.0%} of a core, {child.root.name}"
                messages.append(f"an idle child of this worker works ({who})")
        return messages


def _work_ns(child: Child) -> int:
    """Nanoseconds for which the threads of a child and of its descendants ran, or waited for a CPU that others used; 0
    where Linux does not tell."""
    waiting, total = [child.pid] if child.pid is not None else [], 0
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*"):
            # A thread may end meanwhile.
            with suppress(OSError, ValueError):
                ran, waited, *_ = (task / "schedstat").read_text().split()
                total += int(ran) + int(waited)
                waiting += map(int, (task / "children").read_text().split())
    return total
