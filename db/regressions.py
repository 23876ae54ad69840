"""Regressions: changes that history suggested and measuring decided."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from typing import Any, NamedTuple

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert_into
from sqlalchemy.orm import Session

from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Cause, ChangeDirection, InboxTab, MergeCause, Verdict
from warpwatch.db.environment_changes import EnvironmentStep, list_regression_steps
from warpwatch.db.errors import NotFoundError
from warpwatch.db.live import announce
from warpwatch.db.models import RegressionRecord, RegressionSeriesRecord
from warpwatch.db.reads.code import definitions_version
from warpwatch.db.reads.lines import ALL_COMMITS, HistoryLine, on_line, place_of, share_line
from warpwatch.db.reads.query import MAX_PAGE, SIGNAL, Page, fetch, fetch_one, fetch_scalar
from warpwatch.db.watches import is_watched


@dataclass(frozen=True, slots=True)
class RegressionRow:
    """A change of one operator on one device. ratio: head over base of its worst series, None where something broke.

    series: how many show it; of a suspicion, how many may. phase: contract.words.ChangePhase. branch: the one that head
    and base are on, the watched one first; None where no branch holds both, or none is known. culprit_sha: the commit
    that caused it, None while it is not known to be one. commits_between: commits of the branch between base and head.
    fixed_by_sha: the commit that ended it. merged_as_id: the change of the watched branch that it became when its
    branch was merged. merge_cause: contract.words.MergeCause, where the culprit is a merge commit. merged_base_sha,
    merged_head_sha: the narrowest range of the merged branch, of merged_commits commits. merged_culprit_sha: the commit
    of the merged branch that caused it, None while it is not known to be one. left_ratio: what later changes left of it
    at its worst series still open, None while nothing was undone. fixed_series: how many of its series are fixed, and
    partly_fixed_by_sha by which commit, while others still show it. can_confirm: whether a trial can still decide it.
    signal: contract.words.Signal of its worst series, None where the cell of that has one alone. other_ratio: head over
    base of the worst series of the other signal that shows it, too.
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
    left_ratio: float | None = None
    fixed_series: int = 0
    partly_fixed_by_sha: str | None = None
    can_confirm: bool = True
    signal: str | None = None
    other_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class RegressionSeriesRow:
    """signal: contract.words.Signal; None where its cell has one alone. base_ns, head_ns: the paired rounds of the
    comparison that decided it. left_ratio: what later changes left of it; fixed_by_sha: the commit that ended it for
    this series.

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
    left_ratio: float | None = None
    fixed_by_sha: str | None = None
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class NoteRow:
    author: str
    state: str
    note: str
    created_at: datetime
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields that were changed with the note, as {"assignee": [before, after], …}."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A job that was to tell something about a change, and what it said.

    base_sha is the commit that head_sha was measured beside. rounds: of the series of the change that its ratio is of;
    0 of a check.
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
    metric: str | None = None
    """Of the times that its ratio is of."""


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
    steps: list[EnvironmentStep] = field(default_factory=list)
    """What code and toolchain each did, where the environment changed between both commits."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts of history and comparisons on a submission's commits.

    pending: number of the submission's jobs that are not judged yet, plus suspicions that wait for a comparison.
    regressions: confirmed changes, slower or faster, that begin at one of the submission's commits.
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
IS_SUSPECTED = "(regressions.verdict = 'suspected' AND regressions.state IN ('new', 'acknowledged'))"
"""SQL: whether history saw a change that no trial decided, and nobody closed it."""
IS_UNPAIRED = "(regressions.verdict = 'suspected' AND regressions.settled_at IS NOT NULL)"
"""SQL: whether a change is suspected and nothing can be measured for it, as its results come from elsewhere."""
SUPERSEDED = "regressions.state = 'invalid' AND regressions.triaged_at IS NULL"
"""Regressions that the server itself called invalid: the wider range of another regression, or the same change."""
IN_TAB = {
    InboxTab.OPEN: f"({IS_OPEN} AND regressions.direction <> 'faster')",
    InboxTab.SUSPECTED: IS_SUSPECTED,
    InboxTab.IMPROVEMENTS: f"({IS_OPEN} AND regressions.direction = 'faster')",
    InboxTab.CLOSED: f"""
    (NOT ({SUPERSEDED}) AND (regressions.verdict IN ('dismissed', 'unsure')
                             OR regressions.state NOT IN ('new', 'acknowledged')))
    """,
}
"""SQL: whether a tab of the inbox has a regression. What is superseded is in none."""
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
_HAS_WORKER = """
EXISTS (SELECT FROM devices AS measured LEFT JOIN workers ON workers.device_id = measured.id AND stopped_at IS NULL
        WHERE measured.id = regressions.device_id AND (measured.is_elastic OR workers.id IS NOT NULL))
"""
CAN_CONFIRM = f"(regressions.verdict = 'suspected' AND regressions.settled_at IS NULL AND {_HAS_WORKER})"
"""SQL: whether a trial can still decide a suspicion: its results are not imported, and its device has a worker."""
_BRANCH = """
(SELECT branches.name FROM branch_commits AS of_head JOIN branches ON branches.id = of_head.branch_id
 WHERE of_head.commit_id = head.id
   AND EXISTS (SELECT FROM branch_commits AS of_base JOIN branches AS holder ON holder.id = of_base.branch_id
               WHERE of_base.commit_id = base.id AND (holder.id = branches.id
                     OR (holder.is_watched AND of_base.place <= branches.fork_at)))
 ORDER BY branches.is_watched DESC, branches.id LIMIT 1)
"""

