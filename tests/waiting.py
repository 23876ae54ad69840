"""Waits in tests for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    look: Callable[[], T | None], seconds: float = 60, pause: float = 0.02, explain: Callable[[], object] = lambda: ""
) -> T:
    """Returns the first truthy result of `look`, which is called again after each pause.

    Fails the test after so many seconds, with the limit and the result of `explain` in the message.
    """
    deadline = time.monotonic() + seconds
    while not (result := look()):
        assert time.monotonic() < deadline, f"it did not come true in {seconds:g} s\n{explain()}"
        time.sleep(pause)
    return result
