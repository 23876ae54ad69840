"""Exports all points of a repository, one address per format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse

from warpwatch.db.reads.code import find_commit
from warpwatch.db.reads.export import ExportFilter
from warpwatch.server.figures.exports import WRITERS, ExportError, read_pages
from warpwatch.server.http.downloads import content_disposition
from warpwatch.server.http.problems import FieldError, Problem, documented, not_found
from warpwatch.server.http.service import Db, database_of, repository_or_404
from warpwatch.server.web.code import RepositoryName

api = APIRouter(tags=["results"])
Name = Annotated[str | None, Query(max_length=200)]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Filter of an export, and the start of the file's name."""

    chosen: ExportFilter
    name: str


def export_request(
    session: Db,
    repository: RepositoryName,
    operator: Name = None,
    device: Annotated[str | None, Query(max_length=200, description="Key of a device.")] = None,
    metric: Annotated[str | None, Query(max_length=20)] = None,
    commit: Annotated[str | None, Query(max_length=40, pattern="^[0-9a-f]{4,40}$")] = None,
    samples: Annotated[bool, Query(description="Include every sample.")] = False,
) -> ExportRequest:
    row = repository_or_404(session, repository)
    at = find_commit(session, row.id, commit) if commit else None
    if commit and at is None:
        raise not_found("commit", commit)
    return ExportRequest(ExportFilter(row.id, operator, device, metric, at.sha if at else None, samples), row.name)


Chosen = Annotated[ExportRequest, Depends(export_request)]


def _answer(kind: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI description of an endpoint that streams a file."""
    return documented(404, 422) | {200: {"description": "All points.", "content": {kind: {}}}}


@api.get("/export", responses=_answer("application/json"), response_class=StreamingResponse)
def export(request: Request, chosen: Chosen) -> StreamingResponse:
    """Every point of the repository that matches all given filters, streamed as JSON."""
    return _stream(request, chosen, "json")


@api.get("/export.csv", responses=_answer("text/csv"), response_class=StreamingResponse)
def export_csv(request: Request, chosen: Chosen) -> StreamingResponse:
    """The same as CSV."""
    return _stream(request, chosen, "csv")


@api.get("/export.parquet", responses=_answer("application/vnd.apache.parquet"), response_class=StreamingResponse)
def export_parquet(request: Request, chosen: Chosen) -> StreamingResponse:
    """The same as Parquet; 422 where the server lacks pyarrow."""
    return _stream(request, chosen, "parquet")


@api.get("/export.nvbench", responses=_answer("application/json"), response_class=StreamingResponse)
def export_nvbench(request: Request, chosen: Chosen) -> StreamingResponse:
    """The medians as nvbench writes them, for its tools: choose one commit and one metric."""
    return _stream(request, chosen, "nvbench")


def _stream(request: Request, asked: ExportRequest, name: str) -> StreamingResponse:
    write, media_type, suffix = WRITERS[name]
    pieces = write(read_pages(database_of(request), asked.chosen))
    try:
        # The first piece shows whether the format can be written at all.
        first = next(pieces, b"")
    except ExportError as error:
        fields = [FieldError(field="format", message=str(error), remedy="choose CSV or JSON")]
        raise Problem(422, "not exported", fields) from error

    def stream() -> Iterator[bytes]:
        yield first
        yield from pieces

    headers = content_disposition(f"{asked.name}.{suffix}")
    return StreamingResponse(stream(), media_type=media_type, headers=headers)
