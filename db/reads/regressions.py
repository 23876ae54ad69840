"""Reads regressions: changes that history suggested and measuring decided."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from typing import Any

from sqlalchemy import text

from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import MergeCause
from warpwatch.db.reads.code import definitions_version
from warpwatch.db.reads.lines import ALL_COMMITS, HistoryLine, on_line, place_of, share_line
from warpwatch.db.reads.query import MAX_PAGE, Page, Session, fetch, fetch_one, fetch_scalar
from warpwatch.db.reads.watches import is_watched


@dataclass(frozen=True, slots=True)
class RegressionRow:
    """A change of one operator on one device. ratio: head over base of its worst series, None where something broke.

    series: how many show it; of a suspicion, how many may. phase: contract.words.ChangePhase. branch: the one that head
    and base are on, the watched one first; None where no branch holds both, or none is known. culprit_sha: the commit
    that caused it, None while it is not known to be one. commits_between: commits of the branch between base and head.
    fixed_by_sha: the commit that ended it. merged_as_id: the change of the watched branch that it became when its
    branch was merged. merge_cause: contract.words.MergeCause, where the culprit is a merge commit. merged_base_sha,
    merged_head_sha: the narrowest range of the merged branch, of merged_commits commits. merged_culprit_sha: the commit
    of the merged branch that caused it, None while it is not known to be one.
    """

    id: int
    operator: str
    device_key: str
    direction: str
    verdict: str
    state: str
    ratio: float | None
    low: float | None
    high: float | None
    base_sha: str
    head_sha: str
    head_subject: str
    head_author: str
    commits_between: int
    series: int
    created_at: datetime
    decided_at: datetime | None
    cause: str = "history"
    assignee: str | None = None
    link: str | None = None
    due_on: date | None = None
    settled_at: datetime | None = None
    triaged_at: datetime | None = None
    phase: str = "suspected"
    branch: str | None = None
    culprit_sha: str | None = None
    fixed_by_sha: str | None = None
    merged_as_id: int | None = None
    merge_cause: str | None = None
    merged_base_sha: str | None = None
    merged_head_sha: str | None = None
    merged_commits: int | None = None
    merged_subject: str | None = None
    merged_author: str | None = None
    merged_culprit_sha: str | None = None


@dataclass(frozen=True, slots=True)
class RegressionSeriesRow:
    """base_ns, head_ns: the paired rounds of the comparison that decided it.

    base_status, head_status: those of its checks, where something broke; then message is what the failing one said, and
    replay does it again in a checkout.
    """

    series_id: int
    case: str
    variant: str
    metric: str
    verdict: str
    suspected_ratio: float | None
    ratio: float | None
    low: float | None
    high: float | None
    base_ns: list[float] = field(default_factory=list)
    head_ns: list[float] = field(default_factory=list)
    base_status: str | None = None
    head_status: str | None = None
    message: str = ""
    replay: str = ""


@dataclass(frozen=True, slots=True)
class NoteRow:
    author: str
    state: str
    note: str
    created_at: datetime
    changes: dict[str, Any] = field(default_factory=dict)
    """What was changed with it, as {"assignee": [before, after], …}."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A job that was to tell something about a change, and what it said.

    base_sha is the commit that head_sha was measured beside. rounds: of its longest comparison of a
    series of the change; 0 of a check.
    """

    job_id: int
    job_kind: str
    job_state: str
    purpose: str
    answer: str
    base_sha: str
    head_sha: str
    ratio: float | None
    low: float | None
    high: float | None
    message: str
    created_at: datetime
    answered_at: datetime | None
    rounds: int = 0
    merge_sha: str | None = None
    """The merge commit whose merged branch was searched; None for the commits of the range itself."""


@dataclass(frozen=True, slots=True)
class RegressionDetail:
    regression: RegressionRow
    repository: str
    series: list[RegressionSeriesRow]
    notes: list[NoteRow]
    compare_job_id: int | None
    base_trace_id: int | None
    head_trace_id: int | None
    replay: str
    """A command that measures the two commits beside each other again."""
    trials: list[TrialRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What history and comparisons say of a submission's commits.

    pending: how many of its jobs are not judged yet, plus how many suspicions wait for their comparison.
    regressions: confirmed changes, slower or faster, that begin at one of its commits.
    """

    pending: int
    regressions: list[RegressionRow]


