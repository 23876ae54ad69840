"""Reads how every repository stands on its watched branch, for the page that lists all of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.db.reads.lines import on_line
from warpwatch.db.reads.query import MAX_PAGE, Page, fetch
from warpwatch.db.regressions import IS_OPEN, IS_SUSPECTED, PHASE, WORST_SIGNAL

STRIP_DAYS = 90
"""How far back the verdicts of a row reach."""
MOST_VERDICTS = 60
"""Verdicts of a repository that are read, the newest ones."""


@dataclass(frozen=True, slots=True)
class HomeVerdict:
    """A confirmed change on the watched branch. ratio: what later changes left of it. at: date of its commit.
    signal: contract.words.Signal of its worst series."""

    regression_id: int
    operator: str
    direction: str
    phase: str
    ratio: float | None
    at: datetime
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class HomeRow:
    """A repository and how its watched branch stands.

    newest_sha, newest_subject, newest_at: its newest commit. open: confirmed changes for the worse that are neither
    fixed nor closed. suspected: changes, either way, that no trial has decided. failing: variants on cases and devices
    that are wrong or fail at the newest commit where their operator was checked; None where none was checked. costs:
    what commits made worse beside the time and nobody gave back or accepted, without what is only suspected. queue_end:
    when its last job will have ended, as far as earlier jobs tell. verdicts: of the last 90 days, oldest first.
    """

    id: int
    name: str
    branch: str | None
    is_example: bool
    newest_sha: str | None
    newest_subject: str | None
    newest_at: datetime | None
    open: int
    suspected: int
    failing: int | None
    queued: int
    running: int
    costs: int = 0
    queue_end: datetime | None = None
    verdicts: list[HomeVerdict] = field(default_factory=list)

    @property
    def needs_attention(self) -> bool:
        return self.open > 0 or bool(self.failing)


_WATCHED = "watched.branch_id", "CAST(NULL AS bigint)", "CAST(NULL AS bigint)"
_ON_WATCHED = f"({on_line('head.id', *_WATCHED)} AND {on_line('base.id', *_WATCHED)})"
_LISTED = """
WITH watched AS MATERIALIZED (
    SELECT repositories.id, repositories.name, coalesce(repositories.branch, branches.name) AS branch, is_example,
           branches.id AS branch_id
    FROM repositories LEFT JOIN branches ON branches.repository_id = repositories.id AND branches.is_watched
    WHERE deleted_at IS NULL ORDER BY is_example, name LIMIT :limit OFFSET :skip
)
"""
# The newest commit of a branch is the one at its last place; where no branch is known, the one with most ancestors.
_ROWS = f"""
{_LISTED}, operators_of AS MATERIALIZED (
    SELECT operators.id, watched.id AS repository_id, watched.branch_id
    FROM watched JOIN operators ON operators.repository_id = watched.id
), changes AS (
    SELECT watched.repository_id, count(*) FILTER (WHERE {IS_OPEN} AND direction <> 'faster') AS open,
           count(*) FILTER (WHERE {IS_SUSPECTED}) AS suspected
    FROM regressions JOIN operators_of AS watched ON watched.id = regressions.operator_id
    JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    WHERE regressions.verdict IN ('confirmed', 'suspected') AND regressions.state IN ('new', 'acknowledged')
      AND {_ON_WATCHED}
    GROUP BY watched.repository_id
), latest AS MATERIALIZED (
    SELECT watched.id AS operator_id, watched.repository_id, devices.id AS device_id, newest.commit_id
    FROM operators_of AS watched CROSS JOIN devices
    CROSS JOIN LATERAL (
        SELECT commit_id FROM results
        WHERE operator_id = watched.id AND device_id = devices.id AND kind = 'check'
          AND {on_line("results.commit_id", *_WATCHED)}
        ORDER BY ordinal DESC, id DESC LIMIT 1
    ) AS newest
), cells AS (
    SELECT latest.repository_id, found.variant_id, found.case_id, found.device_id,
           bool_or(found.status = 'wrong') OR (array_agg(found.status ORDER BY found.id DESC)
               FILTER (WHERE found.kind = 'check'))[1] NOT IN ('ok', 'wrong', 'unsupported', 'skipped') AS is_failing
    FROM latest CROSS JOIN LATERAL (
        SELECT DISTINCT ON (variant_id, case_id, kind) id, variant_id, case_id, device_id, kind, status FROM results
        WHERE commit_id = latest.commit_id AND operator_id = latest.operator_id AND device_id = latest.device_id
          AND kind IN ('check', 'bench')
        ORDER BY variant_id, case_id, kind, id DESC
    ) AS found
    GROUP BY latest.repository_id, found.variant_id, found.case_id, found.device_id
), failures AS (
    SELECT repository_id, count(*) FILTER (WHERE is_failing) AS failing FROM cells GROUP BY repository_id
), work AS (
    SELECT operators_of.repository_id, count(*) FILTER (WHERE jobs.state = 'queued') AS queued,
           count(*) FILTER (WHERE jobs.state = 'running') AS running
    FROM jobs JOIN operators_of ON operators_of.id = jobs.operator_id WHERE jobs.state IN ('queued', 'running')
    GROUP BY operators_of.repository_id
)
SELECT watched.id, watched.name, watched.branch, watched.is_example,
       newest.sha AS newest_sha, newest.subject AS newest_subject, newest.authored_at AS newest_at,
       coalesce(changes.open, 0) AS open, coalesce(changes.suspected, 0) AS suspected,
       failures.failing, coalesce(work.queued, 0) AS queued,
       coalesce(work.running, 0) AS running
