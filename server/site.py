"""Builds a folder of static pages from the database, by asking the server's own application as the public would."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import httpx
from fastapi import FastAPI

from warpwatch import __version__
from warpwatch.db.database import Database
from warpwatch.db.reads.site import SiteCommit, SiteOperator, SiteRepository, read_site
from warpwatch.server.app import STATIC_FOLDER, create_app
from warpwatch.server.http.public_markup import Element, PublicMarkup, parse, write
from warpwatch.server.web.evidence import EvidenceTab
from warpwatch.settings import Settings

STATE = ".warpwatch-site.json"
"""File of the folder that says what its pages were made from."""
AT_ONCE = 3
"""Pages that are made at the same time: while PostgreSQL answers one, Python writes another."""
TABS = ("sizes", "devices", "code")
_SECONDS = 600.0
_ORIGIN = "http://127.0.0.1:8321"
_UNSAFE = re.compile(r"[^\w.-]+")
_NUMBERED = re.compile(r"-page-(\d+)\.html$")
_PART = re.compile(rf"(-page-\d+|(?<=\d)-({'|'.join(EvidenceTab)}))?\.html$")
"""The end of the name of a page that another one leads to."""
_URL = re.compile(r'url\("(/[^"]*)"\)')
_ADDRESS = re.compile(r'(?<!\\)"(/(?:[^"\\]|\\.)*)"')
_LABEL_ADDRESS = re.compile(r'href=\\("(?:[^"\\]|\\u[0-9a-f]{4})*)\\"')
"""In a label of a chart, which is markup inside a string."""
_OF_TESTS = frozenset(("data-statement", "data-series", "data-commit", "data-branches"))
"""Attributes of templates that no script and no style reads: a tenth of the page of a commit."""
_SMALLEST_SHARED = 60
"""Characters of a picture that are longer than a reference to it."""
_EVERY_COMMIT = "SHA"
"""Stands for a commit in the address that a chart makes links from."""


class SiteError(RuntimeError):
    """The site cannot be built; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class SitePage:
    """A page of the site. key: digest of the data that it shows. json: whether its data are published beside it."""

    address: str
    file: str
    key: str
    has_json: bool = True

    @property
    def json_file(self) -> str:
        return f"{self.file.removesuffix('.html')}.json"


@dataclass(slots=True)
class SiteReport:
    """What was built. files, size: of the whole site, size in bytes."""

    rendered: int = 0
    kept: int = 0
    removed: int = 0
    files: int = 0
    size: int = 0


def build_site(
    settings: Settings, database: Database, published: Database, folder: Path, *, everything: bool = False
) -> SiteReport:
    """Writes the site into the folder; pages whose data are those of the last time stay as they are.

    published: see db.published. everything: renders all pages again. SiteError for a folder that is no site of ours.
    """
    state = _read_state(folder)
    with published.session() as session:
        repositories = read_site(session)
    if not repositories:
        raise SiteError("nothing to publish: no repository is public; name one with --repository, or mark it public")
    settings = replace(settings, token=os.urandom(16).hex(), is_public=True, public_requests=10**6, host="127.0.0.1")
    app = create_app(settings, database, judge=False, published=published)
    site = _Site(app, folder, plan(repositories), {} if everything else state)
    return asyncio.run(site.build())


def _read_state(folder: Path) -> dict[str, Any]:
    file = folder / STATE
    if file.is_file():
        state: dict[str, Any] = json.loads(file.read_text() or "{}")
        return state
    if folder.is_dir() and any(folder.iterdir()):
        raise SiteError(f"{folder} is not empty and holds no published site; choose another folder, or empty it")
    return {}


