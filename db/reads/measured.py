"""Reads what was asked for at earlier commits, so that what did not change since need not be measured again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy.orm import Session

from warpwatch.contract.spec import JobSpec
from warpwatch.db.reads.query import fetch

WINDOW = 500
"""Generations back that count; what is older is measured again."""

# A job that was itself left out is no measurement, and the one that it points to has the same sources.
_ASKED = """
SELECT DISTINCT ON (jobs.operator_id, jobs.device_id, jobs.kind)
       operators.name AS operator, jobs.device_id, jobs.kind, commits.sha, jobs.spec, jobs.definitions_sha
FROM commits
JOIN jobs ON jobs.commit_id = commits.id
JOIN operators ON operators.id = jobs.operator_id
WHERE commits.repository_id = :repository_id AND commits.ordinal BETWEEN :ordinal - :window AND :ordinal - 1
     AND commits.sha = ANY(CAST(:line AS text[]))
     AND jobs.state IN ('queued', 'running', 'done') AND (jobs.attempt > 0 OR jobs.state <> 'done')
ORDER BY jobs.operator_id, jobs.device_id, jobs.kind, commits.ordinal DESC, jobs.id DESC
"""

_REQUESTED = """
SELECT operators.name AS operator, jobs.device_id, jobs.kind, commits.sha, jobs.spec, jobs.definitions_sha
FROM commits JOIN jobs ON jobs.commit_id = commits.id JOIN operators ON operators.id = jobs.operator_id
WHERE commits.repository_id = :repository_id AND commits.sha = ANY(CAST(:shas AS text[]))
     AND jobs.state IN ('queued', 'running', 'done') AND (jobs.attempt > 0 OR jobs.state <> 'done')
ORDER BY jobs.id
"""


class JobSlot(NamedTuple):
    """Where jobs of a repository are alike but for their commit."""

    operator: str
    device_id: int
    kind: str


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A job's commit and specification, and the version of the definitions that it measured."""

    sha: str
    spec: JobSpec
    definitions_sha: str | None = None


def read_earlier_jobs(
    session: Session, repository_id: int, ordinal: int, line: Sequence[str]
) -> dict[JobSlot, EarlierJob]:
    """The nearest job before a commit that is to run or did, for every operator, device and kind of a repository.

    ordinal: of the commit. line: ids of the commits on its line of first parents. Without a point of its own a branch
    would end at an older commit, although another branch was measured with the same sources.
    """

    parameters = {"repository_id": repository_id, "ordinal": ordinal, "window": WINDOW, "line": list(line)}
    return dict(fetch(session, _earlier_job, _ASKED, **parameters))


def read_requested_jobs(
    session: Session, repository_id: int, shas: Sequence[str]
) -> dict[tuple[JobSlot, str], list[EarlierJob]]:
    """The jobs that are to run or did at these commits, by slot and id of the commit."""
    rows = fetch(session, _earlier_job, _REQUESTED, repository_id=repository_id, shas=list(shas))
    requested: dict[tuple[JobSlot, str], list[EarlierJob]] = {}
    for slot, job in rows:
        requested.setdefault((slot, job.sha), []).append(job)
    return requested


def _earlier_job(
    operator: str, device_id: int, kind: str, sha: str, spec: JobSpec, definitions_sha: str | None
) -> tuple[JobSlot, EarlierJob]:
    return JobSlot(operator, device_id, kind), EarlierJob(sha, spec, definitions_sha)