WORST_SIGNAL = f"""
(SELECT {SIGNAL} FROM (
    SELECT series_id FROM regression_series AS member
    WHERE member.regression_id = regressions.id AND regressions.direction <> 'broken'
    ORDER BY abs(coalesce(member.left_ratio, member.ratio, member.suspected_ratio)
                 - coalesce(regressions.left_ratio, regressions.ratio)), member.series_id LIMIT 1
 ) AS worst JOIN series ON series.id = worst.series_id)
"""
"""SQL: contract.words.Signal of the series that a regression is named by."""
OTHER_RATIO = f"""
(SELECT member.ratio FROM regression_series AS member JOIN series ON series.id = member.series_id
 WHERE member.regression_id = regressions.id AND member.verdict = 'confirmed' AND member.ratio > 0
   AND member.fixed_by_commit_id IS NULL AND {SIGNAL} <> {WORST_SIGNAL}
 ORDER BY abs(ln(member.ratio)) DESC LIMIT 1)
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
merged_head.author AS merged_author, {MERGED_CULPRIT} AS merged_culprit_sha, left_ratio,
(SELECT count(*) FROM regression_series AS fixed WHERE fixed.regression_id = regressions.id
   AND fixed.fixed_by_commit_id IS NOT NULL) AS fixed_series,
(SELECT sha FROM commits WHERE commits.id = regressions.partly_fixed_by_commit_id) AS partly_fixed_by_sha,
{CAN_CONFIRM} AS can_confirm, {WORST_SIGNAL} AS signal, {OTHER_RATIO} AS other_ratio
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
SEVERITY = """
CASE WHEN regressions.left_ratio IS NOT NULL THEN regressions.left_ratio
     WHEN regressions.ratio > 0 THEN greatest(regressions.ratio, 1 / regressions.ratio) ELSE 1 END