# --- which pages there are -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SitePlan:
    """Every page of the site, and what leads to which of them."""

    repositories: dict[str, SiteRepository]
    pages: dict[str, SitePage] = field(default_factory=dict)
    series: dict[int, str] = field(default_factory=dict)

    def add(self, path: str, file: str, key: str, filters: dict[str, str], *, has_json: bool = True) -> None:
        address = canonical(path, filters)
        self.pages[address] = SitePage(address, file, key, has_json)

    def find(self, address: str) -> SitePage | None:
        """The page that an address of the server leads to; None where the site has none."""
        parts = urlsplit(address)
        filters = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = parts.path
        if path.startswith("/history/") and path[9:].isdigit():
            return self.pages.get(self.series.get(int(path[9:]), ""))
        repository = self.repositories.get(filters.get("repository", next(iter(self.repositories))))
        if repository is None or filters.get("branch") not in (None, repository.branch):
            return None
        filters.pop("branch", None)
        if path != "/":
            filters["repository"] = repository.name
        if path.startswith("/kernels/"):
            return self._kernel_page(repository, path, filters)
        if path in ("/overview", "/kernels"):
            filters = _without_defaults(filters, repository.device, repository.metrics)
        elif path.startswith("/regressions/"):
            filters = {name: value for name, value in filters.items() if name in ("evidence", "repository")}
        elif path == "/regressions":
            filters.pop("whole", None)
            if filters.get("verdict") == "suspected":
                filters |= {"tab": filters.pop("verdict")}
        return self.pages.get(canonical(path, filters))

    def _kernel_page(self, repository: SiteRepository, path: str, filters: dict[str, str]) -> SitePage | None:
        operator = repository.operators.get(unquote(path.removeprefix("/kernels/")))
        if operator is None:
            return None
        filters = _without_defaults(filters, operator.device, repository.metrics)
        if filters.get("tab", "commits") == "commits" and ("case" in filters or "tab" in filters):
            # All variants of a case are in one history.
            filters.pop("variant", None)
            filters.setdefault("case", operator.first_case(filters.get("device") or operator.device) or "")
            filters["tab"] = "commits"
        else:
            filters.pop("case", None)
        return self.pages.get(canonical(path, filters))


def _without_defaults(filters: dict[str, str], device: str, metrics: dict[str, str]) -> dict[str, str]:
    """The filters of the page without those that choose what the page shows anyway."""
    chosen = filters.get("device") or device
    left = {name: value for name, value in filters.items() if not (name == "device" and value == device)}
    if left.get("metric") in (None, metrics.get(chosen)):
        left.pop("metric", None)
    return left


def canonical(path: str, filters: dict[str, Any]) -> str:
    given = sorted((name, str(value)) for name, value in filters.items() if value)
    return f"{path}?{urlencode(given)}" if given else path


def plan(repositories: Iterable[SiteRepository]) -> SitePlan:
    """The pages of the site: of each repository its overview, kernels with a history per case, commits and changes."""
    site = SitePlan({row.name: row for row in repositories})
    everything = _digest([row.key for row in site.repositories.values()])
    site.add("/", "index.html", everything, {})
    for row in site.repositories.values():
        folder, of = slug(row.name), {"repository": row.name}
        for device in row.devices:
            chosen = of | ({"device": device} if device != row.device else {})
            end = f"-{slug(device)}" if device != row.device else ""
            site.add("/overview", f"{folder}/index{end}.html", everything, chosen)
            site.add("/kernels", f"{folder}/kernels{end}.html", row.key, chosen)
        site.add("/commits", f"{folder}/commits.html", row.key, of)
        for tab in ("open", "suspected", "closed", "improvements"):
            chosen, end = (of | {"tab": tab}, f"-{tab}") if tab != "open" else (of, "")
            site.add("/regressions", f"{folder}/regressions{end}.html", row.key, chosen)
        site.add("/verdicts", f"{folder}/verdicts.html", row.key, of)
        for number in row.regressions:
            site.add(f"/regressions/{number}", f"{folder}/regressions/{number}.html", row.key, of)
        for operator in row.operators.values():
            _add_operator(site, row, operator)
        for commit in row.commits:
            # Its numbers are those of its histories, whose data are published.
            site.add(f"/commits/{commit.sha}", _commit_file(folder, commit), commit.key, of, has_json=False)
    return site


