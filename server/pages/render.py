"""Renders templates: what every page knows, how it links, and where its JSON lies."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from warpwatch import __version__
from warpwatch.db.reads.code import RepositoryRow, list_repositories
from warpwatch.db.reads.query import Session
from warpwatch.server.explanation.kernel_names import short_name
from warpwatch.server.figures import formats
from warpwatch.server.http.problems import not_found
from warpwatch.server.http.service import Db, alarms_of

WEB = Path(__file__).parent.parent.parent / "web"


class Scope:
    """What a request for a page is about: its session, its repository and the others that could be switched to."""

    def __init__(self, request: Request, session: Db, repository: str | None = None) -> None:
        self.request = request
        self.session: Session = session
        self.repositories: list[RepositoryRow] = list_repositories(session)
        self.repository: RepositoryRow | None = self._choose(repository)

    def _choose(self, name: str | None) -> RepositoryRow | None:
        if name:
            found = next((row for row in self.repositories if row.name == name), None)
            if found is None:
                raise not_found("repository", name, "register it with `warpwatch repository add NAME URL`")
            return found
        # The one that was registered first is the reader's own; examples come later.
        return min(self.repositories, key=lambda row: row.id, default=None)

    def page(self, template: str, *, json: str | None = None, status: int = 200, **values: Any) -> HTMLResponse:
        """The page; `json` is the address of its JSON below /api/v1, None where there is none."""
        values |= {
            "repository": self.repository,
            "repositories": self.repositories,
            "json_url": json and f"/api/v1{json}",
        }
        if self.repository is not None:
            values["alarm_count"] = alarms_of(self.request).count(self.session, self.repository.id)
        return render(self.request, template, status=status, **values)

    def moved(self, name: str) -> None:
        """The thing shown belongs to the repository `name`, whatever the address said."""
        self.repository = next(row for row in self.repositories if row.name == name)


Page = Annotated[Scope, Depends(Scope, scope="function")]


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A template with what every page needs; also works without a database, for error pages."""
    values = {"repository": None, "repositories": [], "json_url": None, "alarm_count": 0, **values}
    text = environment().get_template(template).render(request=request, path=request.url.path, **values)
    return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})


@cache
def environment() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(WEB / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {function.__name__: function for function in formats.FILTERS}
    jinja.filters["kernel_name"] = short_name
    jinja.filters["row_option"] = lambda device: (device.key, device.name)
    jinja.globals |= {"link": link, "query": query, "asset": asset, "version": __version__}
    jinja.policies["json.dumps_kwargs"] = {"default": _plain, "separators": (",", ":")}
    return jinja


@pass_context
def link(context: Context, path: str, **filters: Any) -> str:
    """`path` with its filters, and with the repository of the page unless another is named."""
    repository = filters.pop("repository", None)
    if repository is None and context.get("repository") is not None:
        repository = context["repository"].name
    return query(path, repository=repository, **filters)


def query(path: str, **filters: Any) -> str:
    """`path` with every filter that is set; lists become repeated filters."""
    kept = {key: value for key, value in filters.items() if value not in (None, "", [], False)}
    return f"{path}?{urlencode(kept, doseq=True)}" if kept else path


@cache
def asset(name: str) -> str:
    """Address of a static file; it changes with the file, so that browsers may keep it."""
    digest = hashlib.sha256((WEB / "static" / name).read_bytes()).hexdigest()[:10]
    return f"/static/{name}?v={digest}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
