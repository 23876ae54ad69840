"""Reads what there is to publish, with a digest of the data of each page, so that a page is made again only then."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.measurement import METRICS
from warpwatch.db.reads.lines import read_line


@dataclass(frozen=True, slots=True)
class SiteCommit:
    sha: str
    key: str


@dataclass(slots=True)
class SiteOperator:
    """cases: of each device, the cases with a time of its first metric, and the ids of their series."""

    name: str
    key: str
    device: str
    cases: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def first_case(self, device: str) -> str | None:
        return next(iter(self.cases.get(device, {})), None)


@dataclass(slots=True)
class SiteRepository:
    """A repository to publish. device: that its pages show first. devices: those that it was measured on. metrics: the
    first metric of each device. key: digest of all its data."""

    id: int
    name: str
    branch: str | None
    key: str
    device: str
    metrics: dict[str, str]
    devices: list[str]
    operators: dict[str, SiteOperator] = field(default_factory=dict)
    commits: list[SiteCommit] = field(default_factory=list)
    regressions: list[int] = field(default_factory=list)


_SERIES = """
SELECT operators.repository_id, operators.name, devices.key, devices.kind, series.metric, cases.key, series.id
FROM series JOIN operators ON operators.id = series.operator_id JOIN cases ON cases.id = series.case_id
JOIN devices ON devices.id = series.device_id
ORDER BY devices.kind <> 'cuda', devices.key, NOT EXISTS (SELECT FROM points WHERE series_id = series.id), cases.id,
         series.id
"""
_OPERATORS = """
SELECT repository_id, name, md5(concat(summary, found.*, asked.*, changed.facts, changed.series, trial.*))
FROM operators
LEFT JOIN (SELECT operator_id, count(*), max(id) FROM results GROUP BY operator_id) AS found
     ON found.operator_id = operators.id
LEFT JOIN (SELECT operator_id, count(*), count(judged_at), max(id) FROM jobs GROUP BY operator_id) AS asked
     ON asked.operator_id = operators.id
LEFT JOIN (
    SELECT operator_id, string_agg(regressions::text, '' ORDER BY id) AS facts, string_agg((
        SELECT string_agg(regression_series::text, '' ORDER BY series_id) FROM regression_series
        WHERE regression_id = regressions.id), '' ORDER BY id) AS series
    FROM regressions GROUP BY operator_id
) AS changed ON changed.operator_id = operators.id
LEFT JOIN (
    SELECT operator_id, count(*), max(trials.answered_at) FROM trials
    JOIN regressions ON regressions.id = trials.regression_id GROUP BY operator_id
) AS trial ON trial.operator_id = operators.id
ORDER BY name
"""
_COMMITS = """
SELECT repository_id, sha, md5(concat(
    author, subject, parent_sha, tags, counts, found.*, asked.*, traded.*, changed.facts, held.names))
FROM commits
LEFT JOIN (SELECT commit_id, count(*), max(id) FROM results GROUP BY commit_id) AS found ON found.commit_id = commits.id
LEFT JOIN (SELECT commit_id, count(*), max(id) FROM jobs GROUP BY commit_id) AS asked ON asked.commit_id = commits.id
LEFT JOIN (SELECT commit_id, count(*), max(id), max(accepted_at) FROM trades GROUP BY commit_id) AS traded
     ON traded.commit_id = commits.id
LEFT JOIN (
    SELECT commit_id, string_agg(name, ' ' ORDER BY branches.id) AS names
    FROM branch_commits JOIN branches ON branches.id = branch_id GROUP BY commit_id
) AS held ON held.commit_id = commits.id
LEFT JOIN (
    SELECT commit_id, string_agg(facts, '' ORDER BY id) AS facts FROM (
        SELECT id, regressions::text AS facts, unnest(ARRAY[
            base_commit_id, head_commit_id, fixed_by_commit_id, merged_head_commit_id]) AS commit_id
        FROM regressions) AS ends
    GROUP BY commit_id
) AS changed ON changed.commit_id = commits.id
ORDER BY ordinal, commits.id
"""
_REGRESSIONS = """
SELECT operators.repository_id, regressions.id FROM regressions JOIN operators ON operators.id = operator_id
ORDER BY regressions.id
"""


def read_site(session: Session) -> list[SiteRepository]:
    """Every repository that the session sees, in the order of registration."""
    rows = session.execute(text("SELECT id, name FROM repositories ORDER BY id")).all()
    found = {id_: SiteRepository(id_, name, read_line_name(session, id_), "", "", {}, []) for id_, name in rows}
    operators: dict[tuple[int, str], SiteOperator] = {}
    for repository_id, name, key in session.execute(text(_OPERATORS)):
        operators[repository_id, name] = found[repository_id].operators[name] = SiteOperator(name, key, "")
    for repository_id, name, device, kind, metric, case, number in session.execute(text(_SERIES)):
        row, operator = found[repository_id], operators[repository_id, name]
        row.device = row.device or device
        row.metrics[device] = METRICS[kind][0]
        operator.device = operator.device or device
        cases = operator.cases.setdefault(device, {})
        if metric == METRICS[kind][0]:
            cases.setdefault(case, []).append(number)
    for repository_id, sha, key in session.execute(text(_COMMITS)):
        found[repository_id].commits.append(SiteCommit(sha, key))
    for repository_id, number in session.execute(text(_REGRESSIONS)):
        found[repository_id].regressions.append(number)
    for row in found.values():
        row.devices = list(row.metrics) or [""]
        for operator in row.operators.values():
            operator.device = operator.device or row.device
            operator.cases = operator.cases or {operator.device: {}}
        keys = [*(operator.key for operator in row.operators.values()), *(commit.key for commit in row.commits)]
        row.key = hashlib.sha256("".join([row.name, *keys]).encode()).hexdigest()[:16]
    return list(found.values())


def read_line_name(session: Session, repository_id: int) -> str | None:
    """The watched branch, which pages show without being asked; None where the branches were never read."""
    line = read_line(session, repository_id)
    return line.name if line is not None else None