def _add_operator(site: SitePlan, row: SiteRepository, operator: SiteOperator) -> None:
    path, of = f"/kernels/{quote(operator.name, safe='')}", {"repository": row.name}
    name = f"{slug(row.name)}/kernels/{slug(operator.name)}"
    for device, cases in operator.cases.items():
        chosen = of | ({"device": device} if device != operator.device else {})
        end = f"-{slug(device)}" if device != operator.device else ""
        site.add(path, f"{name}{end}.html", operator.key, chosen)
        for tab in TABS:
            site.add(path, f"{name}{end}-{tab}.html", operator.key, chosen | {"tab": tab}, has_json=False)
        for case, numbers in cases.items():
            filters = chosen | {"tab": "commits", "case": case}
            site.add(path, f"{name}/{slug(case)}{end}.html", operator.key, filters)
            site.series |= dict.fromkeys(numbers, canonical(path, filters))


def _commit_file(folder: str, commit: SiteCommit) -> str:
    return f"{folder}/commits/{commit.sha}.html"


def slug(name: str) -> str:
    """A file name for a name, which stays the same as long as the name does."""
    plain = _UNSAFE.sub("_", name)[:80].lstrip(".")
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]


# --- from a page to a file -------------------------------------------------------------------------------------------


class _Links:
    """Where the addresses of one page lead to, relative to its file."""

    def __init__(self, plan: SitePlan, page: SitePage) -> None:
        self._plan = plan
        self._page = page
        self._path = urlsplit(page.address).path
        self.following: list[SitePage] = []
        self.assets: set[str] = set()
        self.json: str | None = None
        """Address of the data of the page."""

    def place(self, address: str) -> str | None:
        """The file that an address leads to; None where the site has none."""
        parts = urlsplit(address)
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        if parts.path.startswith("/static/"):
            name = unquote(parts.path.removeprefix("/static/"))
            self.assets.add(name)
            return self._relative(f"static/{name}") + (f"?{parts.query}" if parts.query else "")
        if parts.path.startswith("/api/v1/"):
            return self._data(address)
        page = self._plan.find(self._now(address)) or self._next(address)
        return None if page is None else self._relative(page.file) + fragment

    def _data(self, address: str) -> str | None:
        """The file with the data of the page: the first address of data that the page names is its own."""
        if not self._page.has_json or self.json not in (None, address):
            return None
        self.json = address
        return self._relative(self._page.json_file)

    def _now(self, address: str) -> str:
        """The address without its case, where the history of a case leads to the newest times of its operator.

        Elsewhere a link to a case leads to the history of the case.
        """
        parts = urlsplit(address)
        filters = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path != self._path or "tab" in filters or "tab=commits" not in self._page.address:
            return address
        if filters.get("case") not in parse_qs(urlsplit(self._page.address).query).get("case", []):
            return address
        return canonical(parts.path, {name: value for name, value in filters.items() if name != "case"})

    def _next(self, address: str) -> SitePage | None:
        """A page that only this one leads to: the following one of a list, or another tab of evidence."""
        parts = urlsplit(address)
        filters = {name: values[0] for name, values in parse_qs(parts.query).items()}
        evidence, before = filters.pop("evidence", None), filters.pop("before", None)
        if parts.path != self._path or (before or evidence) is None:
            return None
        if self._plan.find(canonical(parts.path, filters)) is None:
            return None
        stem = _PART.sub("", self._page.file)
        match = _NUMBERED.search(self._page.file)
        end = evidence or f"page-{int(match[1]) + 1 if match else 2}"
        kept = {"evidence": evidence} if evidence else {"before": before}
        page = SitePage(canonical(parts.path, filters | kept), f"{stem}-{end}.html", self._page.key, has_json=False)
        self._plan.pages[page.address] = page
        self.following.append(page)
        return page

    def _relative(self, file: str) -> str:
        where = os.path.relpath(file, Path(self._page.file).parent)
        return quote(where if where.startswith(".") else f"./{where}")

    def of_commits(self, address: str) -> str | None:
        """The same for the address from which a chart makes those of its commits."""
        first = next((row for row in self._plan.repositories.values() if row.commits), None)
        if first is None or f"/commits/{_EVERY_COMMIT}" not in address:
            return self.place(address)
        name = parse_qs(urlsplit(address).query).get("repository", [first.name])[0]
        return self._relative(f"{slug(name)}/commits/{_EVERY_COMMIT}.html")


