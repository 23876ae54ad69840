"""Lets a measurement begin only on a device that is fit for it.

An unfit GPU gives numbers that look like a regression. So the job waits a while, and then goes back into the queue with
the reason; how often it may come back is bounded by its attempts.
"""

from __future__ import annotations

import time
from typing import Protocol, TypeVar

from warpwatch.contract.messages import CanaryReply
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.reporter import Reporter, Stopped, UnhealthyError

T = TypeVar("T")
CANARY_SECONDS = 60.0
"""Limit for one look at the device."""
WAIT_SECONDS = 60.0
"""How long a device may take to cool down, or a neighbour to finish."""
PAUSE_SECONDS = 5.0
LEAST_SHARE = 0.9
"""Part of its own measured ceilings that a device must still reach."""
_TICK_SECONDS = 0.2


class Requester(Protocol):
    """What can be asked for a verb: a checkout."""

    def ask(self, kind: type[T], verb: str, seconds: float, reporter: Reporter) -> T: ...


def expect_healthy(asked: Requester, device: str, peaks: dict[str, float] | None, reporter: Reporter) -> None:
    """Returns once the device is fit; UnhealthyError when it is not within a minute, Stopped when told to stop.

    A CPU always is.
    """
    if device.partition(":")[0] == "cpu":
        return
    end = time.monotonic() + WAIT_SECONDS
    while True:
        found = _troubles(asked, peaks, reporter)
        if not found:
            return
        message = f"{device} is not fit to be measured on: {'; '.join(found)}"
        if time.monotonic() >= end:
            raise UnhealthyError(message)
        reporter.log(f"{message}; waiting")
        _pause(reporter)


def slower_than(rates: dict[str, float], peaks: dict[str, float] | None) -> list[str]:
    """What of the canary's short runs stays too far below the device's own ceilings."""
    known = {name: peak for name, peak in (peaks or {}).items() if name in rates and peak > 0}
    return [
        f"the canary's {name} reaches {rates[name] / peak:.0%} of what was measured on this device before"
        for name, peak in known.items()
        if rates[name] < LEAST_SHARE * peak
    ]


def _troubles(asked: Requester, peaks: dict[str, float] | None, reporter: Reporter) -> list[str]:
    try:
        reply = asked.ask(CanaryReply, "canary", CANARY_SECONDS, reporter)
    except ChildFailure as failure:
        return [f"the canary ended as {failure.status}: {failure.message}"]
    if reply.status != "ok":
        return [f"the canary ended as {reply.status}: {reply.message}"]
    return [*reply.troubles, *slower_than(reply.rates, peaks)]


def _pause(reporter: Reporter) -> None:
    end = time.monotonic() + PAUSE_SECONDS
    while time.monotonic() < end:
        reason = reporter.should_stop()
        if reason is not None:
            raise Stopped(reason)
        time.sleep(_TICK_SECONDS)
