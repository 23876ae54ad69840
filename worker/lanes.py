"""Checks the variants of an operator in several children at once: a check needs no quiet device.

Compilers that a variant calls (Triton, Inductor, load_inline) then run beside each other too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from queue import Empty, SimpleQueue

from warpwatch.contract.activities import RunTimes
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import Reporter, Stopped

MOST = 8
"""Children that check at once. Each holds a CUDA context of half a gigabyte."""
_CORES_PER_CHILD = 2

Check = Callable[[Checkout, Reporter, str], list[Finding]]
"""Checks one variant on all cases with the child of a checkout."""


def lanes_of(host: Host) -> int:
    """How many children may check at once. On a CPU each child uses all cores, so one at a time is fastest."""
    return max(1, min(MOST, (os.cpu_count() or 1) // _CORES_PER_CHILD)) if host.kind == "cuda" else 1


def check_in_lanes(
    checkout: Checkout, variants: Sequence[str], check: Check, reporter: Reporter, lanes: int
) -> list[Finding]:
    """The findings of all variants. Each lane has a child of its own and takes the next variant when it is free.

    A variant that ran out of memory is checked again alone, since the others may have held the memory.
    Raises Stopped with no outcome when the reporter asks to stop.
    """
    waiting: SimpleQueue[str] = SimpleQueue()
    for variant in variants:
        waiting.put(variant)
    shared = _SharedReporter(reporter)
    findings: dict[str, list[Finding]] = {}
    times: list[RunTimes] = []
    begin = time.perf_counter()

    def run() -> None:
        lane = checkout.lane()
        try:
            while True:
                variant = waiting.get_nowait()
                findings[variant] = check(lane, shared, variant)
        except Empty:
            return
        except BaseException as error:
            # Lanes that make room each finish what they are at.
            if not (isinstance(error, Stopped) and error.yielded_to is not None):
                shared.stop()
            raise
        finally:
            # The kernel ends a child together with the thread that started it, unless a template forked it.
            lane.close()
            times.append(lane.host.stopwatch.take())

    with ThreadPoolExecutor(min(lanes, len(variants))) as pool:
        ended = [pool.submit(run) for _ in range(min(lanes, len(variants)))]
    # What the lanes did beside each other counts once.
    checkout.host.stopwatch.add(reduce(RunTimes.plus, times, RunTimes()).within(time.perf_counter() - begin))
    # An error of a lane counts more than the stop of the others that it caused.
    errors = [error for future in ended if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
        raise error
    for variant, of_variant in findings.items():
        if any(finding.status is Status.OUT_OF_MEMORY for finding in of_variant):
            reporter.log(f"{variant} ran out of memory beside others; once more alone")
            findings[variant] = check(checkout, reporter, variant)
    return [finding for variant in variants for finding in findings[variant]]


class _SharedReporter:
    """A reporter that several threads use; once one of them has failed, it asks the others to stop."""

    def __init__(self, inner: Reporter) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._failed = False

    def stop(self) -> None:
        self._failed = True

    def log(self, text: str) -> None:
        with self._lock:
            self._inner.log(text)

    def progress(self, done: int, total: int, text: str, cell: tuple[str, str] | None = None) -> None:
        with self._lock:
            self._inner.progress(done, total, text, cell)

    def should_stop(self) -> str | None:
        with self._lock:
            return "another check of this job failed" if self._failed else self._inner.should_stop()

    def should_yield(self) -> int | None:
        return self._inner.should_yield()