NOBODY = "nobody"
"""Stands for an assignee where there is none."""
MOST_ROWS = 20_000
"""Rows that one file may hold."""

COMMITS_BETWEEN = f"""
CASE WHEN head.parent_sha = base.sha THEN 0
     ELSE greatest(coalesce({place_of("head.id")} - {place_of("base.id")}, head.ordinal - base.ordinal) - 1, 0) END
"""
"""SQL: commits of the branch between the ends of a change. A merge brings many ancestors and is one commit."""
IS_OPEN = "(regressions.verdict = 'confirmed' AND regressions.state IN ('new', 'acknowledged'))"
"""SQL: whether a change is confirmed, and neither evidence nor a person has closed it."""
IS_UNPAIRED = "(regressions.verdict = 'suspected' AND regressions.settled_at IS NOT NULL)"
"""SQL: whether a change is suspected and nothing can be measured for it, as its results come from elsewhere."""
PHASE = f"""
CASE WHEN {IS_UNPAIRED} THEN 'unpaired'
     WHEN regressions.verdict <> 'confirmed' THEN regressions.verdict
     WHEN regressions.state NOT IN ('new', 'acknowledged') THEN regressions.state
     WHEN regressions.settled_at IS NULL THEN 'bisecting'
     WHEN {COMMITS_BETWEEN} = 0 THEN 'culprit' ELSE 'confirmed' END
"""
"""SQL: contract.words.ChangePhase. While trials run the commit at the end of a range is not called the culprit."""
CULPRIT = f"""
CASE WHEN regressions.verdict = 'confirmed' AND regressions.settled_at IS NOT NULL AND {COMMITS_BETWEEN} = 0
     THEN head.sha END
"""
MERGED_CULPRIT = f"""
CASE WHEN regressions.merge_cause = '{MergeCause.BRANCH}' AND regressions.merged_commits = 1 THEN merged_head.sha END
"""
_BRANCH = """
(SELECT branches.name FROM branch_commits AS of_head JOIN branches ON branches.id = of_head.branch_id
 WHERE of_head.commit_id = head.id
   AND EXISTS (SELECT FROM branch_commits AS of_base JOIN branches AS holder ON holder.id = of_base.branch_id
               WHERE of_base.commit_id = base.id AND (holder.id = branches.id
                     OR (holder.is_watched AND of_base.place <= branches.fork_at)))
 ORDER BY branches.is_watched DESC, branches.id LIMIT 1)
"""

COLUMNS = f"""
regressions.id, operators.name AS operator, devices.key AS device_key, direction, verdict, state, ratio, low, high,
base.sha AS base_sha, head.sha AS head_sha, head.subject AS head_subject, head.author AS head_author,
{COMMITS_BETWEEN} AS commits_between,
(SELECT count(*) FROM regression_series AS shown WHERE shown.regression_id = regressions.id
   AND (regressions.verdict <> 'confirmed' OR shown.verdict = 'confirmed')) AS series,
regressions.created_at, decided_at, cause, assignee, link, due_on, settled_at, triaged_at, {PHASE} AS phase,
{_BRANCH} AS branch, {CULPRIT} AS culprit_sha,
(SELECT sha FROM commits WHERE commits.id = regressions.fixed_by_commit_id) AS fixed_by_sha, merged_as_id, merge_cause,
(SELECT sha FROM commits WHERE commits.id = regressions.merged_base_commit_id) AS merged_base_sha,
merged_head.sha AS merged_head_sha, merged_commits, merged_head.subject AS merged_subject,
merged_head.author AS merged_author, {MERGED_CULPRIT} AS merged_culprit_sha
"""
TABLES = """
regressions
JOIN operators ON operators.id = regressions.operator_id
JOIN devices ON devices.id = regressions.device_id
JOIN commits AS base ON base.id = regressions.base_commit_id
JOIN commits AS head ON head.id = regressions.head_commit_id
LEFT JOIN commits AS merged_head ON merged_head.id = regressions.merged_head_commit_id
"""
_REGRESSIONS = f"SELECT {COLUMNS} FROM {TABLES}"

