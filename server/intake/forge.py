"""Links a repository to its project on a code host."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warpwatch.contract.words import ForgeKind
from warpwatch.db.forge import NewForgeLink, set_link
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.forge import read_access
from warpwatch.db.reads.query import Session
from warpwatch.destinations import DestinationError
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.settings import Settings

_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,200}")
_API_END = "/api/v4"


def _printable(text: str | None) -> str | None:
    if text is not None and (not text.isascii() or not text.isprintable() or " " in text):
        raise ValueError("contains blanks or non-ASCII characters")
    return text


class ForgeSettings(BaseModel):
    """A repository's project on GitHub, where the server is an app, or on a GitLab, with a token of the project."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    forge: ForgeKind
    project: str = Field(min_length=3, max_length=500, examples=["acme/kernels"])
    api_url: str | None = Field(
        default=None, max_length=500, description="Of GitLab.", examples=["https://gitlab.example/api/v4"]
    )
    token: Annotated[str | None, AfterValidator(_printable)] = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Of the GitLab project, with the scope `api`. Without one the token stays as it is. The server "
        "never returns it.",
    )
    files_issues: bool = Field(
        default=False, description="File an issue for every regression that is confirmed on the watched branch."
    )


def link_repository(session: Session, settings: Settings, repository: RepositoryRow, body: ForgeSettings) -> None:
    """Stores the link; Problem names every field at fault."""
    parts = body.project.split("/")
    errors = []
    is_github = body.forge is ForgeKind.GITHUB
    if not all(map(_PART.fullmatch, parts)) or len(parts) < 2 or (is_github and len(parts) > 2):
        errors.append(_error("project", "is no project", "write it as OWNER/NAME"))
    token = body.token
    if is_github:
        errors += _github_errors(settings, body)
    else:
        errors += _address_errors(settings, body.api_url)
        access = read_access(session, repository.id)
        # A token goes to nobody but those it was given for.
        if token is None and access is not None and access.api_url == body.api_url:
            token = access.token
        if token is None:
            errors.append(_error("token", "is needed for this address", "create one in the project, scope `api`"))
    if errors:
        raise Problem(422, "not linked: some fields are not valid", errors)
    set_link(session, repository.id, NewForgeLink(body.forge, body.project, body.api_url, token, body.files_issues))


def _github_errors(settings: Settings, body: ForgeSettings) -> list[FieldError]:
    errors = []
    if settings.github_app_id is None or settings.github_app_key is None:
        remedy = "set WARPWATCH_GITHUB_APP_ID and WARPWATCH_GITHUB_APP_KEY and restart it"
        errors.append(_error("forge", "needs the server to be a GitHub App", remedy))
    for field in ("api_url", "token"):
        if getattr(body, field) is not None:
            remedy = "leave it empty; the app's key opens the project, at WARPWATCH_GITHUB_API"
            errors.append(_error(field, "is of GitLab alone", remedy))
    return errors


def _address_errors(settings: Settings, url: str | None) -> list[FieldError]:
    remedy = f"write it as https://gitlab.example{_API_END}"
    try:
        parts = urlsplit(url or "")
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path.endswith(_API_END)
        if not is_address or "@" in parts.netloc or parts.query or parts.fragment:
            return [_error("api_url", "is no address of GitLab's API", remedy)]
        settings.destinations.check_literal(url or "")
    except DestinationError as error:
        return [_error("api_url", str(error), "use the address of your GitLab")]
    except ValueError:
        return [_error("api_url", "is no address", remedy)]
    return []


def _error(field: str, message: str, remedy: str) -> FieldError:
    return FieldError(field=field, message=message, remedy=remedy)
