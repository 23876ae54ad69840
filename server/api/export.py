"""Exports all points of a repository."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from warpwatch.db.reads.code import find_commit
from warpwatch.db.reads.export import ExportFilter
from warpwatch.server.api.code import RepositoryName
from warpwatch.server.figures.exports import WRITERS, ExportError, read_pages
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import database_of, repository_or_404, require_schema

router = APIRouter(tags=["results"])
Name = Annotated[str | None, Query(max_length=200)]
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The points, in the format asked for.",
        "content": {kind.partition(";")[0]: {} for _, kind, _ in WRITERS.values()},
    }
}


@router.get("/export", responses=documented(404, 422) | _ANSWER, response_class=StreamingResponse)
def export(
    request: Request,
    repository: RepositoryName,
    file_format: Annotated[
        Literal["csv", "json", "parquet", "nvbench"], Query(alias="format", description="Default: json.")
    ] = "json",
    operator: Name = None,
    device: Annotated[str | None, Query(max_length=200, description="Key of a device.")] = None,
    metric: Annotated[str | None, Query(max_length=20)] = None,
    commit: Annotated[str | None, Query(max_length=40, pattern="^[0-9a-f]{4,40}$")] = None,
    samples: Annotated[bool, Query(description="Include every sample.")] = False,
) -> StreamingResponse:
    """Every point of the repository that matches all given filters, streamed as CSV, JSON, Parquet or nvbench JSON."""
    require_schema(request)
    database = database_of(request)
    with database.session() as session:
        row = repository_or_404(session, repository)
        at = find_commit(session, row.id, commit) if commit else None
    if commit and at is None:
        raise not_found("commit", commit)
    write, media_type, suffix = WRITERS[file_format]
    chosen = ExportFilter(row.id, operator, device, metric, at.sha if at else None, samples)
    pieces = write(read_pages(database, chosen))
    try:
        # The first piece shows whether the format can be written at all.
        first = next(pieces, b"")
    except ExportError as error:
        fields = [FieldError(field="format", message=str(error), remedy="choose csv or json")]
        raise Problem(422, "not exported", fields) from error

    def stream() -> Any:
        yield first
        yield from pieces

    headers = {"Content-Disposition": f'attachment; filename="{repository}.{suffix}"'}
    return StreamingResponse(stream(), media_type=media_type, headers=headers)
