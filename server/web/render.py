"""Renders templates with the values, links and JSON address that every page needs, and errors as pages."""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined, pass_context
from jinja2.bccache import Bucket
from jinja2.runtime import Context

from warpwatch import __version__
from warpwatch.db.reads.code import RepositoryRow, list_repositories
from warpwatch.db.reads.devices import list_device_names
from warpwatch.db.reads.lines import ALL_COMMITS, HistoryLine, read_line, read_lines
from warpwatch.db.reads.query import Session
from warpwatch.server.explanation.choices import describe_choice
from warpwatch.server.explanation.kernel_names import short_name
from warpwatch.server.figures.standalone import check_figure, standalone_html
from warpwatch.server.http.access import PUBLIC
from warpwatch.server.http.problems import FieldError, Problem, UnknownNameProblem, not_found
from warpwatch.server.http.security import session_cookie
from warpwatch.server.http.service import Branch, Db, alarms_of, line_or_404, settings_of
from warpwatch.server.intake.filters import ALL_BRANCHES
from warpwatch.server.reports import formats, wording
from warpwatch.server.reports.sensitivity import detectable_text
from warpwatch.server.web.forms import field_message
from warpwatch.server.web.tabs import AREAS

_TITLES = {
    400: "Invalid request",
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    413: "Too large",
    422: "Invalid request",
    500: "Something went wrong",
    502: "The repository cannot be read",
    503: "Database unavailable",
}
_HINTS = {
    404: ("It may not have been measured yet. To measure a commit:", "warpwatch submit --commit HEAD --wait"),
    500: ("No data was changed. Check the service:", "curl {address}api/v1/health"),
    503: (
        "No data is lost; reload when the database is back. Check the service:",
        "curl {address}api/v1/health",
    ),
}


def problem_page(request: Request, problem: Problem) -> Response:
    """The page for a problem; reads nothing from the database, which may be what is broken."""
    # Measuring a commit makes names known; it does not help at an address that leads nowhere, and the public cannot.
    has_hint = problem.status != 404 or (isinstance(problem, UnknownNameProblem) and not is_public(request))
    text, command = _HINTS.get(problem.status, ("", None)) if has_hint else ("", None)
    command = command and command.format(address=request.base_url)
    title = _TITLES.get(problem.status, problem.title)
    detail = field_message(FieldError(field="", message=problem.detail))
    return render(
        request,
        "error.html",
        status=problem.status,
        problem=problem,
        detail=detail,
        title=title,
        hint=text,
        command=command,
    )


OF_NO_REPOSITORY = ("/settings/people", "/settings/devices", "/api/v1/docs", "/login")
"""Pages that speak of no repository: their bar names none."""
SAME_PAGE = (
    "/overview",
    "/commits",
    "/compare",
    "/regressions",
    "/kernels",
    "/runs",
    "/runs/new",
    "/runs/jobs",
    "/runs/traces",
    "/runs/judgements",
    "/settings/repository",
)
"""Pages that another repository has too, so that choosing one stays on the page."""
OF_A_BRANCH = ("/overview", "/kernels", "/history", "/regressions")
"""Pages that speak of one branch: their links keep it."""
WEB = Path(__file__).parent.parent.parent / "web"


class Scope:
    """The context of a page: its session, its repository and all repositories to switch to."""

    def __init__(self, request: Request, session: Db, repository: str | None = None, branch: Branch = None) -> None:
        self.request = request
        self.session: Session = session
        self.repositories: list[RepositoryRow] = list_repositories(session)
        self.repository: RepositoryRow | None = self._choose(repository)
        self._lines: dict[str, HistoryLine] = {}
        self.line: HistoryLine = self._line(branch)
        self.device_names = DeviceNames(session)

    def _line(self, branch: str | None) -> HistoryLine:
        """History line of the page: the branch that the address names, by default the watched branch."""
        if self.repository is None:
            return ALL_COMMITS
        watched, self._lines = read_lines(self.session, self.repository.id)
        if branch == ALL_BRANCHES:
            return ALL_COMMITS
        if not branch:
            return watched
        return self._lines.get(branch) or line_or_404(self.session, self.repository, branch)

    def line_of(self, branch: str | None) -> HistoryLine:
        """History line of a branch of the page's repository; the page's own without a branch, or where it is gone."""
        if self.repository is None or not branch:
            return self.line
        return self._lines.get(branch) or read_line(self.session, self.repository.id, branch) or self.line

    def _choose(self, name: str | None) -> RepositoryRow | None:
        if name:
            repository = next((row for row in self.repositories if row.name == name), None)
            if repository is None:
                raise not_found("repository", name, "register it with `warpwatch repository add NAME URL`")
            return repository
        # The repository that was registered first is the user's; example repositories are registered later.
        return min(self.repositories, key=lambda row: row.id, default=None)

    def page(self, template: str, *, json: str | None = None, status: int = 200, **values: Any) -> HTMLResponse:
        """Renders the page. json: address of its data below /api/v1, None where there is none."""
        values |= {
            "device_names": self.device_names,
            "repository": self.repository,
            "repositories": self.repositories,
            "json_url": json and f"/api/v1{json}",
            "line": self.line,
            # The session of the public sees no health, and would fill the cache of the others with that.
            "alarm_count": alarms_of(self.request).count(self.session, None) if not is_public(self.request) else 0,
            "branch_names": list(self._lines),
        }
        return render(self.request, template, status=status, **values)

    def moved(self, name: str) -> None:
        """Switches to the repository that the shown object belongs to, whatever the address names."""
        if self.repository is None or self.repository.name != name:
            # A repository that is being deleted has left the list before its jobs are gone.
            self.repository = self._choose(name)
            self.line = self._line(None)