# What broke comes before what got slower, which comes before what got faster; of each the largest factor first.
RANK = "CASE regressions.direction WHEN 'broken' THEN 2 WHEN 'slower' THEN 1 ELSE 0 END"
SEVERITY = "CASE WHEN regressions.ratio > 0 THEN greatest(regressions.ratio, 1 / regressions.ratio) ELSE 1 END"

ON_LINE = f"({on_line('head.id')} AND {on_line('base.id')})"
"""SQL: whether a change is one of the line, so that both of its ends lie on it."""
MATCHES = f"""
operators.repository_id = :repository_id
AND (CAST(:verdict AS text) IS NULL OR verdict = :verdict)
AND (CAST(:state AS text) IS NULL OR state = :state OR (:state = 'open' AND state IN ('new', 'acknowledged')))
AND (CAST(:direction AS text) IS NULL OR direction = :direction)
AND (CAST(:operator AS text) IS NULL OR operators.name = :operator)
AND (CAST(:device_key AS text) IS NULL OR devices.key = :device_key)
AND (CAST(:case_key AS text) IS NULL OR EXISTS (
    SELECT FROM regression_series AS member JOIN series ON series.id = member.series_id
    JOIN cases ON cases.id = series.case_id WHERE member.regression_id = regressions.id AND cases.key = :case_key))
AND (CAST(:assignee AS text) IS NULL OR coalesce(assignee, '{NOBODY}') = :assignee)
AND (CAST(:watcher AS text) IS NULL OR EXISTS (
    SELECT FROM regression_series AS member JOIN series ON series.id = member.series_id
    WHERE member.regression_id = regressions.id AND {is_watched("series.operator_id", "series.case_id")}))
AND (NOT :overdue OR (due_on < current_date AND state IN ('new', 'acknowledged')))
AND (CAST(:since AS bigint) IS NULL OR head.ordinal > :since)
AND (CAST(:until AS bigint) IS NULL OR base.ordinal < :until)
AND {ON_LINE}
"""


@dataclass(frozen=True, slots=True)
class Question:
    """Which regressions are asked for; None asks for all.

    state: one of Triage, or "open" for those that are new or acknowledged. assignee: a name, or NOBODY. since, until:
    ordinals of commits; the change lies, or may lie, behind the first one and not behind the second. line: whose
    changes; those of all branches by default. watcher: a person who watches a case that shows the change.
    """

    verdict: str | None = "confirmed"
    state: str | None = None
    direction: str | None = None
    operator: str | None = None
    device_key: str | None = None
    case_key: str | None = None
    assignee: str | None = None
    overdue: bool = False
    watcher: str | None = None
    since: int | None = None
    until: int | None = None
    line: HistoryLine = ALL_COMMITS

    @property
    def parameters(self) -> dict[str, Any]:
        columns = asdict(self)
        del columns["line"]
        return columns | self.line.parameters


def list_regressions(
    session: Session, repository_id: int, question: Question, before: int | None = None, limit: int = 50
) -> Page[RegressionRow]:
    """What the question asks for, worst first; `before` is `next_before` of the page before."""
    size, skip = max(1, min(limit, MAX_PAGE)), before or 0
    items = _worst_first(session, repository_id, question, size + 1, skip)
    return Page(items[:size], skip + size if len(items) > size else None)


