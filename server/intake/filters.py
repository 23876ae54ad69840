"""What people ask of regressions: the filters that page, JSON and CSV share, and the commits or days that bound them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, get_args

from fastapi import Depends, Query
from pydantic import BeforeValidator

from warpwatch import git
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.events import find_ordinal, ordinal_at
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.regressions import NOBODY, Question
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.settings import Settings

VerdictName = Literal["suspected", "confirmed", "dismissed", "unsure"]
State = Literal["new", "acknowledged", "accepted", "fixed", "invalid"]
StateFilter = Literal["open", "new", "acknowledged", "accepted", "fixed", "invalid", "any"]
Direction = Literal["slower", "faster", "broken"]
STATE_FILTERS: tuple[str, ...] = get_args(StateFilter)
DIRECTIONS: tuple[str, ...] = get_args(Direction)

# A form without scripts sends its blank choices too.
_OrBlank = BeforeValidator(lambda value: value or None)
_Bound = Annotated[
    str | None,
    Query(max_length=200, description="A commit's id, a branch, a tag, or a day such as 2026-03-31."),
]
_Name = Annotated[str | None, Query(max_length=200)]
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_SHA = re.compile(r"[0-9a-f]{4,40}")


class _Filters:
    """Everything that a list of regressions can be narrowed down by."""

    def __init__(
        self,
        verdict: VerdictName = "confirmed",
        state: Annotated[StateFilter | None, _OrBlank, Query(description="`open` is new or acknowledged.")] = None,
        direction: Annotated[Direction | None, _OrBlank, Query()] = None,
        operator: _Name = None,
        device: _Name = None,
        assignee: Annotated[str | None, Query(max_length=200, description=f"`{NOBODY}` where nobody has it.")] = None,
        overdue: Annotated[
            bool, BeforeValidator(lambda value: value or False), Query(description="Open, and due before today.")
        ] = False,
        since: Annotated[_Bound, Query(alias="from")] = None,
        until: Annotated[_Bound, Query(alias="to")] = None,
    ) -> None:
        self.verdict, self.state, self.direction = verdict, state, direction
        self.operator, self.device, self.assignee, self.overdue = operator, device, assignee, overdue
        self.since, self.until = since, until

    def asked(self, **changes: Any) -> dict[str, Any]:
        """The filters as an address has them, with some of them changed."""
        given = {
            "verdict": None if self.verdict == "confirmed" else self.verdict,
            "state": self.state,
            "direction": self.direction,
            "operator": self.operator,
            "device": self.device,
            "assignee": self.assignee,
            "overdue": "true" if self.overdue else None,
            "from": self.since,
            "to": self.until,
        }
        return given | changes


Filters = Annotated[_Filters, Depends(_Filters)]


@dataclass(frozen=True, slots=True)
class ResolvedFilters:
    """A question that can be asked of the database; errors names the fields that could not be used."""

    question: Question
    errors: list[FieldError] = field(default_factory=list)


def resolve(session: Session, settings: Settings, repository: RepositoryRow, filters: _Filters) -> ResolvedFilters:
    """The filters with their commits looked up, in the database first and then in the mirror."""
    errors: list[FieldError] = []

    def ordinal(name: str, text: str | None, *, end: bool) -> int | None:
        if not text or not text.strip():
            return None
        try:
            return _ordinal(session, settings, repository, text.strip(), end=end)
        except (git.GitError, ValueError) as error:
            remedy = "use a commit's id, a branch, a tag, or a day such as 2026-03-31"
            errors.append(FieldError(field=name, message=str(error), remedy=remedy))
            return None

    question = Question(
        verdict=filters.verdict,
        state=None if filters.state == "any" else filters.state,
        direction=filters.direction,
        operator=filters.operator or None,
        device_key=filters.device or None,
        assignee=filters.assignee or None,
        overdue=filters.overdue,
        since=ordinal("from", filters.since, end=False),
        until=ordinal("to", filters.until, end=True),
    )
    return ResolvedFilters(question, errors)


def resolve_or_422(session: Session, settings: Settings, repository: RepositoryRow, filters: _Filters) -> Question:
    found = resolve(session, settings, repository, filters)
    if found.errors:
        raise Problem(422, "some filters cannot be used; see `errors`", found.errors)
    return found.question


def _ordinal(session: Session, settings: Settings, repository: RepositoryRow, text: str, *, end: bool) -> int:
    """Where a commit stands in history, or the last one before a day (of a day, where it ends a range)."""
    if _DAY.fullmatch(text):
        try:
            midnight = datetime.fromisoformat(text).replace(tzinfo=UTC) + timedelta(days=end)
        except (ValueError, OverflowError):
            raise ValueError(f"{text!r} is no day") from None
        return ordinal_at(session, repository.id, midnight)
    known = find_ordinal(session, repository.id, text) if _SHA.fullmatch(text) else None
    if known is not None:
        return known
    mirror = git.mirror_path(repository.url, settings.home)
    if not mirror.exists():
        raise ValueError(f"{text!r} is no measured commit, and nothing was fetched of {repository.name} yet")
    sha = git.resolve(mirror, text)
    known = find_ordinal(session, repository.id, sha)
    return git.describe(mirror, sha).ordinal if known is None else known
