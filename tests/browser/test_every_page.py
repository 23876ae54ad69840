"""Every page: answers, asks nobody else, complains of nothing, is light, fits a phone, has no violation that axe-core
finds, and says where its JSON is."""

from __future__ import annotations

import html
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import BrowserContext, Page

from tests.browser.conftest import Visit
from tests.browser.operators import OPERATORS
from tests.browser.world import COMMITS, CPU, CRASHED, GPU, SLOWER, WRONG, World
from warpwatch.db.reads.work import list_submissions

pytestmark = pytest.mark.browser
CASE = quote(OPERATORS[0].cases[1][0])
MOST_BYTES = 150_000
"""Of a page as it is sent, without charts."""
_SENT = """[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .filter((entry) => !/plotly|[/]perfetto[/]/.test(entry.name)).map((entry) => entry.encodedBodySize)
    .reduce((sum, size) => sum + size, 0)"""
EVERY_RULE = {"resultTypes": ["violations"]}
OF_COLOURS = ("color-contrast", "link-in-text-block")
"""The rules that depend on colours: all that can differ in the other theme, and the longest."""
STRUCTURE = {"resultTypes": ["violations"], "rules": {rule: {"enabled": False} for rule in OF_COLOURS}}
CONTRAST = {"resultTypes": ["violations", "passes"], "runOnly": list(OF_COLOURS)}
CHECK_NEW_TEXTS = """async ([seen, rules]) => {
    const known = new Set(seen), fresh = new Map();
    for (const element of document.querySelectorAll("body *")) {
        element.removeAttribute("data-new");
        const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        const isShown = element.checkVisibility({opacityProperty: true, visibilityProperty: true});
        if (!isShown || !(isText || element.matches("input, select, textarea"))) continue;
        const {color, fontSize, fontWeight, textDecorationLine, textShadow} = getComputedStyle(element);
        const looks = [color, fontSize, fontWeight, textDecorationLine, textShadow];
        looks.push(element.closest("a") !== null, getComputedStyle(element.parentElement).color);
        for (let above = element; above; above = above.parentElement) {
            const {backgroundColor, backgroundImage, opacity, filter} = getComputedStyle(above);
            const ground = [backgroundColor, backgroundImage, opacity, filter].join(" ");
            if (ground !== "rgba(0, 0, 0, 0) none 1 none") looks.push(ground);
        }
        const key = looks.join("|");
        if (known.has(key) || fresh.get(key) === 10) continue;
        fresh.set(key, (fresh.get(key) ?? 0) + 1);
        element.setAttribute("data-new", key);
    }
    if (!fresh.size) return [[], []];
    // At once, because pages of running jobs replace their parts.
    const {violations, passes} = await axe.run({include: [["[data-new]"]]}, rules);
    const nodes = passes.filter((rule) => rule.id === "color-contrast").flatMap((rule) => rule.nodes);
    const judged = nodes.map((node) => document.querySelector(node.target[0])?.getAttribute("data-new"));
    return [[...new Set(judged.filter((key) => key))], violations];
}"""
"""Checks ten texts of each look that axe judged on no page before. A look is the colours of a text and of all that is
behind it, and its font, which decide about contrast. What lies below something else axe cannot judge."""
LEAVE_OUT_REPEATED = """() => {
    const seen = new Set();
    for (const row of document.querySelectorAll("tbody tr, li")) {
        const shape = [row, ...row.querySelectorAll("*")].map((element) => [
            element.tagName, element.getAttribute("class"), element.getAttribute("style"), element.getAttributeNames(),
            element.childElementCount, element.textContent.trim() === "",
        ]);
        const key = JSON.stringify([row.parentElement.className, shape]);
        row.toggleAttribute("data-repeated", seen.has(key));
        seen.add(key);
    }
}"""
"""axe takes most of its time for rows of long tables. Those that differ from one before in their texts alone are left
out."""