def list_all_regressions(session: Session, repository_id: int, question: Question) -> list[RegressionRow]:
    """The same without pages, for files; at most MOST_ROWS."""
    return _worst_first(session, repository_id, question, MOST_ROWS, 0)


def _worst_first(
    session: Session, repository_id: int, question: Question, limit: int, skip: int
) -> list[RegressionRow]:
    sql = f"""
    {_REGRESSIONS} WHERE {MATCHES}
    ORDER BY {RANK} DESC, {SEVERITY} DESC, regressions.id DESC LIMIT :limit OFFSET :skip
    """
    return fetch(
        session, RegressionRow, sql, repository_id=repository_id, limit=limit, skip=skip, **question.parameters
    )


def deciding_rounds(series_id: str) -> str:
    """SQL that joins `compared`: the paired rounds of a series in the comparison that decided its regression."""
    return f"""
LEFT JOIN LATERAL (
    SELECT base_ns, head_ns FROM comparisons JOIN runs ON runs.id = comparisons.run_id
    WHERE comparisons.series_id = {series_id} AND runs.job_id = regressions.compare_job_id
    ORDER BY comparisons.id DESC LIMIT 1
) AS compared ON true
"""


# What failed is told by the newest result at the head that is not right.
_SERIES = f"""
SELECT regression_series.series_id, cases.key AS case, variants.name AS variant, series.metric,
       regression_series.verdict, suspected_ratio, regression_series.ratio, regression_series.low,
            regression_series.high,
       coalesce(compared.base_ns, '[]') AS base_ns, coalesce(compared.head_ns, '[]') AS head_ns,
       base_status, head_status, coalesce(failed.message, '') AS message, failed.kind, failed.spec
FROM regression_series
JOIN regressions ON regressions.id = regression_series.regression_id
JOIN series ON series.id = regression_series.series_id
JOIN cases ON cases.id = series.case_id
JOIN variants ON variants.id = series.variant_id
{deciding_rounds("regression_series.series_id")}
LEFT JOIN LATERAL (
    SELECT results.message, results.kind, jobs.spec
    FROM results JOIN runs ON runs.id = results.run_id JOIN jobs ON jobs.id = runs.job_id
    WHERE regressions.direction = 'broken' AND results.commit_id = regressions.head_commit_id
      AND results.variant_id = series.variant_id AND results.case_id = series.case_id
           AND results.device_id = series.device_id
      AND results.status NOT IN ('ok', 'unsupported', 'skipped') AND results.kind <> 'compare'
    ORDER BY results.id DESC LIMIT 1
) AS failed ON true
WHERE regression_series.regression_id = :id ORDER BY regression_series.verdict <> 'confirmed', series.id
"""

_NOTES = "SELECT author, state, note, created_at, changes FROM regression_notes WHERE regression_id = :id ORDER BY id"

_TRIALS = """
SELECT trials.job_id, jobs.kind AS job_kind, jobs.state AS job_state, purpose, answer, base.sha AS base_sha,
     head.sha AS head_sha,
       ratio, low, high, trials.message, trials.created_at, answered_at,
       coalesce((SELECT max(jsonb_array_length(base_ns)) FROM comparisons JOIN runs ON runs.id = comparisons.run_id
                 WHERE runs.job_id = trials.job_id AND comparisons.series_id IN (
                     SELECT series_id FROM regression_series AS member WHERE member.regression_id = :id)), 0) AS rounds,
       (SELECT sha FROM commits WHERE commits.id = trials.merge_commit_id) AS merge_sha
FROM trials
JOIN jobs ON jobs.id = trials.job_id
JOIN commits AS base ON base.id = trials.base_commit_id
JOIN commits AS head ON head.id = trials.head_commit_id
WHERE regression_id = :id ORDER BY trials.id
"""

_LINKS = """
SELECT repositories.name AS repository, devices.kind AS device_kind, compare_job_id, base_trace_id, head_trace_id,
       definitions_url, definitions_sha
FROM regressions JOIN operators ON operators.id = regressions.operator_id
JOIN repositories ON repositories.id = operators.repository_id
JOIN devices ON devices.id = regressions.device_id WHERE regressions.id = :id
"""