"""
"""SQL: the factor that is left of a change."""

ON_LINE = f"({on_line('regressions.head_commit_id')} AND {on_line('regressions.base_commit_id')})"
"""SQL: whether a change is one of the line, so that both of its ends lie on it."""
_OF_REPOSITORY = "regressions.operator_id IN (SELECT id FROM operators WHERE repository_id = :repository_id)"
_WAITS = "regressions.state IN ('new', 'acknowledged')"
_CONDITIONS = {
    "verdict": "regressions.verdict = :verdict",
    "state": "regressions.state = :state",
    "direction": "regressions.direction = :direction",
    "operator": "regressions.operator_id IN (SELECT id FROM operators WHERE name = :operator)",
    "device_key": "regressions.device_id IN (SELECT id FROM devices WHERE key = :device_key)",
    "case_key": """
    EXISTS (SELECT FROM regression_series AS member JOIN series ON series.id = member.series_id
            JOIN cases ON cases.id = series.case_id
            WHERE member.regression_id = regressions.id AND cases.key = :case_key)
    """,
    "assignee": f"coalesce(regressions.assignee, '{NOBODY}') = :assignee",
    "watcher": f"""
    EXISTS (SELECT FROM regression_series AS member JOIN series ON series.id = member.series_id
            WHERE member.regression_id = regressions.id AND {is_watched("series.operator_id", "series.case_id")})
    """,
    "overdue": f"regressions.due_on < current_date AND {_WAITS}",
    "since": """
    regressions.head_commit_id IN (SELECT id FROM commits WHERE repository_id = :repository_id AND ordinal > :since)
    """,
    "until": """
    regressions.base_commit_id IN (SELECT id FROM commits WHERE repository_id = :repository_id AND ordinal < :until)
    """,
}


@dataclass(frozen=True, slots=True)
class RegressionFilter:
    """Which regressions are asked for; None asks for all.

    tab: one of InboxTab. state: one of Triage, or "open" for those that are new or acknowledged. assignee: a name, or
    NOBODY. since, until: ordinals of commits; the change lies, or may lie, behind the first one and not behind the
    second. line: whose changes; those of all branches by default. watcher: a person who watches a case that shows the
    change.
    """

    verdict: str | None = "confirmed"
    tab: str | None = None
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
    def condition(self) -> str:
        """SQL: whether a regression of the repository is asked for.

        It has no more than what is asked. Tests of all parameters for NULL hide from the plan of a prepared statement
        how few rows match, and it takes 60 ms instead of 8 for 5,000 regressions.
        """
        values = {name: getattr(self, name) for name in _CONDITIONS}
        asked = [_CONDITIONS[name] for name, value in values.items() if value is not None and value is not False]
        if self.state == "open":
            asked[asked.index(_CONDITIONS["state"])] = _WAITS
        if self.tab is not None:
            asked.append(IN_TAB[InboxTab(self.tab)])
        if self.line.line_id is not None:
            asked.append(ON_LINE)
        return " AND ".join([_OF_REPOSITORY, *asked])

    @property
    def parameters(self) -> dict[str, Any]:
        columns = asdict(self)
        del columns["line"]
        return columns | self.line.parameters


def list_regressions(
    session: Session, repository_id: int, question: RegressionFilter, before: int | None = None, limit: int = 50
) -> Page[RegressionRow]:
    """The regressions that match the question, worst first; `before` is `next_before` of the page before."""
    size, skip = max(1, min(limit, MAX_PAGE)), before or 0
    items = _worst_first(session, repository_id, question, size + 1, skip)
    return Page(items[:size], skip + size if len(items) > size else None)


def count_by_tab(session: Session, repository_id: int, question: RegressionFilter) -> dict[InboxTab, int]:
    """How many regressions are in each tab, whichever tab, verdict and state the question asks for."""
    any_tab = replace(question, tab=None, verdict=None, state=None)
    counts = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in IN_TAB.values())
    sql = f"SELECT {counts} FROM regressions WHERE {any_tab.condition}"
    row = session.execute(text(sql), any_tab.parameters | {"repository_id": repository_id}).one()
    return dict(zip(IN_TAB, row, strict=True))


def list_all_regressions(session: Session, repository_id: int, question: RegressionFilter) -> list[RegressionRow]:
    """The same without pages, for files; at most MOST_ROWS."""
    return _worst_first(session, repository_id, question, MOST_ROWS, 0)


def _worst_first(
    session: Session, repository_id: int, question: RegressionFilter, limit: int, skip: int
) -> list[RegressionRow]:
    order = f"ORDER BY {RANK} DESC, {SEVERITY} DESC, regressions.id DESC"
    # Only the rows of the page are joined, and get the columns that take a statement each.
    sql = f"""
    {_REGRESSIONS} WHERE regressions.id = ANY(ARRAY(
        SELECT regressions.id FROM regressions WHERE {question.condition} {order} LIMIT :limit OFFSET :skip))
    {order}
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
       base_status, head_status, coalesce(failed.message, '') AS message, failed.kind, failed.spec,
       regression_series.left_ratio,
       (SELECT sha FROM commits WHERE commits.id = regression_series.fixed_by_commit_id) AS fixed_by_sha,
       {SIGNAL} AS signal
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
       coalesce(measured.rounds, 0) AS rounds, measured.metric,
       (SELECT sha FROM commits WHERE commits.id = trials.merge_commit_id) AS merge_sha
