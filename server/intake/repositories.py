"""Registers repositories, and checks their settings."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warpwatch.db.database import Database
from warpwatch.db.reads.code import find_repository
from warpwatch.db.registry import ensure_repository
from warpwatch.destinations import DestinationError
from warpwatch.git import REQUEST_SECONDS, GitError, update_mirror
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.settings import Settings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class NewRepository(BaseModel):
    """A repository to measure. url: a path on the server, or a URL that the server can clone without a password."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=100, examples=["kernels"])
    url: str = Field(min_length=1, max_length=1000, examples=["https://github.com/acme/kernels.git"])


def register(database: Database, settings: Settings, body: NewRepository) -> bool:
    """Whether the repository is new; Problem names what is wrong. Repeating the same name and url changes nothing."""
    errors = []
    if not NAME.fullmatch(body.name):
        remedy = "use letters, digits, dots, dashes and underscores"
        errors.append(FieldError(field="name", message="is not a valid name", remedy=remedy))
    # With `ext::` and similar transports the caller could make git run any command.
    if body.url.startswith("-") or "::" in body.url:
        errors.append(
            FieldError(field="url", message="is not allowed", remedy="use a path, or an https, ssh or git URL")
        )
    if errors:
        raise Problem(422, "not registered: some fields are not valid", errors)
    with database.session() as session:
        registered = find_repository(session, body.name)
    if registered is not None:
        if registered.url != body.url:
            detail = f"repository {body.name!r} is already registered with another url; choose another name"
            message = "is already registered with another url"
            raise Problem(409, detail, [FieldError(field="name", message=message, remedy="choose another name")])
        return False
    # git may have to clone for minutes, so no transaction is open meanwhile.
    try:
        update_mirror(body.url, settings.home, settings.destinations, REQUEST_SECONDS)
    except GitError as error:
        remedy = "check that the server can reach it without a password"
        raise Problem(
            422, "git cannot read the repository", [FieldError(field="url", message=str(error), remedy=remedy)]
        ) from error
    with database.session() as session:
        ensure_repository(session, body.name, body.url)
    return True


def check_status_url(settings: Settings, url: str | None) -> None:
    """Problem for a URL of commit statuses that the server must not connect to."""
    try:
        settings.destinations.check_literal(url or "")
    except DestinationError as error:
        fields = [FieldError(field="status_url", message=str(error), remedy="use the address of a code host")]
        raise Problem(422, "some fields are not valid", fields) from None


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
