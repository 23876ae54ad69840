"""Brings the definitions of a repository up to date, where they lie beside its history."""

from __future__ import annotations

from warpwatch import git
from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.db.database import Database
from warpwatch.db.reads.code import RepositoryRow, find_repository
from warpwatch.db.registry import set_repository
from warpwatch.definitions import DefinitionsSource, newest_version
from warpwatch.project import ProjectError
from warpwatch.server.http.problems import FieldError, Problem
from warpwatch.settings import Settings


def read_newest(settings: Settings, source: DefinitionsSource) -> DefinitionsVersion:
    """The newest version of definitions; Problem says why they cannot be used."""
    try:
        return newest_version(source, settings.home, settings.destinations, git.REQUEST_SECONDS)
    except git.UnknownRefError as error:
        remedy = "write PATH_OR_URL@REF with a branch, tag or commit of the definitions"
        raise _refusal(str(error), remedy) from error
    except (git.GitError, ProjectError) as error:
        remedy = "check that the server can read the definitions, and that warpwatch.toml lies at their root"
        raise _refusal(str(error), remedy) from error


def _refusal(message: str, remedy: str) -> Problem:
    field = FieldError(field="definitions", message=message, remedy=remedy)
    return Problem(422, "the definitions cannot be used", [field])


def refresh_definitions(database: Database, settings: Settings, repository: RepositoryRow) -> RepositoryRow:
    """The repository with the newest version of its definitions, which new jobs are measured with from now on.

    Git may have to fetch for minutes, so no transaction may be open meanwhile.
    """
    if repository.definitions_url is None:
        return repository
    version = read_newest(settings, DefinitionsSource(repository.definitions_url, repository.definitions_ref))
    if version.sha == repository.definitions_sha:
        return repository
    with database.session() as session:
        set_repository(session, repository.id, {"definitions_sha": version.sha})
        refreshed = find_repository(session, repository.name)
    return refreshed or repository