FROM trials
JOIN jobs ON jobs.id = trials.job_id
JOIN commits AS base ON base.id = trials.base_commit_id
JOIN commits AS head ON head.id = trials.head_commit_id
LEFT JOIN LATERAL (
    SELECT jsonb_array_length(base_ns) AS rounds, series.metric
    FROM comparisons JOIN runs ON runs.id = comparisons.run_id
    JOIN series ON series.id = comparisons.series_id
    CROSS JOIN LATERAL (
        SELECT percentile_cont(0.5) WITHIN GROUP (
            ORDER BY CAST(head_round.ns AS float) / nullif(CAST(base_round.ns AS float), 0)) AS ratio
        FROM jsonb_array_elements_text(base_ns) WITH ORDINALITY AS base_round(ns, place)
        JOIN jsonb_array_elements_text(head_ns) WITH ORDINALITY AS head_round(ns, place) USING (place)
    ) AS paired
    WHERE runs.job_id = trials.job_id AND comparisons.series_id IN (
        SELECT series_id FROM regression_series AS member WHERE member.regression_id = :id)
    ORDER BY abs(paired.ratio - trials.ratio), jsonb_array_length(base_ns) DESC LIMIT 1
) AS measured ON true
WHERE regression_id = :id ORDER BY trials.id
"""

_LINKED = f"""
SELECT {COLUMNS}, repositories.name AS repository, devices.kind AS device_kind, compare_job_id, base_trace_id,
       head_trace_id, definitions_url, definitions_sha