class DeviceNames(dict[str, str]):
    """The name of each device by its key, read when a page first needs one; a key without a device stands for itself.

    session: None for a page that reads nothing.
    """

    def __init__(self, session: Session | None = None) -> None:
        super().__init__()
        self._session = session

    def __missing__(self, key: str) -> str:
        if self._session is not None:
            self.update(list_device_names(self._session))
            self._session = None
        return self.get(key, key)


def is_public(request: Request) -> bool:
    """Whether the reader has no account."""
    return getattr(request.state, "caller", None) is PUBLIC


PageScope = Annotated[Scope, Depends(Scope, scope="function")]


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Renders a template with the values that every page needs; works without a database, for error pages.

    `?chart=ID.html` gives one chart of the page as a file instead.
    """
    charts: dict[str, str] = {}
    nothing: dict[str, Any] = {"repository": None, "repositories": [], "json_url": None, "alarm_count": 0}
    nothing["device_names"] = DeviceNames()
    values = {**nothing, "line": ALL_COMMITS, "branch_names": [], **values}
    values["logged_in"] = bool(session_cookie(request.headers)) and request.app.state.sessions is not None
    path = request.url.path
    values["is_public"] = is_public(request)
    values["same_page"] = SAME_PAGE
    values["of_repository"] = values["repository"] is not None and path != "/" and not path.startswith(OF_NO_REPOSITORY)
    text = environment().get_template(template).render(request=request, path=path, charts=charts, **values)
    if charts and settings_of(request).check_figures:
        for figure in charts.values():
            check_figure(figure)
    name = request.query_params.get("chart")
    if name is None or status != HTTPStatus.OK:
        return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})
    if name.removesuffix(".html") not in charts:
        names = ", ".join(f"{chart}.html" for chart in charts)
        raise not_found("chart", name, f"this page has {names}" if names else "this page has no chart")
    file = standalone_html(charts[name.removesuffix(".html")], str(request.base_url).rstrip("/"))
    attachment = f'attachment; filename="{name.removesuffix(".html")}.html"'
    return HTMLResponse(file, headers={"Cache-Control": "no-store", "Content-Disposition": attachment})


class PageCache(FileSystemBytecodeCache):
    """Keeps compiled templates in a folder, as Python does with modules: compiling all takes a second of a core."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Nothing is kept where the folder cannot be written."""
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                Path(self.directory).mkdir(exist_ok=True)
                super().dump_bytecode(bucket)


@cache
def environment() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(WEB / "templates"),
        bytecode_cache=PageCache(str(WEB / "templates" / "__pycache__")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {function.__name__: function for function in (*formats.FILTERS, *wording.FILTERS)}
    jinja.filters |= {"kernel_name": short_name, "detectable_text": detectable_text}
    jinja.filters["tuned_choice"] = describe_choice
    jinja.filters["row_option"] = lambda device: (device.key, device.name)
    jinja.globals |= {"link": link, "query": query, "asset": asset, "version": __version__, "settings_areas": AREAS}
    jinja.globals["query_of"] = query_of
    jinja.policies["json.dumps_kwargs"] = {"default": _plain, "separators": (",", ":")}
    return jinja


def compile_templates() -> None:
    """Compiles every page. Without it, the first visitor of each page waits a tenth of a second for that."""
    for name in environment().list_templates(["html"]):
        environment().get_template(name)


@pass_context
def link(context: Context, path: str, **filters: Any) -> str:
    """`path` with its filters and, unless another is given, the repository of the page and its branch."""
    repository = filters.pop("repository", None)
    if repository is None and context.get("repository") is not None:
        repository = context["repository"].name
        if path.startswith(OF_A_BRANCH):
            filters = {"branch": context["line"].branch, **filters}
    return query(path, repository=repository, **filters)


def query(path: str, **filters: Any) -> str:
    """`path` with every filter that is set; lists become repeated filters."""
    given = {key: value for key, value in filters.items() if value not in (None, "", [], False)}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def query_of(path: str, filters: list[tuple[str, str]]) -> str:
    """The same with filters that may be repeated, in order."""
    return f"{path}?{urlencode(filters)}"


@cache
def asset(name: str) -> str:
    """Address of a static file; it changes with the content, so browsers may cache it for ever."""
    digest = hashlib.sha256((WEB / "static" / name).read_bytes()).hexdigest()[:10]
    return f"/static/{name}?v={digest}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
