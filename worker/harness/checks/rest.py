"""Finds work that goes on in this process while nothing calls the variant: whatever is measured meanwhile looks slower,
such as the other commit of a comparison.

Threads of OpenMP may wait for their next loop by spinning, for a fifth of a second at most, and for longer where others
use the CPUs. So a process that does not rest is looked at twice more, each time after longer than that. No kernel spins
after its work: a device is looked at once more, and at once, since its profiler takes its time to start.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns, process_time_ns

import torch

from warpwatch.contract.words import Fault

from ..failures import WrongResultError
from ..problem import CaseProblem
from ..timers.kernel import busy_ns

_LOOK_SECONDS = 0.1
_PATIENCE_SECONDS = {"cpu": (0.0, 0.25, 0.25), "cuda": (0.0, 0.0)}
"""Before each look, by kind of device."""
_MOST_SHARE = 0.2
"""Of a look, in which the CPU or the device works at most."""
_SUSPICIOUS_SHARE = 0.03
"""Of the time between requests, in which the threads run: one that waits runs for a thousandth. Where others use the
CPUs, one that works gets little of them. A suspicion accuses nobody."""
_ENOUGH_NS = 10_000_000
"""Time without a request after which its share says something."""
_NOTICEABLE_NS = 200_000
"""A device that this process left idle takes less to say that it is."""
_rested: set[tuple[str, str]] = set()


def expect_rest_once(problem: CaseProblem) -> None:
    """As `expect_rest`, once for each variant in a process."""
    key = (problem.operator.name, problem.variant.name)
    if key not in _rested:
        expect_rest(problem.device)
        _rested.add(key)


def expect_rest(device: torch.device) -> None:
    """Raises WrongResultError when this process works although nothing calls the variant."""
    for patience in _PATIENCE_SECONDS[device.type]:
        time.sleep(patience)
        share = work_at_rest(device, _LOOK_SECONDS)
        if share <= _MOST_SHARE:
            return
    where = "the device" if device.type == "cuda" else "a CPU"
    raise WrongResultError(
        f"The variant works while nothing calls it: it keeps {where} busy for {share:.0%} of the time, so all else "
        "that is measured meanwhile looks slower",
        Fault.IDLE_WORK,
    )


def work_at_rest(device: torch.device, seconds: float) -> float:
    """The work of this process over the time in which its harness sleeps: of its kernels on a GPU, else of its threads
    over the time in which none waits for a CPU that others use.

    A thread that works at all times has no other time than that. One that wakes now and then sleeps for the most of it,
    however long it waits for a CPU each time.
    """
    if device.type == "cuda":
        return busy_ns(lambda: time.sleep(seconds))[0] / (seconds * 1e9)
    before, begin = _read_threads(), perf_counter_ns()
    time.sleep(seconds)
    after, elapsed_ns = _read_threads(), perf_counter_ns() - begin
    share, all_ran = 0.0, 0
    for thread, (ran, waited) in after.items():
        ran_before, waited_before = before.get(thread, (0, 0))
        all_ran += (ran_ns := ran - ran_before)
        # A wait is counted at its end, and may have begun before.
        share += ran_ns / max(elapsed_ns - (waited - waited_before), ran_ns, 1)
    # A single short run after a wait of the whole look shows nothing.
    return share if all_ran > _SUSPICIOUS_SHARE * elapsed_ns else 0.0


def _read_threads() -> dict[str, tuple[int, int]]:
    """Nanoseconds that each other thread of this process has run, and has waited to run; where Linux does not tell, of
    all together what they ran."""
    times: dict[str, tuple[int, int]] = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        # To wake up from its sleep takes this thread a while on a busy host.
        if path.parent.name == str(threading.get_native_id()):
            continue
        # A thread may end meanwhile.
        with suppress(OSError, ValueError):
            ran, waited, *_ = path.read_text().split()
            times[path.parent.name] = int(ran), int(waited)
    return times if Path("/proc/self/schedstat").exists() else {"": (process_time_ns(), 0)}


class IdleTimes:
    """Signs of work of this process between two requests, which cost nothing to read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu_ns, self._idle_ns, self._is_late = 0, 0, False
        self._since: tuple[int, int] | None = None

    def begin(self) -> None:
        """The process has answered and waits for a request."""
        self._since = process_time_ns(), perf_counter_ns()

    def end(self) -> None:
        """A request has come."""
        if self._since is None:
            return
        cpu_ns, begin_ns = self._since
        self._cpu_ns += process_time_ns() - cpu_ns
        self._idle_ns += perf_counter_ns() - begin_ns
        if self._device.type == "cuda":
            begin_ns = perf_counter_ns()
            torch.cuda.synchronize(self._device)
            self._is_late |= perf_counter_ns() - begin_ns > _NOTICEABLE_NS

    @property
    def is_suspicious(self) -> bool:
        """Whether the process may not have rested since this was asked last."""
        is_busy = self._idle_ns >= _ENOUGH_NS and self._cpu_ns > _SUSPICIOUS_SHARE * self._idle_ns
        is_suspicious = is_busy or self._is_late
        self._cpu_ns, self._idle_ns, self._is_late = 0, 0, False
        return is_suspicious