def read_regression(session: Session, regression_id: int) -> RegressionDetail | None:
    """One change, whatever its verdict, with the series that show it and what people wrote; None when it is unknown."""
    row = fetch_one(session, RegressionRow, _REGRESSIONS + "WHERE regressions.id = :id", id=regression_id)
    if row is None:
        return None
    links = dict(session.execute(text(_LINKS), {"id": regression_id}).mappings().one())
    device_kind = links.pop("device_kind")
    definitions = definitions_version(links.pop("definitions_url"), links.pop("definitions_sha"))

    def member(kind: str | None, spec: JobSpec | None, **fields: Any) -> RegressionSeriesRow:
        if kind is None or spec is None:
            return RegressionSeriesRow(replay="", **fields)
        one_cell = spec.of_cell(fields["variant"], fields["case"])
        command = one_cell.to_command(kind, row.head_sha, row.operator, device_kind, definitions=definitions)
        return RegressionSeriesRow(replay=shlex.join(command), **fields)

    series = fetch(session, member, _SERIES, id=regression_id)
    kind, base = ("check", None) if row.direction == "broken" else ("compare", row.base_sha)
    variants, cases = (list(dict.fromkeys(getattr(member, name) for member in series)) for name in ("variant", "case"))
    command = JobSpec(variants=variants, cases=cases).to_submit_command(
        links["repository"], kind, row.head_sha, row.operator, row.device_key, base
    )
    notes = fetch(session, NoteRow, _NOTES, id=regression_id)
    trials = fetch(session, TrialRow, _TRIALS, id=regression_id)
    return RegressionDetail(
        regression=row, series=series, notes=notes, replay=shlex.join(command), trials=trials, **links
    )


# A change belongs to a submission that measured the commit it begins at, on the same device; that measured the newer
# end of the range in which it was first suspected; or whose commit it lies behind, seen from the commit that the
# submission is held against.
_OF_SUBMISSION = f"""
regressions.id IN (
    SELECT own.id FROM jobs
    JOIN submissions ON submissions.id = jobs.submission_id
    JOIN commits AS measured ON measured.id = jobs.commit_id
    LEFT JOIN commits AS held_against ON held_against.id = submissions.base_commit_id
    JOIN regressions AS own ON own.operator_id = jobs.operator_id AND own.device_id = jobs.device_id
    JOIN commits AS begun ON begun.id = own.head_commit_id
    WHERE jobs.submission_id = :submission_id AND jobs.kind IN ('bench', 'check')
      AND (own.head_commit_id = jobs.commit_id
           OR (begun.ordinal > held_against.ordinal AND begun.ordinal <= measured.ordinal
               AND {share_line("begun.id", "measured.id")})
           OR (SELECT head_commit_id FROM trials WHERE regression_id = own.id
                ORDER BY trials.id LIMIT 1) = jobs.commit_id))
"""


def read_verdicts(session: Session, submission_id: int) -> Verdicts:
    """What is known of a submission's commits, and how much is still to be decided; a range that is only narrowed keeps
    nobody waiting."""
    sql = f"""
    SELECT (SELECT count(*) FROM jobs WHERE submission_id = :submission_id AND kind IN ('bench', 'check')
         AND judged_at IS NULL)
         + (SELECT count(*) FROM regressions WHERE verdict = 'suspected' AND settled_at IS NULL AND {_OF_SUBMISSION})
    """
    confirmed = f"""
    {_REGRESSIONS} WHERE verdict = 'confirmed' AND {_OF_SUBMISSION}
    ORDER BY {RANK} DESC, {SEVERITY} DESC, regressions.id
    """
    return Verdicts(
        fetch_scalar(session, sql, submission_id=submission_id),
        fetch(session, RegressionRow, confirmed, submission_id=submission_id),
    )
