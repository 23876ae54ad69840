"""The sleep in which the host queues what is timed grows until the host is in time."""

from __future__ import annotations

from typing import Any

import pytest

from worker.harness import timer_cuda


class Event:
    """Has happened when it is asked the first `late` times."""

    def __init__(self, late: int) -> None:
        self.late = late

    def query(self) -> bool:
        self.late -= 1
        return self.late >= 0


@pytest.mark.parametrize(("late", "sleeps"), [(0, [1e6]), (1, [1e6, 2e6]), (2, [1e6, 2e6, 4e6]), (9, [1e6, 2e6, 4e6])])
def test_the_device_sleeps_longer_until_the_host_is_in_time(late: int, sleeps: list[float], monkeypatch: Any) -> None:
    slept: list[float] = []
    monkeypatch.setattr(timer_cuda, "sleep", slept.append)
    lead = timer_cuda.Lead(1e6)
    assert len(list(lead.tries(Event(late)))) == len(sleeps)  # type: ignore[arg-type]
    assert slept == sleeps
    assert len(list(lead.tries(Event(0)))) == 1  # type: ignore[arg-type]
    assert slept[-1] == sleeps[-1], "a host that was late once is given as long the next time"
