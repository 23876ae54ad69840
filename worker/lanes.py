"""Measures the variants of an operator in several children at once.

A check needs no quiet device, so all children use it. Of a bench or a profile one child at a time does, while others
start, compile, capture CUDA graphs and read traces. Compilers that a variant calls (Triton, Inductor, load_inline) run
beside each other, those of one variant's cases as well.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial, reduce

from warpwatch.contract.activities import RunTimes
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Fault, JobKind, Status
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.child import Child
from warpwatch.worker.devices import usable_cores
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import Reporter, Stopped
from warpwatch.worker.turns import DeviceTurns, LaneTurns

TIMED = frozenset({JobKind.BENCH, JobKind.PROFILE})
"""Kinds of jobs whose measurements need a device of their own."""
MOST: dict[str, int] = {JobKind.CHECK: 8, JobKind.BENCH: 3, JobKind.PROFILE: 3}
"""Children that measure at once, by kind of job. Each holds a CUDA context of half a gigabyte."""
_CORES_PER_CHILD = 2
_TIMED_PER_LANE = 4
"""Fewer take less time than another child takes to start."""
_JOINS_EVERY = 1.0
"""Of a check one lane begins, with the child that has read the catalogue. Each further one joins so many seconds after
the one before, where cells still wait.

To get ready takes a child seconds, and those that share a GPU get a share of its time each. So more of them pay where
compilers keep them waiting, and cost time where all is compiled. Lanes that time begin together, because to open a GPU
disturbs what is timed on it.
"""
_HARMLESS = (Status.OK, Status.UNSUPPORTED)

Cell = tuple[str, str]
"""A variant and a case."""
Measure = Callable[[Cell], Finding]
OpenLane = Callable[[Checkout, Reporter], Measure]
"""Makes what measures cells with the child of a checkout."""


def lanes_of(host: Host, kind: str, cells: int) -> int:
    """How many children measure so many cells at once for a kind of job; one for other kinds.

    On a CPU each child uses all cores, so one at a time is fastest.
    """
    if host.kind != "cuda":
        return 1
    useful = cells // _TIMED_PER_LANE if kind in TIMED else cells
    return max(1, min(MOST.get(kind, 1), useful, len(usable_cores()) // _CORES_PER_CHILD))


def spares_of(host: Host) -> int:
    """How many children are started for the job after the one that ends, as many as it may need at its start.

    On a GPU each takes a second, most of it for the driver; on a CPU a fifth of that, in which it uses a core.
    """
    return MOST[JobKind.BENCH] if host.kind == "cuda" else 0


def measure_in_lanes(
    checkout: Checkout,
    kind: str,
    cells: Sequence[Cell],
    open_lane: OpenLane,
    reporter: Reporter,
    lanes: int,
    beside: Callable[[Checkout, Reporter], None] | None = None,
    at_tail: Callable[[Reporter], None] | None = None,
) -> list[Finding]:
    """The findings of all cells, in their order. Each lane has a child of its own.

    kind: of job: check, bench or profile. The child of the checkout goes on as that of the first lane. beside: what
    else is done at the same time, such as building what some of the cells wait for. at_tail: called once the first
    lane has nothing left to do.

    A cell that ran out of memory is measured again alone, since the others may have held the memory; so are all that
    were timed beside a child that worked while nothing called it.
    Raises Stopped with no outcome when the reporter asks to stop.
    """
    waiting = _Waiting(cells)
    shared = _SharedReporter(reporter)
    findings: dict[Cell, Finding] = {}
    times: list[RunTimes] = []
    begin = time.perf_counter()
    turns = DeviceTurns(lanes) if kind in TIMED else None

    def measure_cells(lane: Checkout, reporter: Reporter, number: int) -> None:
        if turns is None and number and not waiting.remain(number * _JOINS_EVERY):
            return
        checkout.give_spare(lane)
        measure = open_lane(lane, reporter)
        while (cell := waiting.take()) is not None:
            findings[cell] = measure(cell)
            waiting.finish(findings[cell])

    def run(work: Callable[[Checkout, Reporter], None], child: Child | None = None) -> None:
        lane = checkout.lane(LaneTurns(turns) if turns is not None else None, child)
        try:
            work(lane, shared)
        except BaseException as error:
            # Lanes that make room each finish what they are at.
            if not (isinstance(error, Stopped) and error.yielded_to is not None):
                shared.stop()
            waiting.close()
            raise
        finally:
            # The kernel ends a child together with the thread that started it, unless a template forked it.
            lane.close()
            times.append(lane.host.stopwatch.take())

    first = checkout.take_child()
    works: list[Callable[[Checkout, Reporter], None]] = [
        partial(measure_cells, number=number) for number in range(min(lanes, len(cells)))
    ]
    with ThreadPoolExecutor(len(works) + 1) as pool:
        ended = [pool.submit(run, work, None if number else first) for number, work in enumerate(works)]
        others = [pool.submit(run, beside)] if beside is not None else []
        done, _ = wait(ended, return_when=FIRST_COMPLETED)
        if at_tail is not None and all(future.exception() is None for future in done):
            at_tail(shared)
    # What the lanes did beside each other counts once.
    checkout.host.stopwatch.add(reduce(RunTimes.plus, times, RunTimes()).at_once(time.perf_counter() - begin))
    # An error of a lane counts more than the stop of the others that it caused.
    errors = [error for future in [*ended, *others] if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
        raise error
    measure = open_lane(checkout, reporter)
    has_burnt = lanes > 1 and any(finding.fault is Fault.IDLE_WORK for finding in findings.values())
    for cell in cells:
        trouble = ""
        if findings[cell].status is Status.OUT_OF_MEMORY:
            trouble = "ran out of memory beside others"
        elif has_burnt and kind in TIMED and findings[cell].status is Status.OK:
            trouble = "was measured beside a child that kept the device busy"
        if trouble:
            reporter.log(f"{cell[0]} {trouble} on {cell[1]}; once more alone")
            findings[cell] = measure(cell)
    return [findings[cell] for cell in cells]


class _Waiting:
    """The cells that no lane has taken yet.

    A lane takes the cases of a variant one after the other, so that its child has seen one variant only. A lane that
    finds no further variant helps with the one that has most cases left, unless that has done harm: what else it may
    do to its children is for one lane to find out.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cases: dict[str, deque[str]] = {variant: deque() for variant, _ in cells}
        for variant, case in cells:
            self._cases[variant].append(case)
        self._lanes: dict[str, int] = {}
        self._harmless: set[str] = set()
        self._harmful: set[str] = set()
        self._changed = threading.Condition()

    def take(self) -> Cell | None:
        """The next cell for the lane of this thread; None when there are no more."""
        with self._changed:
            while any(self._cases.values()):
                variant = self._choose()
                if variant is not None:
                    self._lanes.setdefault(variant, threading.get_ident())
                    return variant, self._cases[variant].popleft()
                self._changed.wait()
            self._changed.notify_all()
            return None

    def remain(self, seconds: float) -> bool:
        """Whether any are left after so many seconds."""
        with self._changed:
            return not self._changed.wait_for(lambda: not any(self._cases.values()), seconds)

    def finish(self, finding: Finding) -> None:
        """Tells what became of a cell that was taken."""
        with self._changed:
            (self._harmless if finding.status in _HARMLESS else self._harmful).add(finding.variant)
            self._changed.notify_all()

    def close(self) -> None:
        """Lets all lanes end after the cell that they are at."""
        with self._changed:
            self._cases.clear()
            self._changed.notify_all()

    def _choose(self) -> str | None:
        left = {variant: len(cases) for variant, cases in self._cases.items() if cases}
        mine = next((variant for variant in left if self._lanes.get(variant) == threading.get_ident()), None)
        new = next((variant for variant in left if variant not in self._lanes), None)
        helped = [variant for variant in left if variant in self._harmless - self._harmful]
        return mine or new or max(helped, key=left.__getitem__, default=None)


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
            return "another lane of this job failed" if self._failed else self._inner.should_stop()

    def should_yield(self) -> int | None:
        return self._inner.should_yield()
