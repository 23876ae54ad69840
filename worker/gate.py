"""Starts a measurement only on a device that is fit for it.

An unfit GPU gives numbers that look like a regression. So the job waits up to a minute and then goes back into the
queue with the reason. Its attempts bound how often. A look takes two seconds in which the device must rest, so one
counts for the jobs of the next three minutes too: what may begin between two of them may begin during one of them.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from warpwatch.contract.messages import CanaryReply
from warpwatch.worker.child import LIVING, Child, ChildFailure
from warpwatch.worker.reporter import Reporter, Stopped, UnhealthyError

T = TypeVar("T")
CANARY_SECONDS = 60.0
"""Limit for one look at the device."""
WAIT_SECONDS = 60.0
"""How long a device may take to cool down, or a neighbour to finish."""
PAUSE_SECONDS = 5.0
CANARY_HOLDS_SECONDS = 180.0
"""For so long after a look the device counts as fit."""
LEAST_SHARE = 0.9
"""Part of its measured ceilings that a device must reach."""
_TICK_SECONDS = 0.2
_MOST_SHARE = 0.2
"""Of a core, that an idle child asks for at most. One that waits uses a thousandth."""


class Requester(Protocol):
    """Interface of a checkout that answers requests for a verb."""

    def ask(self, kind: type[T], verb: str, seconds: float, reporter: Reporter) -> T: ...


@dataclass(slots=True)
class LastCanary:
    """When the device was found fit last, by time.monotonic()."""

    found_fit: float = -math.inf


def counts_as_fit(device: str, last: LastCanary) -> bool:
    """Whether no look at the device is due: at a CPU there never is."""
    return device.partition(":")[0] == "cpu" or time.monotonic() - last.found_fit < CANARY_HOLDS_SECONDS


def expect_healthy(
    checkout: Requester, device: str, peaks: dict[str, float] | None, reporter: Reporter, last: LastCanary
) -> None:
    """Returns once the device is fit, at once on a CPU and soon after the `last` look. Raises UnhealthyError when it is
    not within a minute, Stopped when the reporter asks to stop."""
    if counts_as_fit(device, last):
        return
    end = time.monotonic() + WAIT_SECONDS
    while True:
        troubles = _troubles(checkout, peaks, reporter)
        if not troubles:
            last.found_fit = time.monotonic()
            return
        message = f"{device} is not fit to be measured on: {'; '.join(troubles)}"
        if time.monotonic() >= end:
            raise UnhealthyError(message)
        reporter.log(f"{message}; waiting")
        _pause(reporter)


def slower_than(rates: dict[str, float], peaks: dict[str, float] | None) -> list[str]:
    """A message for every short run of the canary that stays too far below the device's measured ceilings."""
    expected = {name: peak for name, peak in (peaks or {}).items() if name in rates and peak > 0}
    return [
        f"the canary's {name} reaches {rates[name] / peak:.0%} of what was measured on this device before"
        for name, peak in expected.items()
        if rates[name] < LEAST_SHARE * peak
    ]


def _troubles(checkout: Requester, peaks: dict[str, float] | None, reporter: Reporter) -> list[str]:
    idle = IdleWatch()
    try:
        reply = checkout.ask(CanaryReply, "canary", CANARY_SECONDS, reporter)
    except ChildFailure as failure:
        return [f"the canary ended as {failure.status}: {failure.message}"]
    if reply.status != "ok":
        return [f"the canary ended as {reply.status}: {reply.message}"]
    found = [*reply.troubles, *slower_than(reply.rates, peaks)]
    # Only where there is a trouble: a process may finish something that disturbs nothing.
    return [*found, *idle.list_working()] if found else []


def _pause(reporter: Reporter) -> None:
    end = time.monotonic() + PAUSE_SECONDS
    while time.monotonic() < end:
        reason = reporter.should_stop()
        if reason is not None:
            raise Stopped(reason)
        time.sleep(_TICK_SECONDS)


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