def _place_texts(tree: Element, links: _Links) -> None:
    """Gives the addresses inside charts and styles their places, and times their date: "2 d ago" is soon wrong."""
    for element in tree.descendants():
        for name in _OF_TESTS & element.attributes.keys():
            del element.attributes[name]
        if element.tag == "script" and element.attributes.get("type") == "application/json":
            text = "".join(child for child in element.children if isinstance(child, str))
            text = _ADDRESS.sub(lambda match: json.dumps(_placed(links, match[0])), text)
            element.children = [_LABEL_ADDRESS.sub(lambda match: _in_label(links, f'{match[1]}"'), text)]
        elif element.tag == "style":
            text = "".join(child for child in element.children if isinstance(child, str))
            element.children = [_URL.sub(lambda match: f'url("{links.place(match[1])}")', text)]
        elif element.tag == "time" and element.attributes.get("datetime"):
            moment = datetime.fromisoformat(element.attributes["datetime"] or "").astimezone(UTC)
            element.children = [f"{moment:%Y-%m-%d %H:%M}"]


def _share_pictures(tree: Element) -> None:
    """Draws a picture that a page has several times, such as the mark of a check that passes, once, and refers to it
    elsewhere: every seventh byte of the page of a commit."""
    first: dict[str, Element] = {}
    for picture in [element for element in tree.descendants() if element.tag == "svg" and element.is_closed]:
        drawn = write(Element("", children=picture.children))
        # A class looks for its colour among the elements around it, which a reference leaves.
        if len(drawn) < _SMALLEST_SHARED or "id=" in drawn or "class=" in drawn:
            continue
        shape = first.get(drawn)
        if shape is None:
            first[drawn] = shape = Element("g", children=picture.children)
            picture.children = [shape]
            continue
        if "id" not in shape.attributes:
            shape.attributes["id"] = f"shape-{list(first).index(drawn)}"
        picture.children = [Element("use", {"href": f"#{shape.attributes['id']}"}, is_closed=False)]


def _in_label(links: _Links, literal: str) -> str:
    """The address of a link in a label, at its place."""
    place = json.dumps(escape(links.place(unescape(json.loads(literal))) or ""))
    return f'href=\\{place[:-1]}\\"'


def _placed(links: _Links, literal: str) -> str:
    """The text of a string in JSON, which is an address or only begins like one."""
    text: str = json.loads(literal)
    return links.of_commits(text) or ""


# --- the files -------------------------------------------------------------------------------------------------------