FROM watched
LEFT JOIN LATERAL (
    (SELECT sha, subject, authored_at FROM branch_commits JOIN commits ON commits.id = branch_commits.commit_id
     WHERE branch_commits.branch_id = watched.branch_id ORDER BY place DESC LIMIT 1)
    UNION ALL
    (SELECT sha, subject, authored_at FROM commits
     WHERE watched.branch_id IS NULL AND repository_id = watched.id AND patch_id IS NULL
     ORDER BY ordinal DESC LIMIT 1)
) AS newest ON true
LEFT JOIN changes ON changes.repository_id = watched.id
LEFT JOIN failures ON failures.repository_id = watched.id
LEFT JOIN work ON work.repository_id = watched.id
ORDER BY watched.is_example, watched.name
"""
_VERDICTS = f"""
SELECT newest.* FROM (
    SELECT watched.id AS repository_id, regressions.id AS regression_id, operators.name AS operator,
           regressions.direction, {PHASE} AS phase,
           coalesce(regressions.left_ratio, regressions.ratio) AS ratio, head.authored_at AS at,
           {WORST_SIGNAL} AS signal,
           row_number() OVER (PARTITION BY watched.id ORDER BY head.authored_at DESC, regressions.id DESC) AS place
    FROM regressions JOIN operators ON operators.id = regressions.operator_id
    JOIN commits AS base ON base.id = regressions.base_commit_id
    JOIN commits AS head ON head.id = regressions.head_commit_id
    JOIN (SELECT repository_id AS id, id AS branch_id FROM branches WHERE is_watched
          UNION ALL SELECT id, NULL FROM repositories
          WHERE NOT EXISTS (SELECT FROM branches WHERE repository_id = repositories.id AND is_watched)) AS watched
         ON watched.id = operators.repository_id
    WHERE watched.id = ANY(:ids) AND regressions.verdict = 'confirmed' AND regressions.state <> 'invalid'
      AND regressions.decided_at >= :since AND head.authored_at >= :since AND {_ON_WATCHED}
) AS newest
WHERE newest.place <= {MOST_VERDICTS} ORDER BY newest.at, newest.regression_id
"""
_OPEN_JOBS = """
SELECT jobs.id AS job_id, operators.repository_id FROM jobs JOIN operators ON operators.id = jobs.operator_id
WHERE jobs.state IN ('queued', 'running')
"""


def list_home(session: Session, skip: int | None = None, limit: int = 50) -> Page[HomeRow]:
    """Every repository, those of users before examples, by name. skip: `next_before` of the page before."""
    size, first = max(1, min(limit, MAX_PAGE)), skip or 0
    rows = fetch(session, HomeRow, _ROWS, limit=size + 1, skip=first)
    since = datetime.now(UTC) - timedelta(days=STRIP_DAYS)
    verdicts: dict[int, list[HomeVerdict]] = defaultdict(list)
    for found in session.execute(text(_VERDICTS), {"ids": [row.id for row in rows[:size]], "since": since}):
        change = found.regression_id, found.operator, found.direction, found.phase, found.ratio, found.at
        verdict = HomeVerdict(*change, found.signal)
        verdicts[found.repository_id].append(verdict)
    items = [replace(row, verdicts=verdicts[row.id]) for row in rows[:size]]
    return Page(items, first + size if len(rows) > size else None)


def read_job_repositories(session: Session) -> dict[int, int]:
    """The id of the repository of every job that has not ended, by the id of the job."""
    return {row.job_id: row.repository_id for row in session.execute(text(_OPEN_JOBS))}
