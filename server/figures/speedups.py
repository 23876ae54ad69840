"""Speed-ups of an operator's variants over its baseline, from the cells of the overview."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from warpwatch.db.reads.overview import OverviewCell
from warpwatch.server.figures.formats import variant_order


@dataclass(frozen=True, slots=True)
class VariantSpeedup:
    """Time of the baseline over the time of one variant, on one device in one metric.

    The median, lowest and highest are over the `cases` in which the variant has a time and its newest check has not
    failed; lowest_case and highest_case are the keys of the two extremes. `baseline` is the operator's: where it has
    no time in a case, the first variant that has one stands in for it.
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


def case_speedups(cells: Iterable[OverviewCell | None]) -> dict[str, float]:
    """Speed-up by variant for the cells of one case in one device and metric; variants without a time are left out."""
    timed = {cell.variant: cell.median_ns for cell in cells if cell and cell.median_ns}
    names = sorted(timed, key=variant_order)
    return {name: timed[baseline_of(names)] / timed[name] for name in names}


def variant_speedups(cells: Sequence[OverviewCell]) -> list[VariantSpeedup]:
    """One row for each variant that has a time in one of the cells, all of one operator, device and metric."""
    by_case: dict[str, list[OverviewCell]] = defaultdict(list)
    for cell in cells:
        by_case[cell.case].append(cell)
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    for case, row in by_case.items():
        speedups = case_speedups(row)
        for cell in row:
            # The time of a wrong result says nothing about a correct kernel.
            if cell.variant in speedups and cell.check_status in (None, "ok"):
                ratios[cell.variant][case] = speedups[cell.variant]
    names = sorted({cell.variant for cell in cells}, key=variant_order)
    return [_summary(name, baseline_of(names), ratios[name]) for name in names if ratios[name]]


def _summary(variant: str, baseline: str, ratios: dict[str, float]) -> VariantSpeedup:
    low, high = min(ratios, key=lambda case: ratios[case]), max(ratios, key=lambda case: ratios[case])
    middle = median(ratios.values())
    return VariantSpeedup(variant, baseline, middle, ratios[low], ratios[high], len(ratios), low, high)
