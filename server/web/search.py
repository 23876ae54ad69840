"""One search over operators, cases, commits, regressions and jobs, for the palette of the pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query

from warpwatch.db.reads.query import Page
from warpwatch.db.reads.search import SearchRow, search
from warpwatch.server.http.brief import Brief, briefly, documented_brief
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Before, Db, Limit, repository_or_404
from warpwatch.server.web.code import RepositoryName

api = APIRouter(tags=["code"])


@dataclass(frozen=True, slots=True)
class SearchEntry:
    """kind: operator, case, commit, regression or job. path: the address of its page."""

    kind: str
    title: str
    detail: str
    path: str


def brief_search(page: Page[SearchEntry]) -> Brief:
    """What matches, of each its kind and the address of its page, which ends with its number or name."""
    items = [{"kind": row.kind, "title": row.title, "detail": row.detail, "path": row.path} for row in page.items]
    return Brief({} if items else {"summary": "nothing matches every word"}, items, page.next_before)


@api.get("/search", responses=documented(404, 422) | documented_brief())
@briefly(brief_search)
def get_search(
    session: Db,
    repository: RepositoryName,
    q: Annotated[str, Query(max_length=200, description="Words, all of which match; or a SHA, or a number.")],
    before: Before = None,
    limit: Limit = 20,
) -> Page[SearchEntry]:
    """Operators, cases, commits, regressions and jobs that match every word."""
    page = search(session, repository_or_404(session, repository).id, q, before, limit)
    return Page([_entry(row, repository) for row in page.items], page.next_before)


def _entry(row: SearchRow, repository: str) -> SearchEntry:
    filters = {"repository": repository}
    if row.kind == "case":
        path = f"/kernels/{quote(row.operator or '', safe='')}"
        filters = {"tab": "commits", "case": row.key, "device": row.device_key or ""} | filters
    else:
        place = "kernels" if row.kind == "operator" else f"{row.kind}s"
        path = f"/{place}/{quote(row.key, safe='')}"
    return SearchEntry(row.kind, row.title, row.detail, f"{path}?{urlencode(filters)}")
