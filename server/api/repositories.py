"""Settings of a repository: watched branch, webhooks, commit statuses."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.convertors import Convertor, register_url_convertor

from warpwatch.db.deletion import mark_deleted
from warpwatch.db.reads.code import RepositoryRow
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Config, Db, database_of, repository_or_404, require_schema
from warpwatch.server.intake.repositories import RepositorySettings, change_settings


class _WholeConvertor(Convertor[str]):
    """The rest of an address: results files of earlier versions named repositories with slashes and line ends."""

    regex = r"(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("whole", _WholeConvertor())
router = APIRouter(tags=["code"])


@router.get("/repositories/{name:whole}", responses=documented(404, 422))
def get_repository(session: Db, name: str) -> RepositoryRow:
    """One repository, and which of its secrets are set."""
    return repository_or_404(session, name)


@router.delete("/repositories/{name:whole}", status_code=204, responses=documented(404, 422))
def delete_repository(session: Db, name: str) -> None:
    """Delete a repository with all commits, results and traces.

    It disappears at once, and its name is free. Its rows and the server's mirror are deleted in the background.
    """
    mark_deleted(session, repository_or_404(session, name).id)


@router.patch("/repositories/{name}", responses=documented(404, 422))
@in_git_thread(lambda arguments: arguments["name"])
def change_repository(request: Request, settings: Config, name: str, body: RepositorySettings) -> RepositoryRow:
    """Set the watched branch, the definitions, the webhook secret, and the URL and token for commit statuses."""
    require_schema(request)
    return change_settings(database_of(request), settings, name, body)