class _Site:
    """One run: renders the pages of a plan, and removes the files of pages that are gone."""

    def __init__(self, app: FastAPI, folder: Path, plan: SitePlan, state: dict[str, Any]) -> None:
        self._folder = folder
        self._plan = plan
        self._version = _version()
        self._before: dict[str, Any] = state.get("pages", {}) if state.get("version") == self._version else {}
        self._old_files: list[str] = state.get("files", [])
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=_ORIGIN, timeout=_SECONDS)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._made: dict[str, dict[str, Any]] = {}
        self._assets: set[str] = set()
        self.report = SiteReport()

    async def build(self) -> SiteReport:
        self._folder.mkdir(parents=True, exist_ok=True)
        # A folder whose first build was interrupted is a site, too.
        (self._folder / STATE).touch()
        async with self._client:
            await asyncio.gather(*(self._make(page) for page in list(self._plan.pages.values())))
            for row in self._plan.repositories.values():
                await self._badges(row)
        for made in self._made.values():
            self._assets.update(made["assets"])
        for name in self._assets:
            target = self._folder / "static" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(STATIC_FOLDER / name, target)
        self._finish()
        return self.report

    async def _make(self, page: SitePage) -> None:
        """Makes a page, and those that only the page itself names, such as its next one."""
        before = self._before.get(page.address)
        if before is not None and before["key"] == page.key and (self._folder / page.file).is_file():
            self._made[page.address] = before
            self.report.kept += 1
            for address, file in before["next"].items():
                self._plan.pages[address] = SitePage(address, file, page.key, has_json=False)
                await self._make(self._plan.pages[address])
            return
        async with self._turns:
            made, following = await self._render(page)
        self._made[page.address] = made
        for next_page in following:
            await self._make(next_page)

    async def _render(self, page: SitePage) -> tuple[dict[str, Any], list[SitePage]]:
        path = urlsplit(page.address).path
        # The server sends what changes have in common later.
        answer = await self._get(f"{page.address}&whole=true" if path == "/regressions" else page.address)
        made: dict[str, Any] = {"key": page.key, "files": [page.file], "assets": [], "next": {}}
        tree = parse(answer.text)
        await self._fill_in(tree)
        links = _Links(self._plan, page)
        markup = PublicMarkup(links.place, path, has_server=False)
        tree = markup.kept(tree)
        _place_texts(tree, links)
        _share_pictures(tree)
        if links.json is not None:
            made["files"].append(page.json_file)
            self._put(page.json_file, (await self._get(links.json)).content)
        made["next"] = {following.address: following.file for following in links.following}
        made["assets"] = sorted(links.assets)
        self._put(page.file, write(tree).encode())
        self.report.rendered += 1
        return made, links.following

    async def _fill_in(self, tree: Element) -> None:
        """Puts the parts into a page that the server sends when a reader unfolds them."""
        places = {element.attributes["id"]: element for element in tree.descendants() if "id" in element.attributes}
        for element in list(tree.descendants()):
            target = (element.attributes.get("hx-target") or "").removeprefix("#")
            address = element.attributes.get("hx-get")
            if address and "toggle" in (element.attributes.get("hx-trigger") or "") and target in places:
                places[target].children = parse((await self._get(address)).text).children

    async def _badges(self, row: SiteRepository) -> None:
        for name, operator in [("badge", None), *((f"badges/{slug(name)}", name) for name in row.operators)]:
            address = canonical(f"/api/v1/badges/{quote(row.name, safe='')}.svg", {"operator": operator})
            file = f"{slug(row.name)}/{name}.svg"
            self._put(file, (await self._get(address)).content)
            self._made[address] = {"key": row.key, "files": [file], "assets": [], "next": {}}

    async def _get(self, address: str) -> httpx.Response:
        answer = await self._client.get(address, headers={"Accept": "text/html", "Accept-Encoding": "identity"})
        if answer.status_code != 200:
            raise SiteError(f"{address} was answered with {answer.status_code}: {answer.text[:300]}")
        return answer

    def _put(self, name: str, content: bytes) -> None:
        """Writes a file, unless it holds that already: those who copy the site see what changed."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_bytes() != content:
            file.write_bytes(content)

    def _finish(self) -> None:
        files = sorted({file for made in self._made.values() for file in made["files"]})
        files += [f"static/{name}" for name in sorted(self._assets)]
        for name in set(self._old_files) - set(files):
            (self._folder / name).unlink(missing_ok=True)
            self.report.removed += 1
        state = {"version": self._version, "files": files, "pages": self._made}
        (self._folder / STATE).write_text(json.dumps(state, separators=(",", ":")))
        self.report.files = len(files)
        self.report.size = sum((self._folder / name).stat().st_size for name in files)


def _version() -> str:
    """Changes with what pages are made by: the templates, their styles and scripts, and Warpwatch itself."""
    files = sorted(file for file in STATIC_FOLDER.parent.rglob("*.*") if "__pycache__" not in file.parts)
    contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    return _digest([__version__, *contents])
