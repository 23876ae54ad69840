"""Questions on an operator's page, with answers that are computed from the times of the device that it shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from statistics import median

from warpwatch.contract.catalogue import SizeQuestion
from warpwatch.db.reads.operator_cases import MetricTime
from warpwatch.server.figures.size_axis import SizeGroup, between, fastest_summary, time_of
from warpwatch.server.reports.formats import significant

SWEEP, MOST_ANSWERS = 3, 4
METRIC_PAIRS = {
    "cuda": (
        ("graph", "hot", "What do cold caches cost?", "Cold data takes {}× the time of hot data"),
        ("call", "graph", "What do launches cost?", "A call from Python takes {}× the time in a CUDA graph"),
    ),
    "cpu": (("cold", "hot", "What do cold caches cost?", "A call on cold data takes {}× the time on hot data"),),
}
"""By kind of device, metrics whose ratio answers a question: the longer, the shorter, the question, the beginning of
its answer. `cold` of a GPU holds the overhead of events, which `hot` does not."""


@dataclass(frozen=True, slots=True)
class StatedQuestion:
    """A question about one size. answers: (what the cases of a group have in common, a sentence), the group with most
    cases first; none where no two timed cases differ in this size only."""

    text: str
    size: str
    answers: list[tuple[str, str]]


def answer_questions(
    declared: Sequence[SizeQuestion], groups: Mapping[str, Sequence[SizeGroup]]
) -> list[StatedQuestion]:
    """What the times say to the questions that an operator declares; of one that declares none, which variant is the
    fastest over every size that at least SWEEP cases vary."""
    if declared:
        return [
            StatedQuestion(
                question.text,
                question.size,
                [
                    (group.name, sentence)
                    for group in groups.get(question.size, ())
                    if (sentence := compare_over(group, question.size, question.against))
                ][:MOST_ANSWERS],
            )
            for question in declared
        ]
    swept = {name: [group for group in found if len(group.points) >= SWEEP] for name, found in groups.items()}
    return [
        StatedQuestion(
            f"Which variant is the fastest over {name}?",
            name,
            [(group.name, fastest_summary(group, name)) for group in found[:MOST_ANSWERS]],
        )
        for name, found in swept.items()
        if found
    ]


def compare_over(group: SizeGroup, size: str, against: str) -> str | None:
    """From which size on another variant beats `against`, in words; None where they share fewer than two cases."""
    points = [point for point in group.points if against in (names := point.rivals) and len(names) > 1]
    if len(points) < 2:
        return None
    rivals = [
        min((name for name in point.rivals if name != against), key=lambda name: time_of(point, name))
        for point in points
    ]
    leads = [log(time_of(point, rival) / time_of(point, against)) for point, rival in zip(points, rivals, strict=True)]
    far = f"{rivals[-1]} takes {significant(exp(leads[-1]))}× the time of {against} at {size} {points[-1].text}"
    if all(lead > 0 for lead in leads):
        return f"{against} is the fastest at every measured value of {size}; {far}"
    if all(lead <= 0 for lead in leads):
        winner = rivals[0] if len(set(rivals)) == 1 else "another variant"
        return f"{winner} beats {against} at every measured value of {size}; {far}"
    if group.has_parts:
        won = ", ".join(point.text for point, lead in zip(points, leads, strict=True) if lead > 0)
        return f"{against} wins at {size} {won}; {far}"
    turns = [
        f"{'below' if before > 0 else 'from'} {size} "
        + significant(between(left, right, before / (before - behind), group.is_log))
        for (left, before), (right, behind) in pairwise(zip(points, leads, strict=True))
        if (before > 0) != (behind > 0)
    ]
    return f"{against} wins {' and '.join(turns)}; {far}"


def answer_metrics(times: Iterable[MetricTime], kind: str) -> list[tuple[str, str]]:
    """Questions about the cost of caches and launches with their answers, from the variant of each case that is the
    fastest in the longer metric."""
    by_metric: dict[str, dict[str, dict[str, float]]] = {}
    for time in times:
        by_metric.setdefault(time.metric, {}).setdefault(time.case, {})[time.variant] = time.median_ns
    answers = []
    for longer, shorter, question, beginning in METRIC_PAIRS[kind]:
        ratios: dict[str, float] = {}
        for case, taken in by_metric.get(longer, {}).items():
            rival = by_metric.get(shorter, {}).get(case, {})
            if both := taken.keys() & rival.keys():
                fastest = min(both, key=lambda name: (taken[name], name))
                ratios[case] = taken[fastest] / rival[fastest]
        if ratios:
            most = max(ratios, key=lambda case: ratios[case])
            middle = beginning.format(significant(median(ratios.values())))
            of_cases = f", the median of {len(ratios)} cases, most at {most}: {significant(ratios[most])}×"
            answers.append((question, middle + (of_cases if len(ratios) > 1 else f" at {most}")))
    return answers
