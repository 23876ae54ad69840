"""A seeded service behind a real server, and a Chromium that writes down everything it complains about."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, expect

from tests.browser.world import World, build, make_source
from warpwatch.db import migrate, registry
from warpwatch.db.database import Database
from warpwatch.server.app import create_app
from warpwatch.settings import Settings

SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


UNSENT = 2
"""Messages of htmx about one request that was ended."""


@pytest.fixture(scope="session")
def world(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with migrate.scratch_database(postgres_url) as url:
        migrate.upgrade(url)
        database = Database(url)
        made = World(database, folder / "kernels", folder, shas=make_source(folder / "kernels"))
        yield build(made)
        database.close()


@pytest.fixture(scope="session")
def server(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on the seeded database."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = Settings(home=tmp_path_factory.mktemp("home"), port=port, database_url=world.database.url)
    app = create_app(settings, world.database, judge=False)
    running = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    running.should_exit = True
    running.force_exit = True
    thread.join()


@pytest.fixture(scope="session")
def reader(server: str) -> Iterator[httpx.Client]:
    """Reads and posts without a browser, and waits as long as a busy machine needs. One client for all: a new one reads
    all certificates, which takes longer than a page."""
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def heartbeats(world: World) -> Iterator[None]:
    """The seeded workers stay alive."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(3):
            with world.database.session() as s:
                for worker in world.workers.values():
                    registry.worker_heartbeat(s, worker)

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    installed = shutil.which("chromium") or shutil.which("google-chrome")
    return {**browser_type_launch_args, "args": list(SWITCHES), **({"executable_path": installed} if installed else {})}


def wait_until(page: Page, condition: str) -> None:
    """Returns when a condition in JavaScript holds. Playwright's wait_for_function evaluates it in a script of the
    page once it did not hold at first, which our policy forbids."""
    deadline = time.monotonic() + 15
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


@dataclass
class Visit:
    """A page, and what went wrong on it so far."""

    page: Page
    server: str
    complaints: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    aborted: int = 0

    @property
    def faults(self) -> list[str]:
        """The complaints, without what htmx writes about requests that end because their page is left."""
        return self.complaints + (self.unsent if len(self.unsent) > UNSENT * self.aborted else [])

    def open(self, path: str) -> Page:
        """Go there and wait until every chart is drawn."""
        answer = self.page.goto(self.server + path, wait_until="domcontentloaded")
        assert answer is not None
        assert answer.status == 200, (path, answer.status)
        self.wait_for_charts()
        return self.page

    def wait_for_charts(self) -> None:
        expect(self.page.locator("[data-figure]:not([data-drawn])")).to_have_count(0, timeout=15_000)

    def watch(self) -> None:
        """Note errors of the console, failed requests and requests to anywhere else."""
        for event, handler in self._handlers().items():
            self.page.on(event, handler)  # type: ignore[call-overload]

    def leave(self) -> None:
        """Empties the page, for the next one that is visited in it."""
        self.page.evaluate("sessionStorage.clear(), localStorage.clear()")
        self.page.goto("about:blank")
        for event, handler in self._handlers().items():
            self.page.remove_listener(event, handler)

    def _handlers(self) -> dict[str, Callable[[Any], None]]:
        return {
            "console": self._logged,
            "pageerror": self._raised,
            "requestfailed": self._failed,
            "request": self._asked,
        }

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._note(f"console: {message.text} ({message.location['url']})")

    def _raised(self, error: Error) -> None:
        self._note(f"error: {error}")

    def _note(self, text: str) -> None:
        if text.startswith(("console: htmx:afterRequest", "console: htmx:sendAbort", "console: htmx:sendError")):
            self.unsent.append(text)
            return
        # Perfetto asks for a script on another host and for a local helper, and reports that our policy stops both.
        if "/perfetto/" not in text and "perfetto-ui-internal" not in text:
            self.complaints.append(text)

    def _failed(self, request: Request) -> None:
        # Leaving a page ends its event stream and its polls.
        if request.failure == "net::ERR_ABORTED":
            self.aborted += 1
        else:
            self._note(f"failed: {request.url} {request.failure}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.server, "data:", "blob:")):
            self._note(f"outside: {request.url}")


@pytest.fixture(scope="session")
def shared_context(browser: Browser) -> Iterator[BrowserContext]:
    """One browser profile for pages that are only looked at, so that scripts are fetched once."""
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture
def glance(shared_context: BrowserContext, server: str) -> Iterator[Visit]:
    """A page to look at; the test fails when anything on it complained."""
    found = Visit(shared_context.new_page(), server)
    found.watch()
    yield found
    found.page.close()
    assert found.faults == []


@pytest.fixture(scope="session")
def visited(browser: Browser) -> Iterator[Page]:
    """One tab for all visits: a new one starts a process and compiles every script anew, half of what a visit costs."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(15_000)
    yield page
    context.close()


@pytest.fixture
def visit(visited: Page, server: str) -> Iterator[Visit]:
    """A page whose profile remembers nothing of others; the test fails when anything on it complained."""
    visited.set_viewport_size({"width": 1280, "height": 720})
    found = Visit(visited, server)
    found.watch()
    yield found
    found.leave()
    visited.context.clear_cookies()
    visited.context.clear_permissions()
    assert found.faults == []
