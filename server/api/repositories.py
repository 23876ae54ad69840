"""What a repository tells and is told: its watched branch, webhooks, commit statuses."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.registry import set_repository
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Db, repository_or_404

router = APIRouter(tags=["code"])


def _web_address(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url.replace("{sha}", "0" * 40))
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("is no http or https address without a password")
    return url


def _one_line(text: str | None) -> str | None:
    if text is not None and (not text.isprintable() or not text.isascii() or " " in text):
        raise ValueError("holds blanks or characters that cannot be sent")
    return text


class RepositorySettings(BaseModel):
    """Fields that are left out stay as they are; null takes a setting away."""

    model_config = ConfigDict(extra="forbid")
    branch: str | None = Field(default=None, min_length=1, max_length=200, description="The branch that is watched.")
    webhook_secret: Annotated[str | None, AfterValidator(_one_line)] = Field(
        default=None,
        min_length=16,
        max_length=200,
        description="What webhooks are signed with. It is never told again.",
    )
    status_url: Annotated[str | None, AfterValidator(_web_address)] = Field(
        default=None,
        max_length=1000,
        description="Where commit statuses are sent; {sha} stands for the commit.",
        examples=["https://api.github.com/repos/acme/kernels/statuses/{sha}"],
    )
    status_token: Annotated[str | None, AfterValidator(_one_line)] = Field(
        default=None, min_length=1, max_length=1000, description="What statuses are sent with. It is never told again."
    )


@router.get("/repositories/{name}", responses=documented(404, 422))
def get_repository(session: Db, name: str) -> RepositoryRow:
    """One repository, and which of its secrets are set."""
    return repository_or_404(session, name)


@router.patch("/repositories/{name}", responses=documented(404, 422))
def change_repository(session: Db, name: str, body: RepositorySettings) -> RepositoryRow:
    """Say which branch is watched, what webhooks are signed with, and where commit statuses go."""
    found = repository_or_404(session, name)
    set_repository(session, found.id, body.model_dump(exclude_unset=True))
    return repository_or_404(session, name)
