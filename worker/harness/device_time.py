"""Takes the time of work on an NVIDIA GPU by device events, behind a sleep in which the host queues that work."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_LONGEST_LEAD_NS = 4_000_000
LONGEST_SURE_LEAD_NS = 32_000_000
"""Where a few replays are timed or counted, each should be free of gaps; of many samples the median is."""
_CYCLES_PER_NS = 2.0
"""NVIDIA GPUs clock at about 2 GHz at most, so a sleep lasts at least about as long as requested."""
_Event = torch.cuda.Event
"""Bound before code of the commit can replace the class."""


def new_event() -> torch.cuda.Event:
    return _Event(enable_timing=True)  # type: ignore[no-untyped-call]


def elapsed_ns(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Nanoseconds of device time between two events that have both completed."""
    return float(start.elapsed_time(end)) * 1e6


def sleep(nanoseconds: float) -> None:
    """Queues a kernel that keeps the current stream busy for at least about so long."""
    torch.cuda._sleep(int(nanoseconds * _CYCLES_PER_NS))  # type: ignore[no-untyped-call]


class Lead:
    """Puts the device to sleep while the host queues the timed work, so that no gap between launches is timed.

    The time that a shared host needs for queueing varies, so an event at the start of the work shows whether it was
    fast enough. nanoseconds: of the next sleep. longest_ns: after a sleep of that length it is timed all the same.
    """

    def __init__(self, nanoseconds: float, longest_ns: float = _LONGEST_LEAD_NS) -> None:
        self.nanoseconds = nanoseconds
        self._longest_ns = longest_ns

    def tries(self, awake: torch.cuda.Event) -> Iterator[None]:
        """Yields once, and again after a longer sleep as long as the device wakes before the caller has queued all.

        awake: the event that the caller must record first.
        """
        while True:
            self.sleep()
            yield
            if not self.lengthen_where_late(awake):
                return

    def sleep(self) -> None:
        sleep(self.nanoseconds)

    def lengthen_where_late(self, awake: torch.cuda.Event) -> bool:
        """Whether the device has woken already and sleeps longer the next time; for the caller who has queued all."""
        if not awake.query() or self.nanoseconds >= self._longest_ns:  # type: ignore[no-untyped-call]
            return False
        self.nanoseconds = min(2 * self.nanoseconds, self._longest_ns)
        return True
