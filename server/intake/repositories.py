"""Registers repositories, and checks their settings."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.db.database import Database
from warpwatch.db.reads.code import RepositoryRow, find_repository
from warpwatch.db.registry import ensure_repository, set_repository
from warpwatch.definitions import DefinitionsSource, parse_source
from warpwatch.destinations import DestinationError
from warpwatch.git import REQUEST_SECONDS, GitError, update_mirror
from warpwatch.project import REPOSITORY_NAME, REPOSITORY_NAME_REMEDY
from warpwatch.server.history.branches import follow_branches, has_branch
from warpwatch.server.history.definitions import read_newest
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.server.http.service import repository_or_404
from warpwatch.settings import Settings


class NewRepository(BaseModel):
    """A repository to measure. url: a path on the server, or a URL that the server can clone without a password.

    definitions: where its operators are defined, as PATH_OR_URL or PATH_OR_URL@REF; without it each commit defines its
    own.
    """

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=100, examples=["kernels"])
    url: str = Field(min_length=1, max_length=1000, examples=["https://github.com/acme/kernels.git"])
    definitions: str | None = Field(
        default=None, min_length=1, max_length=1000, examples=["https://github.com/acme/definitions.git@main"]
    )


def register(database: Database, settings: Settings, body: NewRepository) -> bool:
    """Whether the repository is new; Problem names what is wrong. Repeating the same fields changes nothing."""
    errors = []
    if not REPOSITORY_NAME.fullmatch(body.name):
        errors.append(FieldError(field="name", message="is not a valid name", remedy=REPOSITORY_NAME_REMEDY))
    errors += [_not_allowed(field) for field in ("url", "definitions") if not _is_allowed(getattr(body, field) or "")]
    if errors:
        raise Problem(422, "not registered: some fields are not valid", errors)
    with database.session() as session:
        registered = find_repository(session, body.name)
    source = parse_source(body.definitions) if body.definitions is not None else None
    if registered is not None:
        if registered.url != body.url:
            detail = f"repository {body.name!r} is already registered with another url; choose another name"
            message, field = "is already registered with another url", "name"
            raise Problem(409, detail, [FieldError(field=field, message=message, remedy="choose another name")])
        if source is not None and (source.url, source.ref) != (registered.definitions_url, registered.definitions_ref):
            detail = f"repository {body.name!r} is already registered with other definitions"
            remedy = "change them with `warpwatch repository set --definitions`, or choose another name"
            error = FieldError(field="definitions", message="differ from those of this repository", remedy=remedy)
            raise Problem(409, detail, [error])
        return False
    # git may have to clone for minutes, so no transaction is open meanwhile.
    try:
        update_mirror(body.url, settings.home, settings.destinations, REQUEST_SECONDS)
    except GitError as error:
        remedy = "check that the server can reach it without a password"
        raise Problem(
            422, "git cannot read the repository", [FieldError(field="url", message=str(error), remedy=remedy)]
        ) from error
    version = read_newest(settings, source) if source is not None else None
    with database.session() as session:
        repository_id = ensure_repository(session, body.name, body.url)
        if source is not None and version is not None:
            set_repository(session, repository_id, _definition_columns(source, version))
    follow_branches(database, settings, repository_id)
    return True


def _definition_columns(source: DefinitionsSource, version: DefinitionsVersion) -> dict[str, str | None]:
    return {"definitions_url": source.url, "definitions_ref": source.ref, "definitions_sha": version.sha}


def _is_allowed(url: str) -> bool:
    # With `ext::` and similar transports the caller could make git run any command.
    return not url.startswith("-") and "::" not in url


def _not_allowed(field: str) -> FieldError:
    return FieldError(field=field, message="is not allowed", remedy="use a path, or an https, ssh or git URL")


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
    branch: str | None = Field(
        default=None, min_length=1, max_length=200, description="The watched branch; null chooses the default branch."
    )
    definitions: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Where its operators are defined, as PATH_OR_URL or PATH_OR_URL@REF; null where its commits do.",
    )
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
    is_public: bool = Field(
        default=False, description="Whether anybody may read its results, where `WARPWATCH_PUBLIC=read` is set."
    )


def change_settings(database: Database, settings: Settings, name: str, body: RepositorySettings) -> RepositoryRow:
    """Stores the fields that were given; Problem names what is wrong. Git may have to fetch, so no transaction may be
    open."""
    check_status_url(settings, body.status_url)
    with database.session() as session:
        row = repository_or_404(session, name)
    if body.branch is not None and not has_branch(settings, row.url, body.branch):
        remedy = "push it and submit one of its commits first, or check the spelling"
        error = FieldError(field="branch", message=f"{name} has no branch {body.branch!r}", remedy=remedy)
        raise Problem(422, "not changed: some fields are not valid", [error])
    values: dict[str, Any] = body.model_dump(exclude_unset=True, exclude={"definitions"})
    if "definitions" in body.model_fields_set:
        values |= _new_definitions(settings, body.definitions)
    with database.session() as session:
        set_repository(session, row.id, values)
    follow_branches(database, settings, row.id)
    with database.session() as session:
        return repository_or_404(session, name)


def _new_definitions(settings: Settings, text: str | None) -> dict[str, str | None]:
    if text is None:
        return dict.fromkeys(("definitions_url", "definitions_ref", "definitions_sha"))
    if not _is_allowed(text):
        raise Problem(422, "not changed: some fields are not valid", [_not_allowed("definitions")])
    source = parse_source(text)
    return _definition_columns(source, read_newest(settings, source))
