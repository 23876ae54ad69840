"""Repositories, operators, cases and commits."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from warpwatch.db.reads.builds import CodeHistory, read_code_history
from warpwatch.db.reads.code import (
    CaseRow,
    CommitRow,
    OperatorRow,
    RepositoryRow,
    list_cases,
    list_commits,
    list_operators,
    list_repositories,
)
from warpwatch.db.reads.commits import CommitCell, CommitDetail, read_commit
from warpwatch.db.reads.query import Page
from warpwatch.db.registry import ensure_repository
from warpwatch.git import REQUEST_SECONDS, GitError, update_mirror
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import (
    Before,
    Config,
    Db,
    Limit,
    database_of,
    device_or_404,
    operator_or_404,
    repository_or_404,
    require_schema,
)

router = APIRouter()
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
DeviceKey = Annotated[str, Query(max_length=200, description="Key of a device, such as nvidia-h100-80gb-hbm3.")]
RepositoryName = Annotated[str, Field(max_length=100, description="Name of a registered repository.")]
Sha = Annotated[str, Path(min_length=4, max_length=40, pattern="^[0-9a-f]+$", description="A SHA, or a unique prefix.")]


class NewRepository(BaseModel):
    """A repository to measure. url: a path on the server, or a URL that the server can clone without a password."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=100, examples=["kernels"])
    url: str = Field(min_length=1, max_length=1000, examples=["https://github.com/acme/kernels.git"])


@router.get("/repositories", tags=["code"], responses=documented())
def get_repositories(session: Db) -> Page[RepositoryRow]:
    """All repositories, by name."""
    return Page(list_repositories(session), None)


@router.post("/repositories", tags=["code"], status_code=201, responses=documented(409, 422))
@in_git_thread(lambda arguments: arguments["body"].url)
def register_repository(request: Request, body: NewRepository, settings: Config, response: Response) -> RepositoryRow:
    """Register a repository that git can read. Repeating the same name and url changes nothing."""
    require_schema(request)
    errors = []
    if not NAME.fullmatch(body.name):
        errors.append(
            FieldError(
                field="name", message="is not a valid name", remedy="use letters, digits, dots, dashes and underscores"
            )
        )
    # With `ext::` and similar transports the caller could make git run any command.
    if body.url.startswith("-") or "::" in body.url:
        errors.append(
            FieldError(field="url", message="is not allowed", remedy="use a path, or an https, ssh or git URL")
        )
    if errors:
        raise Problem(422, "not registered: some fields are not valid", errors)
    with database_of(request).session() as session:
        registered = {row.name: row for row in list_repositories(session)}
    if body.name in registered:
        if registered[body.name].url != body.url:
            raise Problem(409, f"repository {body.name!r} is already registered with another url; choose another name")
        response.status_code = 200
        return registered[body.name]
    try:
        update_mirror(body.url, settings.home, REQUEST_SECONDS)
    except GitError as error:
        remedy = "check that the server can reach it without a password"
        raise Problem(
            422, "git cannot read the repository", [FieldError(field="url", message=str(error), remedy=remedy)]
        ) from error
    with database_of(request).session() as session:
        ensure_repository(session, body.name, body.url)
        return repository_or_404(session, body.name)


@router.get("/operators", tags=["code"], responses=documented(404, 422))
def get_operators(session: Db, repository: RepositoryName) -> Page[OperatorRow]:
    """All operators of the repository, over all commits, with their variants and cases."""
    return Page(list_operators(session, repository_or_404(session, repository).id), None)


@router.get("/operators/{name}/cases", tags=["code"], responses=documented(404, 422))
def get_cases(session: Db, name: str, repository: RepositoryName) -> Page[CaseRow]:
    """All cases of an operator, with sizes and cost."""
    row = operator_or_404(session, repository_or_404(session, repository), name)
    return Page(list_cases(session, row.id), None)


@router.get("/operators/{name}/code", tags=["code"], responses=documented(404, 422))
def get_code_history(
    session: Db,
    name: str,
    repository: RepositoryName,
    device: DeviceKey,
    arch: Annotated[str | None, Query(max_length=40)] = None,
) -> CodeHistory:
    """Registers, shared memory, spills, size and hash of the machine code of every kernel, per built commit."""
    row = operator_or_404(session, repository_or_404(session, repository), name)
    return read_code_history(session, row.id, name, device_or_404(session, device).key, arch)


@router.get("/commits", tags=["code"], responses=documented(404, 422))
def get_commits(session: Db, repository: RepositoryName, before: Before = None, limit: Limit = 50) -> Page[CommitRow]:
    """Known commits in the order of history, newest first, with their counts of results."""
    return list_commits(session, repository_or_404(session, repository).id, before, limit)


@router.get("/commits/{sha}.csv", tags=["code"], responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_commit_csv(session: Db, sha: Sha, repository: RepositoryName) -> Response:
    """The results of a commit as CSV."""
    detail = get_commit(session, sha, repository)
    return csv_response(CommitCell, detail.cells, f"{repository}-{detail.commit.sha[:12]}")


@router.get("/commits/{sha}", tags=["code"], responses=documented(404, 422))
def get_commit(session: Db, sha: Sha, repository: RepositoryName) -> CommitDetail:
    """The results of a commit: check, time, change and trace per variant and case; and its builds."""
    detail = read_commit(session, repository_or_404(session, repository).id, sha)
    if detail is None:
        raise not_found("commit", sha, "submit it first, or use a longer prefix of its SHA")
    return detail
