"""Settings of a repository: watched branch, webhooks, commit statuses."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.registry import set_repository
from warpwatch.server.history.branches import follow_branches, has_branch
from warpwatch.server.http.problems import FieldError, Problem, documented
from warpwatch.server.http.service import Config, Db, database_of, repository_or_404, require_schema

router = APIRouter(tags=["code"])


def _web_address(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url.replace("{sha}", "0" * 40))
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("is not an http or https address without a password")
    return url


def _one_line(text: str | None) -> str | None:
    if text is not None and (not text.isprintable() or not text.isascii() or " " in text):
        raise ValueError("contains blanks or non-ASCII characters")
    return text


class RepositorySettings(BaseModel):
    """Omitted fields stay as they are; null removes a setting."""

    model_config = ConfigDict(extra="forbid")
    branch: str | None = Field(default=None, min_length=1, max_length=200, description="The watched branch.")
    webhook_secret: Annotated[str | None, AfterValidator(_one_line)] = Field(
        default=None,
        min_length=16,
        max_length=200,
        description="Secret that signs webhooks. The server never returns it.",
    )
    status_url: Annotated[str | None, AfterValidator(_web_address)] = Field(
        default=None,
        max_length=1000,
        description="URL for commit statuses; {sha} stands for the commit.",
        examples=["https://api.github.com/repos/acme/kernels/statuses/{sha}"],
    )
    status_token: Annotated[str | None, AfterValidator(_one_line)] = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Token for commit statuses. The server never returns it.",
    )


@router.get("/repositories/{name}", responses=documented(404, 422))
def get_repository(session: Db, name: str) -> RepositoryRow:
    """One repository, and which of its secrets are set."""
    return repository_or_404(session, name)


@router.patch("/repositories/{name}", responses=documented(404, 422))
def change_repository(request: Request, settings: Config, name: str, body: RepositorySettings) -> RepositoryRow:
    """Set the watched branch, the webhook secret, and the URL and token for commit statuses."""
    require_schema(request)
    database = database_of(request)
    with database.session() as session:
        row = repository_or_404(session, name)
    if body.branch is not None and not has_branch(settings, row.url, body.branch):
        remedy = "push it and submit one of its commits first, or check the spelling"
        error = FieldError(field="branch", message=f"{name} has no branch {body.branch!r}", remedy=remedy)
        raise Problem(422, "not changed: some fields are not valid", [error])
    with database.session() as session:
        set_repository(session, row.id, body.model_dump(exclude_unset=True))
    follow_branches(database, settings, row.id)
    with database.session() as session:
        return repository_or_404(session, name)