PAGES = {
    "home": "/",
    "overview": "/overview",
    "overview of a suite": f"/overview?device={CPU.device_key}&suite=quick",
    "kernels": "/kernels",
    "operator": "/kernels/kron",
    "operator with its roofline": "/kernels/kron?plane=true",
    "history": f"/history?operator=kron&case={CASE}&variant=v3&device={GPU.device_key}",
    "histories": "/history?operator=kron&scale=log",
    "history with samples over dates": f"/history?operator=kron&case={CASE}&variant=v3&x=date&y=roofline&samples=true",
    "history of the best other variant": f"/history?operator=kron&case={CASE}&y=best",
    "history of memory": f"/history?operator=kron&case={CASE}&y=memory",
    "history of energy": f"/history?operator=kron&case={CASE}&y=energy&device={GPU.device_key}",
    "history of compile time": f"/history?operator=kron&case={CASE}&y=compile",
    "operator over a size": "/kernels/kron?size=n&against=speedup",
    "operator over devices": "/devices/compare?operator=kron&against=share",
    "commits": "/commits",
    "wrong commit": "/commits/{wrong}",
    "crashed commit": "/commits/{crashed}?show=problems",
    "two commits": "/compare?base={before}&head={after}",
    "two variants": "/compare?commit={newest}&left=v1&right=v3",
    "the last two commits": "/compare?only=changes",
    "nothing to compare": "/compare?base={newest}",
    "regressions": "/regressions",
    "suspected": "/regressions?verdict=suspected",
    "closed regressions": "/regressions?tab=closed",
    "improvements": "/regressions?tab=improvements",
    "regressions with what is common": "/regressions?whole=true&state=any",
    "asked between two commits": "/regressions?from={before}&to={after}&operator=kron&assignee=nobody",
    "asked of no commit": "/regressions?from=nowhere",
    "what broke": "/regressions/{broken}",
    "muted series": "/settings/repository?tab=muted",
    "none unsure": "/regressions?verdict=unsure",
    "regression": "/regressions/{slower}",
    "runs": "/runs",
    "form": "/runs/new",
    "run": "/runs/{submission}",
    "held run": "/runs/{held}",
    "jobs": "/runs/jobs?state=all",
    "running job": "/jobs/{running_job}",
    "failed job": "/jobs/{failed_job}",
    "profile job": "/jobs/{profile_job}",
    "trace": "/traces/1",
    "traces": "/runs/traces?operator=kron",
    "launches of an operator": "/runs/traces?operator=kron&view=launches",
    "traces beside each other": "/traces/compare?a=1&b=2",
    "a trace to be compared": "/traces/compare?a=1",
    "saved views": "/settings/repository?tab=views",
    "watches": "/settings/repository?tab=watches",
    "overview of nobody": "/overview?watcher=nobody",
    "machine code": "/kernels/kron?code=code_bytes&arch=sm_80",
    "schedules": "/settings/repository?tab=schedules",
    "health": "/settings/devices?tab=health",
    "devices": "/settings/devices",
    "worker keys": "/settings/devices?tab=keys",
    "settings of a repository": "/settings/repository",
    "retention": "/settings/repository?tab=retention",
    "code host": "/settings/repository?tab=code-host",
    "notifications": "/settings/repository?tab=notifications",
    "CI access": "/settings/repository?tab=ci",
    "API tokens": "/settings/people?tab=tokens",
    "users": "/settings/people?tab=users",
    "audit log": "/settings/people?tab=audit",
    "self-tests": "/settings/devices?tab=self-tests",
    "reference": "/api/v1/docs",
    "how verdicts are made": "/verdicts",
    "tokenizer": "/tokenizer",
}
VARIED = (
    *("overview of a suite", "overview of nobody", "history of the best other variant", "history of memory"),
    *("history of energy", "history of compile time", "the last two commits", "closed regressions", "improvements"),
    *("regressions with what is common", "none unsure", "what broke", "crashed commit", "suspected", "running job"),
    *("held run", "two variants", "asked between two commits", "operator over devices"),
)
"""Pages that differ from others here in their data alone, or in what the texts of a template say of it."""
WITHOUT_JSON = {"form", "tokenizer", "nothing to compare", "a trace to be compared", "asked of no commit"}


