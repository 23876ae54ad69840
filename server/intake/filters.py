"""The filters of regressions that page, JSON and CSV share, and the commits or days that bound them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, get_args

from fastapi import Depends, Query
from pydantic import BeforeValidator

from warpwatch import git
from warpwatch.contract.words import ChangeDirection, InboxTab, Verdict
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.events import find_ordinal, ordinal_at
from warpwatch.db.reads.lines import ALL_COMMITS, read_line
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import NOBODY, RegressionFilter
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.settings import Settings

StateFilter = Literal["open", "new", "acknowledged", "accepted", "fixed", "reverted", "invalid", "any"]
STATE_FILTERS: tuple[str, ...] = get_args(StateFilter)
DIRECTIONS: tuple[str, ...] = tuple(ChangeDirection)

# Without JavaScript a form also sends its empty fields.
BLANK = BeforeValidator(lambda value: value or None)
_Bound = Annotated[
    str | None,
    Query(max_length=200, description="A SHA, branch, tag, or a day such as 2026-03-31."),
]
_Name = Annotated[str | None, Query(max_length=200)]
ALL_BRANCHES = "*"
"""Stands for all branches; no branch can have this name."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_SHA = re.compile(r"[0-9a-f]{4,40}")


class _Filters:
    """The filters of a list of regressions."""

    def __init__(
        self,
        tab: Annotated[
            InboxTab | None, BLANK, Query(description="Each regression is in one; `closed` is all that is over.")
        ] = None,
        verdict: Annotated[
            Verdict | None, BLANK, Query(description="Default: confirmed, or all verdicts of the tab.")
        ] = None,
        state: Annotated[StateFilter | None, BLANK, Query(description="`open` is new or acknowledged.")] = None,
        direction: Annotated[ChangeDirection | None, BLANK, Query()] = None,
        operator: _Name = None,
        device: _Name = None,
        case: Annotated[str | None, Query(max_length=500, description="Key of a case that shows the change.")] = None,
        assignee: Annotated[str | None, Query(max_length=200, description=f"`{NOBODY}` for unassigned.")] = None,
        watcher: Annotated[
            str | None, Query(max_length=200, description="A person who watches an affected case.")
        ] = None,
        overdue: Annotated[
            bool, BeforeValidator(lambda value: value or False), Query(description="Open, and due before today.")
        ] = False,
        since: Annotated[_Bound, Query(alias="from")] = None,
        until: Annotated[_Bound, Query(alias="to")] = None,
        branch: Annotated[
            str | None,
            Query(max_length=250, description=f"`{ALL_BRANCHES}` for all. Default: the watched branch."),
        ] = None,
    ) -> None:
        self.tab, self.verdict, self.state, self.direction = tab, verdict, state, direction
        self.operator, self.device, self.case, self.assignee = operator, device, case, assignee
        self.overdue, self.watcher = overdue, watcher
        self.since, self.until, self.branch = since, until, branch or None

    def query_parameters(self, **changes: Any) -> dict[str, Any]:
        """The filters as query parameters, with `changes` applied."""
        given = {
            "tab": self.tab,
            "verdict": self.verdict,
            "state": self.state,
            "direction": self.direction,
            "operator": self.operator,
            "device": self.device,
            "case": self.case,
            "assignee": self.assignee,
            "watcher": self.watcher,
            "overdue": "true" if self.overdue else None,
            "from": self.since,
            "to": self.until,
            "branch": self.branch,
        }
        return given | changes


Filters = Annotated[_Filters, Depends(_Filters)]


@dataclass(frozen=True, slots=True)
class ResolvedFilters:
    """The filters as the database takes them; errors lists the fields that cannot be used."""

    question: RegressionFilter
    errors: list[FieldError] = field(default_factory=list)


def resolve(session: Session, settings: Settings, repository: RepositoryRow, filters: _Filters) -> ResolvedFilters:
    """The filters with their commits resolved, in the database first, then in the mirror."""
    errors: list[FieldError] = []

    def ordinal(name: str, text: str | None, *, end: bool) -> int | None:
        if not text or not text.strip():
            return None
        try:
            return _ordinal(session, settings, repository, text.strip(), end=end)
        except (git.GitError, ValueError) as error:
            remedy = "use a SHA, a branch, a tag, or a day such as 2026-03-31"
            errors.append(FieldError(field=name, message=str(error), remedy=remedy))
            return None

    line = ALL_COMMITS if filters.branch == ALL_BRANCHES else read_line(session, repository.id, filters.branch)
    if line is None:
        remedy = f"use a branch with submitted commits, or {ALL_BRANCHES} for all"
        errors.append(FieldError(field="branch", message=f"there is no branch {filters.branch!r}", remedy=remedy))
    question = RegressionFilter(
        line=line or ALL_COMMITS,
        tab=filters.tab,
        verdict=filters.verdict or (None if filters.tab else Verdict.CONFIRMED),
        state=None if filters.state == "any" else filters.state,
        direction=filters.direction,
        operator=filters.operator or None,
        device_key=filters.device or None,
        case_key=filters.case or None,
        assignee=filters.assignee or None,
        overdue=filters.overdue,
        watcher=filters.watcher or None,
        since=ordinal("from", filters.since, end=False),
        until=ordinal("to", filters.until, end=True),
    )
    return ResolvedFilters(question, errors)


def resolve_or_422(
    session: Session, settings: Settings, repository: RepositoryRow, filters: _Filters
) -> RegressionFilter:
    """The filters as the database takes them; Problem 422 names every field at fault."""
    resolved = resolve(session, settings, repository, filters)
    if resolved.errors:
        raise Problem(422, "some filters are not valid", resolved.errors)
    return resolved.question


def _ordinal(session: Session, settings: Settings, repository: RepositoryRow, text: str, *, end: bool) -> int:
    """The ordinal of a commit, or of the last commit before a day (of that day when it ends a range)."""
    if _DAY.fullmatch(text):
        try:
            midnight = datetime.fromisoformat(text).replace(tzinfo=UTC) + timedelta(days=end)
        except (ValueError, OverflowError):
            raise ValueError(f"{text!r} is not a date") from None
        return ordinal_at(session, repository.id, midnight)
    ordinal = find_ordinal(session, repository.id, text) if _SHA.fullmatch(text) else None
    if ordinal is not None:
        return ordinal
    mirror = git.mirror_path(repository.url, settings.home)
    if not mirror.exists():
        raise ValueError(f"{text!r} is not a measured commit, and {repository.name} was not fetched yet")
    sha = git.resolve(mirror, text)
    ordinal = find_ordinal(session, repository.id, sha)
    return git.describe(mirror, sha).ordinal if ordinal is None else ordinal
