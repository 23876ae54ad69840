"""Reads what statements about series are made of: readings, code, statuses and changes of many series at many commits.

server.verdicts.statements says what is true of them. Each query reads all series and commits at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.measurement import DEVICE_TIMES
from warpwatch.db.job_sources import VariantSources
from warpwatch.db.reads.launched import LaunchedKey, read_digests
from warpwatch.db.reads.lines import HistoryLine, on_line
from warpwatch.db.reads.query import SIGNAL, fetch
from warpwatch.db.regressions import CAN_CONFIRM, ON_LINE, PHASE

NOISE_READINGS = 64
"""Newest readings of a series that its noise is learned from, on whatever page and of whatever commit."""


class PointReading(NamedTuple):
    """One reading of a series: its median in one run, with the interval of the run."""

    series_id: int
    commit_id: int
    ordinal: int
    sha: str
    environment_id: int
    card_id: int | None
    median_ns: float
    low_ns: float
    high_ns: float

    @property
    def place(self) -> tuple[int, int | None]:
        """Environment and card: times of two places do not compare."""
        return self.environment_id, self.card_id


@dataclass(frozen=True, slots=True)
class SeriesChangeFact:
    """What is known of a change that begins or ends at a commit, in one series. is_end: it ends there.

    verdict: of the series. ratio: head over base of the series, or what later changes left of it; the suspected ratio
    where no trial decided it. phase: contract.words.ChangePhase of the change in this series. can_confirm: whether a
    trial can still decide it.
    """

    series_id: int
    commit_id: int
    sha: str
    ordinal: int
    is_end: bool
    regression_id: int
    direction: str
    verdict: str
    phase: str
    can_confirm: bool
    ratio: float | None
    low: float | None
    high: float | None
    base_sha: str
    head_status: str | None


@dataclass(frozen=True, slots=True)
class SeriesFacts:
    """All that is stored of a series at a commit of a line.

    signal: contract.words.Signal; None where its cell has one alone. reading: the newest at the commit. before: the
    newest of the same environment and card at the commit that it is held against, by default the last one measured
    before. is_same_code: whether the variant has the same code at both; None where that is not known. status: of a
    check or bench at the commit that did not end well. readings: the newest of the series in that environment and on
    that card, in order of history, which teach its noise.
    """

    series_id: int
    sha: str
    operator: str
    variant: str
    case: str
    device_kind: str
    metric: str
    signal: str | None
    reading: PointReading | None = None
    before: PointReading | None = None
    is_same_code: bool | None = None
    status: str | None = None
    changes: list[SeriesChangeFact] = field(default_factory=list)
    readings: list[PointReading] = field(default_factory=list)
    protocol: str = ""


class _Series(NamedTuple):
    id: int
    operator_id: int
    operator: str
    variant: str
    case: str
    device_kind: str
    metric: str
    signal: str | None
    protocol: str


class _Commit(NamedTuple):
    id: int
    sha: str
    ordinal: int
    repository_id: int


_SERIES = f"""
SELECT series.id, series.operator_id, operators.name AS operator, variants.name AS variant, cases.key AS case,
       devices.kind AS device_kind, series.metric, {SIGNAL} AS signal, series.protocol
FROM series JOIN operators ON operators.id = series.operator_id JOIN variants ON variants.id = series.variant_id
JOIN cases ON cases.id = series.case_id JOIN devices ON devices.id = series.device_id WHERE series.id = ANY(:ids)
"""
_COMMITS = """
SELECT id, sha, ordinal, repository_id FROM commits WHERE sha = ANY(:shas)
  AND repository_id IN (SELECT repository_id FROM series JOIN operators ON operators.id = series.operator_id
                        WHERE series.id = ANY(:ids))
