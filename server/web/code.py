"""Repositories, operators, cases and commits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from warpwatch.contract.report_facts import Trade
from warpwatch.db.reads.builds import CodeHistory, read_code_history
from warpwatch.db.reads.code import (
    CaseRow,
    CommitRow,
    OperatorRow,
    RepositoryRow,
    find_commit,
    list_cases,
    list_commits,
    list_operators,
    list_repositories,
)
from warpwatch.db.reads.commit_cells import CellFilter, CommitCell, list_all_cells, list_cells
from warpwatch.db.reads.commits import CommitDetail, read_commit
from warpwatch.db.reads.launched import LaunchedHistory, read_launched
from warpwatch.db.reads.lines import ALL_COMMITS, HistoryLine, read_line_of
from warpwatch.db.reads.query import Page, Session
from warpwatch.db.reads.trades import read_trade_facts
from warpwatch.server.explanation.statements import state_cells
from warpwatch.server.figures.tables import CSV_ANSWER, csv_response
from warpwatch.server.history.diffs import CommitSource, read_commit_source
from warpwatch.server.http.access import Asking
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import documented, not_found
from warpwatch.server.http.service import (
    Before,
    Config,
    Db,
    Limit,
    database_of,
    device_or_404,
    line_or_404,
    operator_or_404,
    repository_or_404,
    require_schema,
)
from warpwatch.server.intake.repositories import NewRepository, register
from warpwatch.server.verdicts.statements import Statement
from warpwatch.server.verdicts.trades import find_trades

api = APIRouter()
_REMEDY = "submit it first, or use a longer prefix of its SHA"
DeviceKey = Annotated[str, Query(max_length=200, description="Key of a device, such as nvidia-h100-80gb-hbm3.")]
RepositoryName = Annotated[str, Field(max_length=100, description="Name of a registered repository.")]
Sha = Annotated[str, Path(min_length=4, max_length=40, pattern="^[0-9a-f]+$", description="A SHA, or a unique prefix.")]


@api.get("/repositories", tags=["code"], responses=documented())
def get_repositories(session: Db, caller: Asking) -> Page[RepositoryRow]:
    """All repositories, by name; for a CI job those that trust it."""
    rows = list_repositories(session)
    return Page([row for row in rows if caller.repositories is None or row.name in caller.repositories], None)


@api.post("/repositories", tags=["code"], status_code=201, responses=documented(409, 422))
@in_git_thread(lambda arguments: arguments["body"].url)
def register_repository(request: Request, body: NewRepository, settings: Config, response: Response) -> RepositoryRow:
    """Register a repository that git can read. Repeating the same name and url changes nothing."""
    require_schema(request)
    database = database_of(request)
    if not register(database, settings, body):
        response.status_code = 200
    with database.session() as session:
        return repository_or_404(session, body.name)


@api.get("/operators", tags=["code"], responses=documented(404, 422))
def get_operators(session: Db, repository: RepositoryName) -> Page[OperatorRow]:
    """All operators of the repository, over all commits, with their variants and cases."""
    return Page(list_operators(session, repository_or_404(session, repository).id), None)


@api.get("/operators/{name}/cases", tags=["code"], responses=documented(404, 422))
def get_cases(session: Db, name: str, repository: RepositoryName) -> Page[CaseRow]:
    """All cases of an operator, with sizes and cost."""
    row = operator_or_404(session, repository_or_404(session, repository), name)
    return Page(list_cases(session, row.id), None)


@api.get("/operators/{name}/code", tags=["code"], responses=documented(404, 422))
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


@api.get("/operators/{name}/launched", tags=["code"], responses=documented(404, 422))
def get_launched(
    session: Db,
    name: str,
    repository: RepositoryName,
    device: DeviceKey,
    case: Annotated[str, Query(max_length=500, description="Key of a case.")],
    branch: Annotated[str | None, Query(max_length=250, description="Default: the commits of all branches.")] = None,
) -> Page[LaunchedHistory]:
    """List what every variant launches on a GPU by its newest right check of a case: kernels with hash, registers, grid
    and block, choices of autotuners with their candidates, since when it is the same, and what was launched before."""
    repo = repository_or_404(session, repository)
    row = operator_or_404(session, repo, name)
    line = line_or_404(session, repo, branch) if branch else ALL_COMMITS
    return Page(read_launched(session, row.id, device_or_404(session, device).key, case, line), None)


@api.get("/commits", tags=["code"], responses=documented(404, 422))
def get_commits(
    session: Db,
    repository: RepositoryName,
    before: Before = None,
    limit: Limit = 50,
    branch: Annotated[str | None, Query(max_length=250, description="Default: the commits of all branches.")] = None,
) -> Page[CommitRow]:
    """Known commits in the order of history, newest first, with their counts of results. Commits that no branch holds
    any more, because it was rebased or deleted, are left out; each has its own address still."""
    row = repository_or_404(session, repository)
    line = line_or_404(session, row, branch) if branch else ALL_COMMITS
    return list_commits(session, row.id, before, limit, line)


@api.get("/commits/{sha}/trades", tags=["code"], responses=documented(404, 422))
def get_trades(session: Db, sha: Sha, repository: RepositoryName) -> Page[Trade]:
    """List what a commit changed beside its times, each with the change of its time: errors against the oracle, results
    that differ from call to call, rows that depend on others, memory, machine code, energy, and waiting times, which
    are suspected only. What is worse comes first, of that variants that became faster. Work that moved between the
    forward and the backward pass is of the kind `moved`, as A/B comparisons of the commit with its first parent say."""
    commit = _commit_or_404(session, sha, repository)
    return Page(find_trades(read_trade_facts(session, commit.id)), None)


@api.get("/commits/{sha}.csv", tags=["code"], responses=documented(404, 422) | CSV_ANSWER, response_class=Response)
def get_commit_csv(session: Db, sha: Sha, repository: RepositoryName) -> Response:
    """All results of a commit as CSV."""
    commit = _commit_or_404(session, sha, repository)
    return csv_response(
        CommitCell, list_all_cells(session, commit, _line_of(session, commit)), f"{repository}-{commit.sha[:12]}"
    )


@api.get("/commits/{sha}", tags=["code"], responses=documented(404, 422))
def get_commit(session: Db, sha: Sha, repository: RepositoryName) -> CommitDetail:
    """A commit: how many of its cells fail or changed per operator, the changes that it has to do with, its builds. The
    cells themselves are listed at `/commits/{sha}/cells`."""
    detail = read_commit(session, repository_or_404(session, repository).id, sha)
    if detail is None:
        raise not_found("commit", sha, _REMEDY)
    return detail


@api.get("/commits/{sha}/source", tags=["code"], responses=documented(404, 422))
def get_commit_source(request: Request, settings: Config, sha: Sha, repository: RepositoryName) -> CommitSource:
    """The message of a commit and its diff from its first parent, as far as this server has fetched it."""
    require_schema(request)
    with database_of(request).session() as session:
        found = repository_or_404(session, repository)
        commit = _commit_or_404(session, sha, repository)
    return read_commit_source(settings, found, commit)


@dataclass(frozen=True, slots=True)
class StatedCommitCell(CommitCell):
    """A cell of a commit with the statements about its series there, and about that of the host's time of its calls;
    null where it has no such time."""

    statement: Statement | None = None
    launch_statement: Statement | None = None


@api.get("/commits/{sha}/cells", tags=["code"], responses=documented(404, 422))
def get_commit_cells(
    session: Db,
    sha: Sha,
    repository: RepositoryName,
    show: CellFilter = CellFilter.ALL,
    operator: Annotated[str | None, Query(max_length=250)] = None,
    before: Before = None,
    limit: Limit = 50,
) -> Page[StatedCommitCell]:
    """The results of a commit: check, time, change and trace per variant and case. What fails comes first, then what
    changed."""
    commit = _commit_or_404(session, sha, repository)
    line = _line_of(session, commit)
    cells = list_cells(session, commit, line, show, operator, before, limit)
    statements = state_cells(session, commit, cells.items, line)
    names = [item.name for item in fields(CommitCell)]
    stated = [
        StatedCommitCell(
            **{name: getattr(cell, name) for name in names},
            statement=statements.get(cell.stated_series_id),
            launch_statement=statements.get(cell.launch_series_id or 0),
        )
        for cell in cells.items
    ]
    return Page(stated, cells.next_before)


def _commit_or_404(session: Session, sha: str, repository: str) -> CommitRow:
    commit = find_commit(session, repository_or_404(session, repository).id, sha)
    if commit is None:
        raise not_found("commit", sha, _REMEDY)
    return commit


def _line_of(session: Session, commit: CommitRow) -> HistoryLine:
    return read_line_of(session, commit.id) or ALL_COMMITS
