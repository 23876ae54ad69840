"""Speed-ups of an operator's variants over its baseline, and which of them are the fastest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean, median
from typing import Protocol, TypeVar

from warpwatch.server.reports.formats import plural, significant, variant_order


class TimedCell(Protocol):
    """The newest time of a variant on a case, with the status of its newest check."""

    @property
    def case(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def median_ns(self) -> float | None: ...
    @property
    def roofline_share(self) -> float | None: ...
    @property
    def check_status(self) -> str | None: ...
    @property
    def metric(self) -> str | None: ...


class TimedSeries(TimedCell, Protocol):
    """A timed cell with the series that its time belongs to."""

    @property
    def series_id(self) -> int | None: ...


Cell = TypeVar("Cell", bound=TimedCell)


@dataclass(frozen=True, slots=True)
class VariantSpeedup:
    """Time of the baseline over the time of one variant, on one device in one metric.

    The median, lowest and highest are over the `cases` in which the variant has a time and its newest check has not
    failed; lowest_case and highest_case are the keys of the two extremes. `baseline` is the operator's: where it has
    no comparable time in a case, the first variant that has one stands in for it.
    """

    variant: str
    baseline: str
    median: float
    lowest: float
    highest: float
    cases: int
    lowest_case: str
    highest_case: str


def baseline_of(variants: Sequence[str]) -> str:
    """v1, which is naive torch by convention; without it, the first variant."""
    return "v1" if "v1" in variants else variants[0]


def is_right(cell: TimedCell) -> bool:
    """Whether its time counts: the time of a wrong result says nothing about a correct kernel."""
    return bool(cell.median_ns) and cell.check_status in (None, "ok")


def comparable(cells: Iterable[Cell | None]) -> list[Cell]:
    """The timed cells of one case that can be compared.

    The sum of a call's kernels leaves out what passes between them. So a variant that no CUDA graph can hold is
    compared with no graph's time.
    """
    timed = [cell for cell in cells if cell and cell.median_ns]
    return [cell for cell in timed if cell.metric != "kernel"] or timed


def case_speedups(cells: Iterable[TimedCell | None]) -> dict[str, float]:
    """Speed-up by variant for the comparable cells of one case in one device and metric."""
    timed = {cell.variant: cell.median_ns or 0.0 for cell in comparable(cells)}
    names = sorted(timed, key=variant_order)
    return {name: timed[baseline_of(names)] / timed[name] for name in names}


def variant_speedups(cells: Sequence[TimedCell]) -> list[VariantSpeedup]:
    """One row for each variant that can be compared in one of the cells, all of one operator, device and metric."""
    by_case: dict[str, list[TimedCell]] = defaultdict(list)
    for cell in cells:
        by_case[cell.case].append(cell)
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    compared = set[str]()
    for case, row in by_case.items():
        speedups = case_speedups(row)
        compared.update(speedups)
        for cell in row:
            if cell.variant in speedups and is_right(cell):
                ratios[cell.variant][case] = speedups[cell.variant]
    names = sorted(compared, key=variant_order)
    return [_summary(name, baseline_of(names), ratios[name]) for name in names if ratios[name]]


def _summary(variant: str, baseline: str, ratios: dict[str, float]) -> VariantSpeedup:
    low, high = min(ratios, key=lambda case: ratios[case]), max(ratios, key=lambda case: ratios[case])
    middle = median(ratios.values())
    return VariantSpeedup(variant, baseline, middle, ratios[low], ratios[high], len(ratios), low, high)


def right_times(cells: Iterable[TimedCell]) -> dict[str, dict[str, float]]:
    """Comparable right times by case and variant."""
    right: dict[str, list[TimedCell]] = defaultdict(list)
    for cell in filter(is_right, cells):
        right[cell.case].append(cell)
    return {case: {cell.variant: cell.median_ns or 0.0 for cell in comparable(row)} for case, row in right.items()}


def rank_variants(cells: Iterable[TimedCell]) -> list[str]:
    """The variants with a right time: those that are the fastest of most cases first, then those closest to the
    fastest."""
    behind: dict[str, list[float]] = defaultdict(list)
    for times in right_times(cells).values():
        fastest = min(times.values())
        for name, ns in times.items():
            behind[name].append(log(ns / fastest))
    return sorted(behind, key=lambda name: (-behind[name].count(0.0), fmean(behind[name]), variant_order(name)))


def standings(cells: Iterable[TimedCell]) -> dict[str, str]:
    """How each variant stands among the others, in words: in how many cases it is the fastest, and by how much, else
    how far it is behind. A median counts where it is so in several cases."""
    ahead: dict[str, list[float]] = defaultdict(list)
    behind: dict[str, list[float]] = defaultdict(list)
    for times in right_times(cells).values():
        first, *others = sorted(times, key=times.__getitem__)
        behind[first].append(1.0)
        if others:
            ahead[first].append(times[others[0]] / times[first])
        for name in others:
            behind[name].append(times[name] / times[first])
    return {name: _standing(behind[name], ahead.get(name)) for name in behind}


def _standing(behind: list[float], ahead: list[float] | None) -> str:
    cases = plural(len(behind), "case")
    if wins := behind.count(1.0):
        return f"fastest in {wins} of {cases}" + (f", {significant(median(ahead))}× the next" if ahead else "")
    return f"{significant(median(behind))}× the time of the fastest in {cases}"