"""
_READING = "points.series_id, points.commit_id, points.ordinal, commits.sha, environment_id, card_id, median_ns, low_ns"
_NEWEST = f"""
SELECT newest.* FROM unnest(CAST(:ids AS bigint[])) AS wanted(id) CROSS JOIN LATERAL (
    SELECT {_READING}, high_ns, points.id AS point_id FROM points JOIN commits ON commits.id = points.commit_id
    WHERE points.series_id = wanted.id AND {on_line("points.commit_id")}
    ORDER BY points.ordinal DESC, points.id DESC LIMIT {NOISE_READINGS}
) AS newest
ORDER BY newest.series_id, newest.ordinal, newest.point_id
"""
# Each LATERAL is one probe of the index of a series; only commits that the newest readings do not reach are read so.
_AT = f"""
SELECT at.*, before.*
FROM unnest(CAST(:ids AS bigint[])) AS wanted(id)
CROSS JOIN unnest(CAST(:commits AS bigint[]), CAST(:ordinals AS bigint[])) AS commit(id, ordinal)
CROSS JOIN LATERAL (
    SELECT {_READING}, high_ns FROM points JOIN commits ON commits.id = points.commit_id
    WHERE points.series_id = wanted.id AND points.ordinal = commit.ordinal AND points.commit_id = commit.id
    ORDER BY points.id DESC LIMIT 1
) AS at
LEFT JOIN LATERAL (
    SELECT {_READING}, high_ns FROM points JOIN commits ON commits.id = points.commit_id
    WHERE points.series_id = wanted.id AND points.environment_id = at.environment_id
      AND points.card_id IS NOT DISTINCT FROM at.card_id AND points.commit_id <> commit.id
      AND CASE WHEN CAST(:against AS bigint) IS NULL THEN points.ordinal < commit.ordinal AND {on_line("commits.id")}
               ELSE points.commit_id = :against END
    ORDER BY points.ordinal DESC, points.id DESC LIMIT 1
) AS before ON true
"""
_SOURCES = """
SELECT DISTINCT ON (operator_id, commit_id) operator_id, commit_id, sources, variants FROM job_sources
WHERE operator_id = ANY(:operators) AND commit_id = ANY(:commits) AND sources IS NOT NULL
ORDER BY operator_id, commit_id, job_id DESC
"""
_NATIVE = """
SELECT entry ->> 'name' AS operator, variant ->> 'name' AS variant
FROM (SELECT catalogue FROM commits WHERE id = ANY(:commits) AND catalogue IS NOT NULL ORDER BY ordinal DESC LIMIT 1)
     AS newest,
     jsonb_array_elements(catalogue -> 'operators') AS entry, jsonb_array_elements(entry -> 'variants') AS variant
WHERE NOT (variant ->> 'native')::boolean
"""
_HASHES = """
SELECT operator_id, commit_id, environment_id, code_hash FROM builds
WHERE commit_id = ANY(:commits) AND operator_id = ANY(:operators) AND code_hash <> ''
"""
# Rows without a kind are of series that were left out at the commit, because their code was unchanged.
_STATUSES = """
SELECT series.id AS series_id, results.commit_id, results.status, results.kind
FROM series JOIN results ON results.commit_id = ANY(:commits) AND results.operator_id = series.operator_id
     AND results.kind IN ('check', 'bench') AND results.device_id = series.device_id
     AND results.variant_id = series.variant_id AND results.case_id = series.case_id
WHERE series.id = ANY(:ids) AND results.status NOT IN ('ok', 'unsupported', 'skipped') AND NOT EXISTS (
    SELECT FROM results AS newer
    WHERE newer.variant_id = results.variant_id AND newer.case_id = results.case_id
      AND newer.device_id = results.device_id AND newer.kind = results.kind AND newer.ordinal = results.ordinal
      AND newer.commit_id = results.commit_id AND newer.id > results.id)
UNION SELECT series.id, jobs.commit_id, NULL, NULL FROM series
JOIN jobs ON jobs.operator_id = series.operator_id AND jobs.device_id = series.device_id
WHERE series.id = ANY(:ids) AND jobs.commit_id = ANY(:commits) AND jobs.unchanged_since_commit_id IS NOT NULL
ORDER BY kind DESC
"""


_BEGINS = f"""
SELECT member.series_id, head.id AS commit_id, head.sha, head.ordinal, false AS is_end, regressions.id AS regression_id,
       regressions.direction, member.verdict,
       CASE WHEN member.fixed_by_commit_id IS NOT NULL THEN 'fixed' ELSE {PHASE} END AS phase,
       {CAN_CONFIRM} AS can_confirm, coalesce(member.ratio, member.suspected_ratio) AS ratio,
       member.low, member.high, base.sha AS base_sha, member.head_status
FROM commits AS head JOIN regressions ON regressions.head_commit_id = head.id
JOIN regression_series AS member ON member.regression_id = regressions.id
JOIN commits AS base ON base.id = regressions.base_commit_id
WHERE head.repository_id = :repository_id AND head.ordinal BETWEEN :first AND :last AND member.series_id = ANY(:ids)
  AND regressions.state <> 'invalid' AND {ON_LINE}
"""
_ENDS = f"""
SELECT member.series_id, ending.id AS commit_id, ending.sha, ending.ordinal, true AS is_end,
       regressions.id AS regression_id, regressions.direction, member.verdict, 'fixed' AS phase, false AS can_confirm,
       NULL AS ratio, NULL AS low, NULL AS high, base.sha AS base_sha, NULL AS head_status
