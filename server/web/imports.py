"""Imports results that other programs wrote."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel

from warpwatch.db.awaited_files import AwaitedFileRow, list_awaited_files
from warpwatch.db.reads.query import Page
from warpwatch.formats import FORMATS
from warpwatch.server.http.access import Asking, require_repository
from warpwatch.server.http.git_threads import in_git_thread
from warpwatch.server.http.problems import FieldError, Problem, documented
from warpwatch.server.http.service import Config, Db, database_of, repository_or_404, require_schema
from warpwatch.server.intake.foreign_results import ForeignFile, ForeignFileError, import_foreign

api = APIRouter(tags=["results"])
_MOST_FAULTS = 100
Text = Annotated[str | None, Query(min_length=1, max_length=200)]
_BODY: dict[str, Any] = {
    "requestBody": {
        "description": "The file as the program wrote it, up to a megabyte; `warpwatch import` takes longer ones.",
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


class ImportedFile(BaseModel):
    """new: false where the same file was imported before; then nothing was written.

    submission_id: null while the file waits for its commit. left_out: what of the file could not be read, a sentence
    for each part, at most a hundred of them. awaits: the commit that it waits for, "" where it was imported.
    """

    submission_id: int | None
    new: bool
    left_out: list[str]
    awaits: str


async def _body(request: Request) -> bytes:
    return await request.body()


@api.post("/imports", status_code=201, responses=documented(403, 413, 422), openapi_extra=_BODY)
@in_git_thread(lambda arguments: arguments["repository"])
def create_import(
    request: Request,
    settings: Config,
    caller: Asking,
    data: Annotated[bytes, Depends(_body)],
    repository: Annotated[str, Query(max_length=200, description="Name of a repository.")],
    file_format: Annotated[str, Query(alias="format", max_length=40, description=f"One of {', '.join(FORMATS)}.")],
    commit: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="SHA, branch or tag; default: what the file says."),
    ] = None,
    program: Annotated[str | None, Query(max_length=100, description="Operator to record it under.")] = None,
    device: Annotated[
        str | None, Query(max_length=100, description="Key of a device; default: what the file says.")
    ] = None,
    confirm: Annotated[
        bool, Query(description="Compare the changes that the results show by the repository's own program.")
    ] = False,
    name: Text = None,
) -> ImportedFile:
    """Import results of other programs as a bench of the commit that was measured, or of each in a history.

    Each benchmark becomes a case of the operator `program`. A file of one commit, named by its full id, that the
    repository does not hold yet waits for it. See docs/foreign-programs.md.
    """
    require_schema(request)
    require_repository(caller, repository)
    database = database_of(request)
    file = ForeignFile(
        data, name or "results.json", commit, file_format, repository, program or None, device or None, confirm
    )
    try:
        imported = import_foreign(database, settings, file)
    except ForeignFileError as error:
        fields = [FieldError(field=error.field, message=error.message, remedy=error.remedy)]
        raise Problem(422, "not imported", fields) from error
    return ImportedFile(
        submission_id=imported.submission_id,
        new=imported.new,
        left_out=imported.left_out[:_MOST_FAULTS],
        awaits=imported.awaits,
    )


@api.get("/imports", responses=documented(404, 422))
def get_imports(
    session: Db, repository: Annotated[str, Query(max_length=200, description="Name of a repository.")]
) -> Page[AwaitedFileRow]:
    """Files of results that wait for a commit that the repository does not hold yet, and those refused lately."""
    return Page(list_awaited_files(session, repository_or_404(session, repository).id), None)
