"""The time of a child: its stopwatch, and the turns it takes on the device with the other children of a job.

One child has the device, while others compile and capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter_ns

import torch

from warpwatch.contract.activities import Stopwatch
from warpwatch.contract.words import LaneUse

STOPWATCH = Stopwatch()


_PAUSE_NS = 10_000_000
"""A child that captures makes room for one that times its host about as often."""


class ChildTurns:
    """The turns of this process. Without `ask`, or in one lane, the device is its own and nothing is asked.

    ask: returns once the device may be used so. lanes: of all children of the job together.
    """

    def __init__(self, ask: Callable[[LaneUse], None] | None = None) -> None:
        self._ask = ask
        self._use = LaneUse.NONE
        self._asked_ns = self._waited_ns = 0
        self.lanes = 1

    def start(self, lanes: int) -> None:
        """Begins a request beside those of other children."""
        self.lanes, self._use = lanes, LaneUse.NONE

    def now_ns(self) -> int:
        """A clock that stands still while this process waits for turns."""
        return perf_counter_ns() - self._waited_ns

    @property
    def are_taken(self) -> bool:
        """Whether other children use the device."""
        return self._ask is not None and self.lanes > 1

    @contextmanager
    def use(self, use: LaneUse) -> Iterator[None]:
        """Uses the device so in the block. Within a quiet block it stays so."""
        before = self._use
        if not self.are_taken or before in (use, LaneUse.QUIET):
            yield
            return
        self._switch(use)
        try:
            yield
        finally:
            self._switch(before)

    def pause(self) -> None:
        """Lets another child time its host, where one waits for that and this one captures."""
        if self._use is LaneUse.HOST and perf_counter_ns() - self._asked_ns > _PAUSE_NS:
            self._switch(LaneUse.HOST)

    def _switch(self, use: LaneUse) -> None:
        assert self._ask is not None
        begin = perf_counter_ns()
        # While it captures, nothing of this process runs, and nothing may wait. A lost CUDA context is reported by the
        # request that lost it.
        with suppress(RuntimeError):
            if self._use is not LaneUse.HOST and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
        with STOPWATCH.left_out():
            self._ask(use)
        self._use, self._asked_ns = use, perf_counter_ns()
        self._waited_ns += self._asked_ns - begin
