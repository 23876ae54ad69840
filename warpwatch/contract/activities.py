"""Where the time of a run goes: seconds per activity, and the stopwatch that adds them up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import inf
from time import perf_counter

_SHOWN_SECONDS = 0.1


class Activity(StrEnum):
    """Activities that take the time of a run.

    checkout: fetching the commit and laying out its files. compile: native libraries, before a child needs them. start:
    start of children, up to the catalogue of operators. inputs: drawing the inputs. oracle: the float64 reference.
    warm_up: first calls, the work of compilers in them, and the calibration of the timer. samples: timing, and
    recording traces. verify: everything else of a check, and the part of a bench that proves its timed results. record:
    reading and compressing traces, and writing the results.
    """

    CHECKOUT = "checkout"
    COMPILE = "compile"
    START = "start"
    INPUTS = "inputs"
    ORACLE = "oracle"
    WARM_UP = "warm_up"
    SAMPLES = "samples"
    VERIFY = "verify"
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Seconds of each Activity. No second counts twice, so that their sum is at most what the run took."""

    checkout: float = 0.0
    compile: float = 0.0
    start: float = 0.0
    inputs: float = 0.0
    oracle: float = 0.0
    warm_up: float = 0.0
    samples: float = 0.0
    verify: float = 0.0
    record: float = 0.0

    def __post_init__(self) -> None:
        """ValueError, naming the field, for what is no duration: the times come from untrusted processes."""
        for name, seconds in self.by_activity().items():
            if not 0 <= seconds < inf:
                raise ValueError(f"{name}: expected a number of seconds of at least 0, got {seconds!r}")

    def by_activity(self) -> dict[Activity, float]:
        return {Activity(field.name): getattr(self, field.name) for field in fields(self)}

    @property
    def total(self) -> float:
        return sum(self.by_activity().values())

    def __str__(self) -> str:
        """The activities that took most of the seconds, such as "samples 1.4 s, warm up 0.8 s"."""
        longest = sorted(self.by_activity().items(), key=lambda item: -item[1])
        return ", ".join(
            f"{name.replace('_', ' ')} {seconds:.1f} s" for name, seconds in longest if seconds >= _SHOWN_SECONDS
        )

    @property
    def measuring(self) -> float:
        """Seconds in which calls were timed or warmed up for it."""
        return self.warm_up + self.samples

    def plus(self, other: RunTimes) -> RunTimes:
        return RunTimes(**{name: seconds + getattr(other, name) for name, seconds in self.by_activity().items()})

    def with_more(self, activity: Activity, seconds: float) -> RunTimes:
        return replace(self, **{activity: getattr(self, activity) + seconds})

    def at_once(self, seconds: float) -> RunTimes:
        """The times of children that ran beside each other for so many seconds: samples count in full, because one
        child at a time takes samples, and all other activities share the rest."""
        samples = min(self.samples, seconds)
        return replace(replace(self, samples=0.0).within(seconds - samples), samples=samples)

    def within(self, seconds: float) -> RunTimes:
        """The same shares of at most so many seconds."""
        if self.total <= seconds:
            return self
        share = seconds / self.total
        return RunTimes(**{name: value * share for name, value in self.by_activity().items()})


class Stopwatch:
    """Adds up seconds per activity, for one thread. An activity inside another one interrupts it.

    watch: is entered around every activity, such as to trace it.
    """

    def __init__(self, watch: Callable[[Activity], AbstractContextManager[object]] | None = None) -> None:
        self._watch = watch or nullcontext
        self._seconds = dict.fromkeys(Activity, 0.0)
        self._open: list[Activity] = []
        self._since = perf_counter()

    @contextmanager
    def measure(self, activity: Activity) -> Iterator[None]:
        """Adds the time of the block, or of every call where it decorates a function."""
        self._settle()
        self._open.append(activity)
        try:
            with self._watch(activity):
                yield
        finally:
            self._settle()
            self._open.pop()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Adds the time of the block to no activity."""
        self._settle()
        try:
            yield
        finally:
            self._since = perf_counter()

    def add(self, times: RunTimes) -> None:
        """Adds what another process or thread measured."""
        for activity, seconds in times.by_activity().items():
            self._seconds[activity] += seconds

    def take(self) -> RunTimes:
        """The times since the last call."""
        self._settle()
        seconds, self._seconds = self._seconds, dict.fromkeys(Activity, 0.0)
        return RunTimes(**seconds)

    def _settle(self) -> None:
        now = perf_counter()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now
