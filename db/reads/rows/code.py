"""The code that is measured: repositories, commits, operators, cases."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class RepositoryRow:
    """branch: the one that is watched, None for the default one. is_example: its history was shipped with Warpwatch.

    The secret that signs webhooks is never returned, only whether one is set.
    """

    id: int
    name: str
    url: str
    commits: int
    branch: str | None = None
    status_url: str | None = None
    has_webhook_secret: bool = False
    has_status_token: bool = False
    is_example: bool = False


@dataclass(frozen=True, slots=True)
class CommitRow:
    """points: timings.

    wrong, broken: variants on a case and device that were wrong, or ended in another status than ok, wrong, unsupported
    or skipped. unchanged: operators that were not measured, because their sources are those of a commit that was.
    """

    id: int
    sha: str
    parent_sha: str | None
    ordinal: int
    author: str
    authored_at: datetime
    subject: str
    points: int = 0
    wrong: int = 0
    broken: int = 0
    unchanged: int = 0


@dataclass(frozen=True, slots=True)
class UnchangedRow:
    """An operator that was not measured at a commit, because its sources are those of the commit `since`, whose id is
    `since_id`."""

    operator: str
    since: str
    since_id: int


@dataclass(frozen=True, slots=True)
class OperatorRow:
    id: int
    name: str
    summary: str
    variants: list[str]
    cases: list[str]


@dataclass(frozen=True, slots=True)
class CaseRow:
    id: int
    key: str
    sizes: dict[str, Any]
    precision: str
    direction: str
    layout: str
    suites: list[str]
    flops: int
    bytes: int
