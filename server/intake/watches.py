"""Checks and stores what a person watches."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from warpwatch.db.reads.code import RepositoryRow, find_operator, list_cases
from warpwatch.db.reads.query import Session
from warpwatch.db.watches import watch
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.intake.triage import MAX_NAME

REFUSED = "not watched: some fields are not valid"


class WatchRequest(BaseModel):
    """An operator, or one case of it, and who watches it."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    repository: str = Field(min_length=1, max_length=100)
    person: str = Field(min_length=1, max_length=MAX_NAME, examples=["ann"])
    operator: str = Field(min_length=1, max_length=200)
    case: str | None = Field(default=None, max_length=500, description="Key of a case. Default: all cases.")


def create_watch(session: Session, repository: RepositoryRow, body: WatchRequest) -> int:
    """The id of the watch, also where the person watches this already. Problem for an unknown operator or case."""
    operator = find_operator(session, repository.id, body.operator)
    if operator is None:
        raise _refusal("operator", f"{repository.name} has no operator {body.operator!r}")
    cases = {case.key: case.id for case in list_cases(session, operator.id)}
    if body.case and body.case not in cases:
        raise _refusal("case", f"operator {operator.name} has no case {body.case!r}")
    return watch(session, body.person, operator.id, cases[body.case] if body.case else None)


def _refusal(field: str, message: str) -> Problem:
    error = FieldError(field=field, message=message, remedy="check the spelling, or open it from the overview")
    return Problem(422, REFUSED, [error])
