"""The noise of a series, the smallest change it can show, and its level shifts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp
from statistics import median

from warpwatch.contract.words import Signal, StepCause
from warpwatch.db.cards import OffsetRow, list_agreed_cards
from warpwatch.db.job_sources import list_sources
from warpwatch.db.reads.history import ReadingRow, list_readings
from warpwatch.db.reads.lines import HistoryLine
from warpwatch.db.reads.query import Session
from warpwatch.server.verdicts.cards import join_cards, offsets_of
from warpwatch.server.verdicts.changes import Change, find_changes
from warpwatch.server.verdicts.noise import Reading, detectable, learn
from warpwatch.server.verdicts.thresholds import kind_of_time, thresholds_of


@dataclass(frozen=True, slots=True)
class LevelShift:
    """A shift of level in the range between two measured commits; ratio is head over base level.

    is_code_changed: whether the variant's sources differ at both ends; null where that is not known. Where they do
    not, noise or the machine shifted the level.
    """

    base_sha: str
    head_sha: str
    base_ordinal: int
    head_ordinal: int
    ratio: float
    is_code_changed: bool | None = None

    @property
    def cause(self) -> StepCause:
        """The code, the environment and the card are the same on both sides, or no trial told which changed."""
        return StepCause.NOISE if self.is_code_changed is False else StepCause.UNKNOWN


@dataclass(frozen=True, slots=True)
class NoiseSummary:
    """The noise of one environment, and of one card where cards do not agree. Deviations and `detectable` are shares of
    the time: 0.021 is 2.1 %.

    repeats: reruns of measured commits. detectable: the smallest change that one new run can reveal.
    """

    environment_id: int
    readings: int
    repeats: int
    level_ns: float
    between: float
    within: float
    detectable: float
    steps: list[LevelShift]
    card_id: int | None = None


def read_learned(session: Session, series_id: int, line: HistoryLine) -> list[NoiseSummary]:
    """One summary per environment, of a line; the environment of the newest commit comes first. Cards that do not agree
    have one each."""
    rows = list_readings(session, series_id, line)
    agreed = list_agreed_cards(session, series_id) if len({row.card_id for row in rows}) > 1 else []
    summaries = learn_from(rows, agreed)
    ids = {row.commit_sha: row.commit_id for row in rows}
    ends = {ids[sha] for summary in summaries for step in summary.steps for sha in (step.base_sha, step.head_sha)}
    sources = list_sources(session, series_id, ends) if ends else {}

    def with_code(step: LevelShift) -> LevelShift:
        before, behind = (sources.get(ids[sha]) for sha in (step.base_sha, step.head_sha))
        return replace(step, is_code_changed=None if before is None or behind is None else not before.is_same(behind))

    return [replace(summary, steps=[with_code(step) for step in summary.steps]) for summary in summaries]


def learn_from(rows: Sequence[ReadingRow], agreed: Iterable[OffsetRow] = ()) -> list[NoiseSummary]:
    """Levels of two environments, or of cards that do not agree, are never compared. rows: of one series, in order of
    history. agreed: cards that agree."""
    shas = {row.commit_id: row.commit_sha for row in rows}
    time_kind = kind_of_time(rows[0].device_kind, rows[0].metric, rows[0].protocol) if rows else ""
    lines = join_cards([row.card_id for row in reversed(rows)], offsets_of(agreed))
    groups: dict[tuple[int, int | None], list[Reading]] = {}
    newest: dict[tuple[int, int | None], int] = {}
    for index, row in enumerate(rows):
        card_id, offset = lines[row.card_id]
        shift = 0.0 if time_kind == Signal.LAUNCH else offset
        factor = exp(-shift)
        times = factor * row.median_ns, factor * row.low_ns, factor * row.high_ns
        reading = Reading(row.ordinal, row.commit_id, row.environment_id, *times)
        groups.setdefault((row.environment_id, card_id), []).append(reading)
        newest[row.environment_id, card_id] = index
    return [
        replace(_learn(key[0], groups[key], time_kind, shas), card_id=key[1])
        for key in sorted(groups, key=lambda key: -newest[key])
    ]


def _learn(environment_id: int, readings: Sequence[Reading], time_kind: str, shas: dict[int, str]) -> NoiseSummary:
    changes = find_changes(readings, time_kind, thresholds_of(time_kind).alarm)
    level = median(one.median_ns for one in readings[changes[-1].head if changes else 0 :])
    noise = learn(readings, time_kind)
    return NoiseSummary(
        environment_id,
        len(readings),
        sum(before.commit_id == after.commit_id for before, after in pairwise(readings)),
        level,
        noise.between,
        noise.within,
        detectable(noise, time_kind, level),
        [_step(readings, change, shas) for change in changes],
    )


def _step(readings: Sequence[Reading], change: Change, shas: dict[int, str]) -> LevelShift:
    base, head = readings[change.base], readings[change.head]
    return LevelShift(shas[base.commit_id], shas[head.commit_id], base.ordinal, head.ordinal, change.ratio)