def address(world: World, name: str) -> str:
    with world.database.session() as s:
        newest = list_submissions(s, limit=1).items[0].id
    return PAGES[name].format(
        wrong=world.shas[WRONG],
        crashed=world.shas[CRASHED],
        before=world.shas[SLOWER - 1],
        after=world.shas[SLOWER],
        newest=world.shas[COMMITS - 1],
        submission=newest,
        **world.ids,
    )


@pytest.fixture(scope="module")
def tab(shared_context: BrowserContext) -> Iterator[Page]:
    """One for all pages: a new one starts a process and compiles every script anew, half of what a page costs."""
    page = shared_context.new_page()
    yield page
    page.close()


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.nightly) if name in VARIED else name for name in PAGES],
)
def opened(request: pytest.FixtureRequest, tab: Page, server: str, world: World) -> Iterator[Visit]:
    """One page on a phone, which all tests of it share; the last fails when anything on it complained or asked another
    host."""
    visit = Visit(tab, server)
    visit.watch()
    visit.page.set_viewport_size({"width": 390, "height": 844})
    visit.open(address(world, request.param)).wait_for_load_state()
    yield visit
    visit.leave()
    assert visit.faults == []


def test_a_page_is_light(opened: Visit) -> None:
    page = opened.page
    assert 0 < page.evaluate(_SENT) <= MOST_BYTES
    figures = "[...document.querySelectorAll('[data-figure]')].length"
    scripts = page.locator("script[src*=plotly]").count()
    assert bool(page.evaluate(figures)) >= bool(scripts), "a page without charts loads no chart library"


def test_a_page_is_whole_and_fits(opened: Visit, reader: httpx.Client, request: pytest.FixtureRequest) -> None:
    page = opened.page
    assert page.locator("h1").count() == 1
    assert page.title().endswith("Warpwatch")
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) == 0, "the page scrolls sideways on a phone"
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate(overflow) == 0
    controls = "[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"
    unnamed = f"{controls}.filter(e => !e.labels.length && !e.ariaLabel).length"
    assert page.evaluate(unnamed) == 0, "a control has no label"
    assert page.locator("thead th:not([scope])").count() == 0
    siblings = page.locator("link[type='application/json']").all()
    assert bool(siblings) is (request.node.callspec.params["opened"] not in WITHOUT_JSON)
    for sibling in siblings:
        found = reader.get(str(sibling.get_attribute("href")))
        assert found.status_code == 200
        assert found.json()


@pytest.fixture(scope="module")
def seen() -> dict[str, list[str]]:
    """The looks of texts on the pages so far, by theme."""
    return {"light": [], "dark": []}


def test_a_page_has_no_violation(opened: Visit, seen: dict[str, list[str]]) -> None:
    page = opened.page
    page.evaluate(AXE_SCRIPT)
    page.evaluate(LEAVE_OUT_REPEATED)
    run = "rules => axe.run({exclude: [['[data-repeated]']]}, rules).then((found) => found.violations)"
    violations = page.evaluate(run, STRUCTURE)
    for theme, looks in seen.items():
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        judged, unreadable = page.evaluate(CHECK_NEW_TEXTS, [looks, CONTRAST])
        looks += judged
        violations += unreadable
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:3]) for rule in violations] == []


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nowhere", 404, "There is nothing at /nowhere"),
        ("/jobs/999999", 404, "There is no job 999999"),
        ("/commits/ffffffff", 404, "There is no commit"),
        ("/overview?repository=nobody", 404, "warpwatch repository add"),
        ("/jobs/abc", 422, "job_id"),
    ],
)
def test_an_error_is_a_page_that_helps(reader: httpx.Client, path: str, status: int, words: str) -> None:
    answer = reader.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert words in html.unescape(answer.text)
    assert "Back to Home" in answer.text
