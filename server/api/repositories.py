"""Settings of a repository: watched branch, webhooks, commit statuses."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warpwatch.db.deletion import mark_deleted
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.registry import set_repository
from warpwatch.destinations import DestinationError
from warpwatch.server.http.problems import FieldError, Problem, documented
from warpwatch.server.http.service import Config, Db, repository_or_404

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


@router.delete("/repositories/{name}", status_code=204, responses=documented(404, 422))
def delete_repository(session: Db, name: str) -> None:
    """Delete a repository with all commits, results and traces.

    It disappears at once, and its name is free. Its rows and the server's mirror are deleted in the background.
    """
    mark_deleted(session, repository_or_404(session, name).id)


@router.patch("/repositories/{name}", responses=documented(404, 422))
def change_repository(session: Db, settings: Config, name: str, body: RepositorySettings) -> RepositoryRow:
    """Set the watched branch, the webhook secret, and the URL and token for commit statuses."""
    try:
        settings.destinations.check_literal(body.status_url or "")
    except DestinationError as error:
        fields = [FieldError(field="status_url", message=str(error), remedy="use the address of a code host")]
        raise Problem(422, "some fields are not valid", fields) from None
    row = repository_or_404(session, name)
    set_repository(session, row.id, body.model_dump(exclude_unset=True))
    return repository_or_404(session, name)
