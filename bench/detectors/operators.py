"""All series of an operator as the service judges them: one run after another, comparisons answer with the truth, and
those that show nothing raise the bar."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.detectors.known import answered
from bench.detectors.series import Series, with_step
from warpwatch.db.reads.judging import KnownChange
from warpwatch.db.reads.observed import ObservedReading
from warpwatch.server.verdicts.known import KnownRegressions
from warpwatch.server.verdicts.noise import Reading
from warpwatch.server.verdicts.suspicion import (
    CodeDifference,
    CommitPair,
    SeriesWindow,
    bar_of,
    find_candidates,
    find_suspicions,
)

FIRST = 8
"""Readings of a series before it is judged."""


class _AllCode(dict[CommitPair, CodeDifference]):
    """The code differs between any two commits."""

    def __missing__(self, pair: CommitPair) -> CodeDifference:
        return CodeDifference(all=True)


@dataclass(frozen=True, slots=True)
class Step:
    """A step in one series of an operator: its number, its first reading, the run there, and the readings with it."""

    series: int
    index: int
    run: int
    readings: list[Reading]


@dataclass
class Operator:
    """Every series of one kernel. Each run is a commit."""

    series: Sequence[Series]
    _windows: dict[tuple[int, int], SeriesWindow] = field(default_factory=dict)

    @property
    def points(self) -> int:
        return sum(len(series.readings) - FIRST for series in self.series)

    @property
    def runs(self) -> list[int]:
        return sorted({reading.ordinal for series in self.series for reading in series.readings})

    def step(self, number: int, index: int, factor: float) -> Step:
        readings = self.series[number].readings
        return Step(number, index, readings[index].ordinal, with_step(readings, index, factor))

    def judge(self, runs: Iterable[int], known: list[KnownChange], step: Step | None = None) -> bool:
        """Judges these runs; whether the step was confirmed, with which it ends. known: what was compared before, to
        which the new comparisons are added."""
        for run in runs:
            windows = [window for number in range(len(self.series)) if (window := self._window(number, run, step))]
            if not windows:
                continue
            before = KnownRegressions([*known])
            candidates = [item for item in find_candidates(windows, before) if item.cause == "history"]
            is_raised = bar_of(windows, before).is_raised
            for item in find_suspicions(candidates, before, _AllCode(), is_raised=is_raised):
                ends, ids = (int(item.base_sha, 16), int(item.head_sha, 16)), [one.series_id for one in item.series]
                is_found = step is not None and step.series in ids and ends[0] < step.run <= ends[1]
                culprit = (step.run - 1, step.run) if is_found and step is not None else None
                cleared = [number for number in ids if not is_found or step is None or number != step.series]
                known.append(answered(len(known), item.direction, ends, culprit, ids, cleared))
                if is_found:
                    return True
        return False

    def _window(self, number: int, run: int, step: Step | None) -> SeriesWindow | None:
        """The series up to a run; None where it has no reading there, or too few before."""
        if step is not None and step.series == number:
            return _window_of(number, step.readings, run)
        if (number, run) not in self._windows:
            window = _window_of(number, self.series[number].readings, run)
            if window is None:
                return None
            self._windows[number, run] = window
        return self._windows[number, run]


def operators_of(dataset: Iterable[Series]) -> list[Operator]:
    by_kernel: dict[str, list[Series]] = defaultdict(list)
    for series in dataset:
        by_kernel[series.kernel].append(series)
    return [Operator(series) for series in by_kernel.values()]


def _window_of(number: int, readings: Sequence[Reading], run: int) -> SeriesWindow | None:
    index = next((place for place, reading in enumerate(readings) if reading.ordinal == run), None)
    if index is None or index < FIRST:
        return None
    rows = [_observed(number, reading) for reading in readings[: index + 1]]
    return SeriesWindow(rows, [], "cuda", run)


def _observed(number: int, reading: Reading) -> ObservedReading:
    run, times = reading.ordinal, (reading.median_ns, reading.low_ns, reading.high_ns)
    return ObservedReading(number, f"v{number}", "n=1", 1, run, f"{run:040x}", run, *times)