FROM {TABLES} JOIN repositories ON repositories.id = operators.repository_id WHERE regressions.id = :id
"""
_LINKS = (
    "repository",
    "device_kind",
    "compare_job_id",
    "base_trace_id",
    "head_trace_id",
    "definitions_url",
    "definitions_sha",
)


def read_regression(session: Session, regression_id: int) -> RegressionDetail | None:
    """One change, whatever its verdict, with the series that show it and what people wrote; None when it is unknown."""
    columns = fetch_one(session, dict[str, Any], _LINKED, id=regression_id)
    if columns is None:
        return None
    links = {name: columns.pop(name) for name in _LINKS}
    row = RegressionRow(**columns)
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
    steps = list_regression_steps(session, regression_id)
    return RegressionDetail(
        regression=row, series=series, notes=notes, replay=shlex.join(command), trials=trials, steps=steps, **links
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
    """The verdicts on a submission's commits, and the number of open decisions; a range that is only narrowed is no
    open decision."""
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


@dataclass(frozen=True, slots=True)
class SeriesDecision:
    """Verdict of the comparison on one series; ratio is head over base, low and high its 95 % interval."""

    series_id: int
    verdict: Verdict
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


class SuspectedSeries(NamedTuple):
    """A series that a suspicion is about.

    ratio: head over base in history; statuses are those of checks, where something broke.
    """

    series_id: int
    ratio: float | None = None
    base_status: str | None = None
    head_status: str | None = None


def open_suspicion(
    s: Session,
    *,
    operator_id: int,
    device_id: int,
    base_commit_id: int,
    head_commit_id: int,
    direction: str,
    ratio: float | None,
    series: Iterable[tuple[int, float] | SuspectedSeries],
    cause: str = Cause.HISTORY,
) -> int | None:
    """The id of the suspected change; None when it is known already, with all of these series.

    direction: slower | faster | broken. ratio: head over base of the worst series. One that is known gets the series
    that are new in it, which are still to be decided then.
    """
    key = {
        "operator_id": operator_id,
        "device_id": device_id,
        "base_commit_id": base_commit_id,
        "head_commit_id": head_commit_id,
        "direction": direction,
    }
    statement = upsert_into(RegressionRecord).values(**key, ratio=ratio, cause=cause).on_conflict_do_nothing()
    is_new = s.scalar(statement.returning(RegressionRecord.id)) is not None
    regression = s.scalars(select(RegressionRecord).filter_by(**key).with_for_update()).one()
    members = [
        dict(zip(("series_id", "suspected_ratio", "base_status", "head_status"), SuspectedSeries(*item), strict=True))
        | {"regression_id": regression.id}
        for item in series
    ]
    if not add_members(s, members) and not is_new:
        return None
    regression.settled_at = None
    if regression.verdict != Verdict.CONFIRMED:
        regression.verdict = Verdict.SUSPECTED
    s.flush()
    announce(s, "regression")
    return regression.id


def add_members(s: Session, rows: list[dict[str, Any]]) -> int:
    """Adds series to a regression, those that it has already aside; returns how many were new."""
    if not rows:
        return 0
    statement = (
        upsert_into(RegressionSeriesRecord)
        .values(rows)
        .on_conflict_do_nothing()
        .returning(RegressionSeriesRecord.series_id)
    )
    return len(s.scalars(statement).all())


def attach_compare_job(s: Session, regression_id: int, job_id: int) -> None:
    """Remembers which job decides the suspicion."""
    lock(s, regression_id).compare_job_id = job_id
    s.flush()


def decide(
    s: Session,
    regression_id: int,
    verdict: Verdict,
    *,
    ratio: float | None = None,
    low: float | None = None,
    high: float | None = None,
    series: Sequence[SeriesDecision] = (),
    base_trace_id: int | None = None,
    head_trace_id: int | None = None,
) -> None:
    """Writes what the comparison said.

    Without a ratio the suspected one stays; deciding anew replaces the last decision.
    """
    regression = lock(s, regression_id)
    regression.verdict = Verdict(verdict)
    regression.ratio = regression.ratio if ratio is None else ratio
    regression.low, regression.high = low, high
    regression.base_trace_id, regression.head_trace_id = base_trace_id, head_trace_id
    regression.decided_at = func.now()
    s.flush()
    decide_series(s, regression_id, series)
    announce(s, "regression")


def decide_series(s: Session, regression_id: int, decisions: Iterable[SeriesDecision]) -> None:
    """Writes the verdicts on single series, while the whole is not decided yet."""
    for decision in decisions:
        key = {"regression_id": regression_id, "series_id": decision.series_id}
        values = {name: getattr(decision, name) for name in ("verdict", "ratio", "low", "high")}
        s.execute(update(RegressionSeriesRecord).filter_by(**key).values(values))


def lock(s: Session, regression_id: int) -> RegressionRecord:
    """The regression, of which one process at a time decides what becomes; NotFoundError when there is none."""
    statement = select(RegressionRecord).where(RegressionRecord.id == regression_id).with_for_update()
    regression = s.scalars(statement).one_or_none()
    if regression is None:
        raise NotFoundError(f"there is no regression {regression_id}")
    return regression


def settle(s: Session, regression_id: int) -> None:
    """Says that nothing is left to be measured for it."""
    lock(s, regression_id).settled_at = func.now()
    s.flush()
    announce(s, "regression")


def may_compare(s: Session, regression_id: int) -> bool:
    """Whether only imported results show a change, and its device has a worker that could compare both commits."""
    sql = f"""
    SELECT {IS_UNPAIRED} AND {IS_SUSPECTED} AND direction <> 'broken' AND {_HAS_WORKER}
           AND NOT EXISTS (SELECT FROM trials WHERE regression_id = :id)
    FROM regressions WHERE id = :id
    """
    return bool(fetch_scalar(s, sql, id=regression_id))


def list_unconfirmed(s: Session, submission_id: int) -> list[int]:
    """The changes that only imported results show and no comparison was asked for, of all that a submission of such
    results measured; none while one of its jobs has yet to be judged."""
    sql = f"""
    SELECT DISTINCT regressions.id FROM regressions
    JOIN jobs ON jobs.operator_id = regressions.operator_id AND jobs.device_id = regressions.device_id
    WHERE jobs.submission_id = :id AND {IS_UNPAIRED} AND {IS_SUSPECTED} AND direction <> 'broken'
          AND NOT EXISTS (SELECT FROM trials WHERE regression_id = regressions.id)
          AND NOT EXISTS (SELECT FROM jobs AS other WHERE other.submission_id = :id AND other.judged_at IS NULL)
    ORDER BY regressions.id
    """
    return list(s.scalars(text(sql), {"id": submission_id}))


def unsettle(s: Session, regression_id: int) -> None:
    """Says that something is to be measured for it again."""
    lock(s, regression_id).settled_at = None
    s.flush()


def move(s: Session, regression_id: int, base_commit_id: int, head_commit_id: int) -> int | None:
    """Gives it the narrower range of commits; the id of another regression that has this range already, and nothing is
    changed."""
    regression = lock(s, regression_id)
    other = _same(s, regression, base_commit_id, head_commit_id, regression.direction)
    if other is None:
        regression.base_commit_id, regression.head_commit_id = base_commit_id, head_commit_id
        s.flush()
        announce(s, "regression")
    return other


def name_merge(
    s: Session,
    regression_id: int,
    cause: MergeCause | None = None,
    merged_range: tuple[int, int] | None = None,
    commits: int | None = None,
) -> None:
    """Writes what of the merge commit at its head changed something; nothing where the head is no merge.

    merged_range: row ids of (last good, first bad) in the merged branch. commits: how many the range holds.
    """
    regression = lock(s, regression_id)
    regression.merge_cause = cause
    regression.merged_base_commit_id, regression.merged_head_commit_id = merged_range or (None, None)
    regression.merged_commits = commits
    s.flush()


def turn(s: Session, regression_id: int) -> bool:
    """Changes slower into faster or back, as the comparison says; False where the other direction has a regression of
    its own."""
    regression = lock(s, regression_id)
    direction = ChangeDirection.FASTER if regression.direction == ChangeDirection.SLOWER else ChangeDirection.SLOWER
    if _same(s, regression, regression.base_commit_id, regression.head_commit_id, direction) is not None:
        return False
    regression.direction = direction
    s.flush()
    return True


def copy_members(s: Session, source_id: int, target_id: int) -> None:
    """Adds the confirmed series of one regression to another that has the same cause, with what was found of them."""
    confirmed = select(RegressionSeriesRecord).filter_by(regression_id=source_id, verdict=Verdict.CONFIRMED)
    columns = ("series_id", "suspected_ratio", "base_status", "head_status", "verdict", "ratio", "low", "high")
    rows = [
        {name: getattr(row, name) for name in columns} | {"regression_id": target_id} for row in s.scalars(confirmed)
    ]
    add_members(s, rows)


def find_same(
    s: Session, operator_id: int, device_id: int, base_commit_id: int, head_commit_id: int, direction: str
) -> int | None:
    """The id of the regression with this range and direction."""
    same_key = select(RegressionRecord.id).filter_by(
        operator_id=operator_id,
        device_id=device_id,
        base_commit_id=base_commit_id,
        head_commit_id=head_commit_id,
        direction=direction,
    )
    return s.scalars(same_key).one_or_none()


def _same(
    s: Session, regression: RegressionRecord, base_commit_id: int, head_commit_id: int, direction: str
) -> int | None:
    """The id of another regression of the operator on the device, with this range and direction."""
    found = find_same(s, regression.operator_id, regression.device_id, base_commit_id, head_commit_id, direction)
    return found if found != regression.id else None
