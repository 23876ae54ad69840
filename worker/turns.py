"""Who of several children of a job has their device: one at a time, while others compile and capture CUDA graphs.

Without that, a GPU would give each of them slices of its time, and a call that waits for its result waits for the
slices of all others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from warpwatch.contract.words import LaneUse
from warpwatch.worker.reporter import Stopped

_POLL_SECONDS = 0.1
_EXCLUDED = {
    LaneUse.NONE: frozenset[LaneUse](),
    LaneUse.OPENING: frozenset({LaneUse.DEVICE, LaneUse.QUIET}),
    LaneUse.HOST: frozenset({LaneUse.QUIET}),
    LaneUse.DEVICE: frozenset({LaneUse.OPENING, LaneUse.DEVICE, LaneUse.QUIET}),
    LaneUse.QUIET: frozenset({LaneUse.OPENING, LaneUse.HOST, LaneUse.DEVICE, LaneUse.QUIET}),
}
"""The uses that no other lane may have at the same time, by the use of a lane."""


class DeviceTurns:
    """The use that each lane of a job makes of the device."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._changed = threading.Condition()
        self._uses: dict[LaneTurns, LaneUse] = {}
        self._waiting_for_quiet = 0

    def use(self, lane: LaneTurns, use: LaneUse, should_stop: Callable[[], str | None]) -> None:
        """Returns once the lane may do so; until then it uses nothing, but keeps the device where it lacks only quiet:
        a lane that took it would keep it for a whole bench. Raises Stopped when told to."""
        is_quiet = use is LaneUse.QUIET
        with self._changed:
            if not (is_quiet and self._uses.get(lane) is LaneUse.DEVICE):
                self._uses.pop(lane, None)
            self._waiting_for_quiet += is_quiet
            self._changed.notify_all()
            try:
                while not self._is_free(lane, use):
                    if (reason := should_stop()) is not None:
                        self._uses.pop(lane, None)
                        raise Stopped(reason)
                    self._changed.wait(_POLL_SECONDS)
                self._uses[lane] = use
            finally:
                self._waiting_for_quiet -= is_quiet
                self._changed.notify_all()

    def _is_free(self, lane: LaneTurns, use: LaneUse) -> bool:
        if use is LaneUse.HOST and self._waiting_for_quiet:
            return False
        return _EXCLUDED[use].isdisjoint(used for other, used in self._uses.items() if other is not lane)


class LaneTurns:
    """The turns of one lane, whose child asks for them while it serves a request."""

    def __init__(self, turns: DeviceTurns) -> None:
        self._turns = turns
        self.lanes = turns.lanes

    def use(self, use: LaneUse, should_stop: Callable[[], str | None]) -> float:
        """As DeviceTurns.use; returns the seconds waited."""
        begin = time.monotonic()
        self._turns.use(self, use, should_stop)
        return time.monotonic() - begin

    def leave(self) -> None:
        """Gives the device to the others, whatever the child did with it: its request has ended."""
        self._turns.use(self, LaneUse.NONE, lambda: None)