FROM regressions JOIN regression_series AS member ON member.regression_id = regressions.id
JOIN commits AS ending ON ending.id = coalesce(member.fixed_by_commit_id, regressions.fixed_by_commit_id)
JOIN commits AS base ON base.id = regressions.base_commit_id
JOIN commits AS head ON head.id = regressions.head_commit_id
WHERE ending.ordinal BETWEEN :first AND :last AND member.series_id = ANY(:ids) AND regressions.direction = 'broken'
  AND member.verdict = 'confirmed' AND regressions.state <> 'invalid' AND {ON_LINE}
"""
_CHANGES = f"{_BEGINS} UNION ALL {_ENDS} ORDER BY is_end"


def list_facts(
    session: Session, series_ids: Collection[int], shas: Collection[str], line: HistoryLine, against: str | None = None
) -> list[SeriesFacts]:
    """What is stored of each of the series at each of the commits, in order of history.

    against: the commit that they are held against, instead of the one measured before.
    """
    ids = sorted(set(series_ids))
    commits = fetch(session, _Commit, _COMMITS, ids=ids, shas=list({*shas, against} - {None}))
    held = next((commit for commit in commits if commit.sha == against), None)
    asked = sorted((commit for commit in commits if commit.sha in set(shas)), key=lambda commit: commit.ordinal)
    series = fetch(session, _Series, _SERIES, ids=ids)
    newest: dict[int, list[PointReading]] = defaultdict(list)
    for values in session.execute(text(_NEWEST), {"ids": ids, **line.parameters}):
        newest[values[0]].append(PointReading(*values[:_WIDTH]))
    pairs = _read_pairs(session, newest, ids, asked, line, held)
    code = _Code(session, series, pairs.values())
    places = {"ids": ids, "commits": [commit.id for commit in asked]}
    found_statuses = session.execute(text(_STATUSES), places).all()
    statuses = {(row.series_id, row.commit_id): row.status for row in found_statuses if row.kind is not None}
    left_out = {(row.series_id, row.commit_id) for row in found_statuses if row.kind is None}
    changes = _read_changes(session, ids, asked, pairs, line)
    by_place: dict[tuple[int, tuple[int, int | None]], list[PointReading]] = defaultdict(list)
    for reading in (reading for readings in newest.values() for reading in readings):
        by_place[reading.series_id, reading.place].append(reading)
    facts = []
    for commit, row in product(asked, series):
        key = row.id, commit.id
        at, before = pairs.get(key, (None, None))
        is_same_code = code.is_same(row, at, before) if at else True if key in left_out else None
        readings = by_place.get((row.id, at.place), []) if at else []
        names = row.id, commit.sha, row.operator, row.variant, row.case, row.device_kind, row.metric, row.signal
        since = before.ordinal if before and held is None else commit.ordinal - 1
        own = [item for item in changes.get(row.id, []) if _belongs(item, commit, since, against)]
        found = at, before, is_same_code, statuses.get(key), own, readings
        facts.append(SeriesFacts(*names, *found, row.protocol))
    return facts


def _belongs(change: SeriesChangeFact, commit: _Commit, since: int, against: str | None) -> bool:
    """Whether a change lies between a commit and the one that it is held against. since: ordinal of the latter.

    A trial may have found it at a commit between the two that has no reading.
    """
    if against is not None:
        return change.commit_id == commit.id and change.base_sha == against and not change.is_end
    return change.commit_id == commit.id or since < change.ordinal < commit.ordinal


def _read_changes(
    session: Session,
    ids: Sequence[int],
    asked: Sequence[_Commit],
    pairs: Mapping[tuple[int, int], _Pair],
    line: HistoryLine,
) -> dict[int, list[SeriesChangeFact]]:
    """The changes of each series that begin or end around the commits."""
    if not asked:
        return {}
    earliest = [before.ordinal for _, before in pairs.values() if before is not None]
    values: dict[str, Any] = {"ids": ids, "repository_id": asked[0].repository_id, **line.parameters}
    values |= {"first": min([asked[0].ordinal, *earliest]), "last": asked[-1].ordinal}
    changes: dict[int, list[SeriesChangeFact]] = defaultdict(list)
    for change in fetch(session, SeriesChangeFact, _CHANGES, **values):
        changes[change.series_id].append(change)
    return changes


_Pair = tuple[PointReading, PointReading | None]
_WIDTH = len(PointReading._fields)


def _read_pairs(
    session: Session,
    newest: Mapping[int, list[PointReading]],
    ids: Sequence[int],
    asked: Sequence[_Commit],
    line: HistoryLine,
    held: _Commit | None,
) -> dict[tuple[int, int], _Pair]:
    """The reading of each series at each commit, with the one that it is held against, by ids of series and commit."""
    by_id = {commit.id: commit for commit in asked}
    pairs: dict[tuple[int, int], _Pair] = {}
    missing: dict[int, set[int]] = {}
    for number in ids:
        rows = newest.get(number, [])
        # A series with fewer readings than are read has no older ones.
        reach = rows[0].ordinal if len(rows) == NOISE_READINGS else 0
        missing[number] = {commit.id for commit in asked if held is not None or commit.ordinal <= reach}
        last: dict[tuple[int, int | None], PointReading] = {}
        before: dict[tuple[int, int | None], PointReading] = {}
        for row in rows:
            known = last.get(row.place)
            if known is not None and known.commit_id != row.commit_id:
                before[row.place] = known
            last[row.place] = row
            if row.commit_id in by_id and row.commit_id not in missing[number]:
                pairs[number, row.commit_id] = (row, before.get(row.place))
    commits = sorted({commit for some in missing.values() for commit in some})
    values: dict[str, Any] = {
        "ids": [number for number in ids if missing[number]],
        "commits": commits,
        "ordinals": [by_id[commit].ordinal for commit in commits],
        "against": held.id if held else None,
    }
    # Both readings of a row have the same columns, which only their place tells apart.
    for found in session.execute(text(_AT), values | line.parameters) if commits else ():
        at, earlier = PointReading(*found[:_WIDTH]), found[_WIDTH:]
        if at.commit_id in missing[at.series_id]:
            pairs[at.series_id, at.commit_id] = (at, PointReading(*earlier) if earlier[0] is not None else None)
    return pairs


class _Code:
    """Code of variants at commits: fingerprints of sources, which variants are native, hashes of machine code, and what
    calls launched."""

    def __init__(self, session: Session, series: Sequence[_Series], pairs: Iterable[_Pair]) -> None:
        self._session = session
        self._commits = sorted({reading.commit_id for pair in pairs for reading in pair if reading is not None})
        self._operators = sorted({row.operator_id for row in series})
        self._values = {"operators": self._operators, "commits": self._commits}
        self._sources = {(row[0], row[1]): (row[2], row[3]) for row in session.execute(text(_SOURCES), self._values)}

    # What follows is read only where sources do not decide.
    @cached_property
    def _hashes(self) -> dict[tuple[int, int, int], str]:
        return {(row[0], row[1], row[2]): row[3] for row in self._session.execute(text(_HASHES), self._values)}

    @cached_property
    def _portable(self) -> set[tuple[str, str]]:
        return {(row[0], row[1]) for row in self._session.execute(text(_NATIVE), self._values)}

    @cached_property
    def _launched(self) -> dict[LaunchedKey, str]:
        return read_digests(self._session, self._operators, self._commits)

    def is_same(self, series: _Series, at: PointReading, before: PointReading | None) -> bool | None:
        """Whether a variant has the same code at two readings; None where that is not known.

        For times of a GPU alone it has where a call launches the same machine code in the same way, whatever the
        sources are.
        """
        if before is None:
            return None
        same = self._has_same_sources(series, at, before)
        if same or series.device_kind != "cuda" or series.metric not in DEVICE_TIMES:
            return same
        base, head = (
            self._launched.get(
                LaunchedKey(series.operator_id, row.commit_id, row.environment_id, series.variant, series.case)
            )
            for row in (before, at)
        )
        return True if base is not None and base == head else same

    def _has_same_sources(self, series: _Series, at: PointReading, before: PointReading) -> bool | None:
        """The Python code that its call can reach decides, and then native sources, which some variants do not have."""
        rows = [self._sources.get((series.operator_id, reading.commit_id)) for reading in (before, at)]
        found = [VariantSources(row[0], (row[1] or {}).get(series.variant)) for row in rows if row is not None]
        if len(found) < len(rows):
            return None
        if found[0].is_same(found[1]):
            return True
        if not found[0].has_same_python(found[1]):
            return False
        if (series.operator, series.variant) in self._portable:
            return True
        hashes = [
            self._hashes.get((series.operator_id, reading.commit_id, reading.environment_id))
            for reading in (before, at)
        ]
        return hashes[0] is not None and hashes[0] == hashes[1]
