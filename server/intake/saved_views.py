"""Checks and saves views: only links to our own pages, and each name once."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import BaseModel, ConfigDict, Field

from warpwatch.db.reads.code import RepositoryRow
from warpwatch.db.reads.query import Session
from warpwatch.db.saved_views import save_view
from warpwatch.server.http.problems import FieldError, Problem

REFUSED = "not saved: some fields are not valid"
PAGES = ("/history", "/compare", "/operators", "/devices/compare", "/regressions", "/commits", "/traces")
"""Pages that show what their address says."""


class ViewRequest(BaseModel):
    """A link with a name."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    repository: str = Field(min_length=1, max_length=100)
    name: str = Field(min_length=1, max_length=100)
    path: str = Field(
        min_length=1, max_length=2000, description="Path and query of a page, such as /history?operator=kron."
    )


def create_view(session: Session, repository: RepositoryRow, body: ViewRequest) -> int:
    """The id of the new view. Problem for a link to elsewhere and for a name that is taken."""
    path = own_path(body.path, repository.name)
    if path is None:
        raise _refusal("path", "it is no page that can be saved", f"use a path that begins with {', '.join(PAGES)}")
    view_id = save_view(session, repository.id, body.name, path)
    if view_id is None:
        raise _refusal(
            "name", f"{repository.name} has a view {body.name!r}", "choose another name, or delete that view"
        )
    return view_id


def own_path(text: str, repository: str) -> str | None:
    """The link with its repository; None for anything but one of PAGES or a page below it."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    is_own = not parts.scheme and not parts.netloc and text.startswith("/") and text.isprintable()
    if not is_own or "\\" in text or ".." in parts.path:
        return None
    if not any(parts.path == page or parts.path.startswith(f"{page}/") for page in PAGES):
        return None
    filters = [(name, value) for name, value in parse_qsl(parts.query) if name != "repository"]
    return f"{parts.path}?{urlencode([('repository', repository), *filters])}"


def _refusal(field: str, message: str, remedy: str) -> Problem:
    return Problem(422, REFUSED, [FieldError(field=field, message=message, remedy=remedy)])
