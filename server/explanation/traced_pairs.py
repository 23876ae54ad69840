"""Decides which calls of two traces stand for an A/B comparison, and whether their picture may be drawn.

A trace holds a few calls, often of a busy host, and an A/B comparison many paired rounds: where they disagree, the
rounds are right. A picture that shows the opposite of its verdict is left out, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from warpwatch.contract.rounds import times_of_rounds
from warpwatch.db.reads.code import find_commit
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import RegressionSeriesRow
from warpwatch.db.traces import TraceDetail
from warpwatch.server.explanation.paired import list_paired_outcomes
from warpwatch.server.explanation.timeline import Timeline, read_timeline


class PictureState(StrEnum):
    """Whether two calls are drawn. contradicting: they show the opposite of the A/B comparison. missing: a trace cannot
    be drawn."""

    DRAWN = "drawn"
    CONTRADICTING = "contradicting"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """An A/B comparison of what two traces recorded: b over a, and the times of the rounds in nanoseconds."""

    ratio: float
    a_ns: float | None
    b_ns: float | None


@dataclass(frozen=True, slots=True)
class TracedPair:
    """One call of each of two traces. ratio: the length of b over that of a, None where one cannot be drawn. times: the
    A/B comparison that the calls stand for."""

    state: PictureState
    a: Timeline | None
    b: Timeline | None
    ratio: float | None
    times: PairedTimes | None


def pair_calls(a: Any, b: Any, times: PairedTimes | None) -> TracedPair:
    """The calls of two Chrome traces that are nearest to the times of the rounds; without rounds, the last ones."""
    left = read_timeline(a, like_ns=times.a_ns if times else None) if a is not None else None
    right = read_timeline(b, like_ns=times.b_ns if times else None) if b is not None else None
    if left is None or right is None or not left.duration:
        return TracedPair(PictureState.MISSING, left, right, None, times)
    ratio = right.duration / left.duration
    state = PictureState.CONTRADICTING if times and contradicts(ratio, times.ratio) else PictureState.DRAWN
    return TracedPair(state, left, right, ratio, times)


def contradicts(ratio: float, decided: float) -> bool:
    """Whether one ratio says slower and the other faster."""
    return (ratio - 1) * (decided - 1) < 0


def times_of_series(series: Iterable[RegressionSeriesRow], trace: TraceDetail) -> PairedTimes | None:
    """The rounds of the series of a regression that a trace is of; None where they were not measured."""
    same = [row for row in series if row.ratio and (row.variant, row.case) == (trace.variant, trace.case)]
    row = min(same, key=lambda row: row.verdict != "confirmed", default=None)
    if row is None or row.ratio is None:
        return None
    return PairedTimes(row.ratio, *times_of_rounds(row.base_ns, row.head_ns))


def find_paired_times(session: Session, repository_id: int, a: TraceDetail, b: TraceDetail) -> PairedTimes | None:
    """The A/B comparison of the two commits that decided on what both traces are of; None where there is none."""
    cell = (a.operator, a.variant, a.case, a.device_key)
    commits = [find_commit(session, repository_id, trace.commit_sha) for trace in (a, b)]
    if commits[0] is None or commits[1] is None or cell != (b.operator, b.variant, b.case, b.device_key):
        return None
    for base, head, is_swapped in ((commits[0], commits[1], False), (commits[1], commits[0], True)):
        for row in list_paired_outcomes(session, base.id, head.id):
            is_decided = row.outcome in ("slower", "faster") and row.ratio
            if (row.operator, row.variant, row.case, row.device_key) != cell or not is_decided or not row.ratio:
                continue
            if is_swapped:
                return PairedTimes(1 / row.ratio, row.head_ns, row.base_ns)
            return PairedTimes(row.ratio, row.base_ns, row.head_ns)
    return None
