"""A published site: whole and interactive from a disk and below a path, with the numbers of the server's pages."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from fastapi.testclient import TestClient
from playwright.sync_api import BrowserContext, expect

from tests.browser.conftest import Visit
from tests.browser.test_every_page import EVERY_RULE
from warpwatch import git
from warpwatch.cli.publish import publish_site
from warpwatch.cli.results_files import import_file
from warpwatch.db import migrate
from warpwatch.db.database import Database
from warpwatch.server.app import create_app
from warpwatch.server.http.public_markup import Element, parse
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

pytestmark = pytest.mark.browser
FOLDER = Path(__file__).parents[2] / "docs" / "example"
EXAMPLE, HISTORY = FOLDER / "rows.wwb", FOLDER / "rows.bundle"
PATH = "some/path"


# Tests with a browser come after those of all files without, so this module has two turns.
@pytest.fixture(scope="session")
def published(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Settings, Database]]:
    """The example in a database of its own, and its site."""
    folder = tmp_path_factory.mktemp("published")
    with migrate.scratch_database(postgres_url) as url:
        migrate.upgrade(url)
        settings, database = Settings(home=folder / "home", database_url=url), Database(url)
        git.update_mirror(str(HISTORY), settings.home)
        import_file(url, EXAMPLE, "rows", url=str(HISTORY))
        Judge(settings, database).sweep()
        # In a thread of its own, because an event loop of the browser's runs in this one.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(publish_site, settings, url, folder / "host" / PATH, ["rows"]).result()
        yield folder / "host" / PATH, settings, database
        database.close()


@pytest.fixture
def host(published: tuple[Path, Settings, Database]) -> Iterator[str]:
    """The address of a web host that has the site below a path."""
    folder = published[0].parents[1]
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/{PATH}"
        server.shutdown()


def test_every_link_of_a_site_leads_to_a_file(published: tuple[Path, Settings, Database]) -> None:
    site = published[0]
    files = {str(path) for path in site.rglob("*") if path.is_file()}
    pages = {path for path in files if path.endswith(".html")}
    reached, labels = {str(site / "index.html")}, 0
    for page in pages:
        folder, markup = Path(page).parent, Path(page).read_text()
        shapes = re.findall(r'<g id="(shape-\d+)">', markup)
        assert len(shapes) == len(set(shapes)), page
        assert set(shapes) == set(re.findall(r'<use href="#([^"]*)"/>', markup)), page
        drawn = re.findall(r"<svg[^>]*>(.*?)</svg>", markup, re.DOTALL)
        pictures = [picture for picture in drawn if len(picture) >= 60 and "class=" not in picture]
        assert len(pictures) == len(set(pictures)), f"{page} draws a picture twice"
        for address in set(re.findall(r' (?:href|src|value)="(\.[^"]*|/[^"]*)"', markup)):
            parts = urlsplit(address.replace("&amp;", "&"))
            target = os.path.normpath(folder / unquote(parts.path))
            assert target in files, (page, address)
            reached.add(target)
        for literal in re.findall(r'href=\\("[^"\\]*)\\"', markup):
            in_chart = urlsplit(json.loads(f'{literal}"').replace("&amp;", "&"))
            assert os.path.normpath(folder / unquote(in_chart.path)) in files, (page, literal)
            labels += 1
        assert not re.search(r"class=\"note[^>]*>\s*·|Triage selected", markup), (
            f"{page} has traces of links that are gone"
        )
    assert labels > 0, "labels of charts are links"
    assert pages - reached == set(), "each page is linked from another"


@pytest.mark.parametrize("place", ["file", "host"])
def test_a_site_works_without_a_server(
    published: tuple[Path, Settings, Database], host: str, place: str, shared_context: BrowserContext
) -> None:
    site = published[0]
    visit = Visit(shared_context.new_page(), site.as_uri() if place == "file" else host)
    visit.watch()
    page = visit.page
    page.goto(f"{visit.server}/index.html")
    page.get_by_role("link", name="rows", exact=True).first.click()
    page.locator("[data-operator] details summary").first.click()
    expect(page.locator("tr.cases table").first).to_be_visible()
    page.locator("[data-operator] th a").first.click()
    page.get_by_role("link", name="Over commits").click()
    expect(page.locator("[data-figure][data-drawn]").first).to_be_visible(timeout=15_000)
    plot = "document.querySelector('.js-plotly-plot')"
    point = page.evaluate(f"{plot}.data.find((trace) => trace.customdata?.[0]).customdata[0][0]")
    page.goto(page.url.rpartition("/")[0] + "/" + point)
    expect(page.locator("h1")).to_have_count(1)
    page.get_by_role("link", name="Regressions").first.click()
    page.locator("table.events a").first.click()
    page.locator("#evidence .tabs a").last.click()
    visit.wait_for_charts()
    if place == "host":
        # From a disk, axe itself complains that it cannot fetch the styles.
        addresses = ("index.html", "rows/index.html", "rows/commits.html", "rows/kernels.html", "rows/regressions.html")
        for address in addresses:
            page.goto(f"{visit.server}/{address}")
            violations = Axe().run(page, options=EVERY_RULE).response["violations"]
            assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:3]) for rule in violations] == []
    page.close()
    assert visit.faults == []


def numbers(markup: str) -> list[str]:
    """Numbers and statements of a page, in order, without those of the bar for triage."""
    main = next(element for element in parse(markup).descendants() if element.tag == "main")
    main.children = [child for child in main.children if isinstance(child, str) or not child.has_class("triage-bar")]
    shown = [element for element in main.descendants() if element.has_class("number", "statement", "hero", "big")]
    return [" ".join(_text(element).split()) for element in shown if element.tag not in ("th", "time")]


def _text(element: Element) -> str:
    return "".join(child if isinstance(child, str) else _text(child) for child in element.children)


def test_a_site_has_the_numbers_of_the_server(published: tuple[Path, Settings, Database]) -> None:
    site, settings, database = published
    commit = max((site / "rows" / "commits").iterdir(), key=lambda file: file.stat().st_size)
    regression = min((site / "rows" / "regressions").glob("?.html"))
    pages = {
        "rows/kernels.html": "/kernels?repository=rows",
        "rows/kernels/softmax.html": "/kernels/softmax?repository=rows",
        f"rows/commits/{commit.name}": f"/commits/{commit.stem}?repository=rows",
        f"rows/regressions/{regression.name}": f"/regressions/{regression.stem}?repository=rows",
        "rows/commits.html": "/commits?repository=rows",
    }
    with TestClient(create_app(settings, database, judge=False), base_url="http://127.0.0.1:8321") as client:
        for file, address in pages.items():
            expected = numbers(client.get(address).text)
            assert len(expected) >= 3, address
            assert numbers((site / file).read_text()) == expected, address
