"""The physical cards of one device: how far two of them lie apart, and which readings make one line.

Two cards of one model differ by up to 5 %, so readings of both in one line would look like changes. Each card has a
line of its own until series that both measured at the same commits have shown by how much they differ. From then on the
readings of the other card count too, with that offset taken off. A reading whose card is not known counts as one of any
card.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from math import exp, log
from statistics import median, quantiles

from warpwatch.contract.rounds import CONFIRMED, median_interval
from warpwatch.db.cards import OffsetRow
from warpwatch.db.reads.observed import ObservedReading

MOST_PAIRS = 1000
LEVEL = 8
"""Readings at either end of a series from which the drift of a card is taken."""
LEAST_DRIFTS = 6
"""Unchanged series without which a drift is not said to be the card's."""


@dataclass(frozen=True, slots=True)
class CardOffset:
    """How the times of a card compare with those of another one: the median ratio with its 95 % interval.

    pairs: ratios that it is taken from, one per series and commit that both measured. is_agreed: whether it holds for
    all series closely enough that the readings of both make one line.
    """

    ratio: float
    low: float
    high: float
    pairs: int
    is_agreed: bool = False


def pair_cards(rows: Iterable[ObservedReading], card_id: int) -> dict[int, dict[int, list[float]]]:
    """By other card and by series: log times of a card over those of the other one at the same commit and
    environment."""
    times: dict[tuple[int, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.card_id is not None:
            times[row.series_id, row.environment_id, row.commit_id][row.card_id].append(row.median_ns)
    logs: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (series_id, _, _), by_card in times.items():
        for other_id in by_card.keys() - {card_id} if card_id in by_card else ():
            logs[other_id][series_id].append(log(median(by_card[card_id]) / median(by_card[other_id])))
    return {other_id: dict(by_series) for other_id, by_series in logs.items()}


def learn_offset(logs: Mapping[int, Sequence[float]], device_kind: str) -> CardOffset | None:
    """The offset that log ratios show, by series; None while there are too few.

    Two cards agree where the interval lies within the smallest change that a comparison confirms, on both sides of the
    offset, and so do four of five series: cards differ more in memory than in arithmetic.
    """
    offset = pool_offset([value for values in logs.values() for value in values])
    if offset is None:
        return None
    middle, bound = log(offset.ratio), log(CONFIRMED[device_kind])
    by_series = sorted(median(values) - middle for values in logs.values() if values)
    outer = quantiles(by_series, n=10) if len(by_series) > 1 else by_series
    is_narrow = middle - log(offset.low) <= bound and log(offset.high) - middle <= bound
    is_alike = -bound <= outer[0] and outer[-1] <= bound
    return replace(offset, is_agreed=is_narrow and is_alike)


def pool_offset(logs: Sequence[float], *, is_agreed: bool = False) -> CardOffset | None:
    """The median ratio with its interval; None while there are too few."""
    interval = median_interval(logs)
    if interval is None:
        return None
    return CardOffset(exp(median(logs)), exp(interval[0]), exp(interval[1]), len(logs), is_agreed)


def offsets_of(rows: Iterable[OffsetRow]) -> dict[tuple[int, int], float]:
    """By (card, other card), by how much log times of a card lie above those of the other."""
    return {(row.card_id, row.other_card_id): median(row.logs) for row in rows}


def join_cards(
    newest_first: Iterable[int | None], agreed: Mapping[tuple[int, int], float]
) -> dict[int | None, tuple[int | None, float]]:
    """For every card the one whose line its readings belong to, and by how much its log times lie above that one's.

    agreed: by (card, other card), the offset of cards that agree.
    """
    both = dict(agreed) | {(other, card): -offset for (card, other), offset in agreed.items()}
    lines: dict[int | None, tuple[int | None, float]] = {}
    heads: list[int | None] = []
    for card in newest_first:
        if card in lines:
            continue
        known = [head for head in heads if head is None or card is None or (card, head) in both]
        if known:
            head = known[0]
            lines[card] = head, 0.0 if card is None or head is None else both[card, head]
        else:
            heads.append(card)
            lines[card] = card, 0.0
    return lines


@dataclass(frozen=True, slots=True)
class SeriesDrift:
    """By how much log time an unchanged series of a card moved since a moment."""

    log_ratio: float
    since: datetime


def find_drifts(rows: Sequence[ObservedReading]) -> list[SeriesDrift]:
    """How series moved from the first readings that were taken to the newest; none of a short one. rows: by series, of
    one card and environment, of commits with the sources of the newest one, so that no code explains a difference."""
    drifts = []
    for _, group in groupby(rows, key=lambda row: row.series_id):
        readings = sorted(group, key=lambda row: row.measured_at)
        levels = [log(row.median_ns) for row in readings]
        if len(levels) >= 2 * LEVEL:
            moved = median(levels[-LEVEL:]) - median(levels[:LEVEL])
            drifts.append(SeriesDrift(moved, readings[LEVEL - 1].measured_at))
    return drifts


def judge_drift(log_ratios: Sequence[float], device_kind: str) -> CardOffset | None:
    """Slowdown of a card by the drifts of the card's unchanged series: new time over old; None unless the whole
    interval lies beyond the smallest change that a comparison confirms."""
    drift = pool_offset(log_ratios) if len(log_ratios) >= LEAST_DRIFTS else None
    return drift if drift is not None and drift.low > CONFIRMED[device_kind] else None
