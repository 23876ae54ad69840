"""Signing in with a browser: at a provider of another site, by an invitation, and what a role is shown."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.test_every_page import EVERY_RULE
from tests.browser.world import World
from tests.server.provider import CLIENT_ID, CLIENT_SECRET, running_provider
from warpwatch.contract.words import AccountRole
from warpwatch.db.accounts import add_account, invite
from warpwatch.server.app import create_app
from warpwatch.server.http.access import hash_of
from warpwatch.settings import ProviderSettings, Settings

pytestmark = pytest.mark.browser
TOKEN = "the-token-of-the-server"


@pytest.fixture
def guarded(world: World, tmp_path: Path) -> Iterator[str]:
    """The address of a server that wants to know who asks. To a browser its provider, on localhost, is another site."""
    with running_provider("localhost") as provider, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        chosen = ProviderSettings(provider.url, CLIENT_ID, CLIENT_SECRET, (("@acme.example", AccountRole.VIEWER),))
        settings = Settings(
            home=tmp_path, database_url=world.database.url, token=TOKEN, server_url=address, provider=chosen
        )
        server = uvicorn.Server(uvicorn.Config(create_app(settings, world.database, judge=False), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield address
        server.should_exit = True
        server.force_exit = True
        thread.join()


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Page]:
    """A browser that knows nobody."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(15_000)
    yield page
    context.close()


def test_signing_in_at_a_provider_of_another_site(guarded: str, visitor: Page) -> None:
    """The strict cookie of the session must survive the way back from there."""
    visitor.goto(guarded)
    expect(visitor).to_have_url(f"{guarded}/login")
    assert Axe().run(visitor, options=EVERY_RULE).response["violations"] == []
    visitor.get_by_role("link", name="Sign in at localhost").click()
    expect(visitor).to_have_url(f"{guarded}/")
    expect(visitor.get_by_role("button", name="Sign out")).to_be_visible()
    visitor.goto(f"{guarded}/settings/people?tab=users")
    expect(visitor.get_by_role("heading", level=1)).to_have_text("Not allowed")
    visitor.goto(f"{guarded}/settings/people")
    expect(visitor.locator("main")).to_contain_text("ann@acme.example")
    visitor.get_by_role("button", name="Sign out").click()
    expect(visitor).to_have_url(f"{guarded}/login")


def test_an_invitation(guarded: str, visitor: Page, world: World) -> None:
    with world.database.session() as session:
        account = add_account(session, "bob", AccountRole.SUBMITTER)
        invite(session, account, hash_of("wwi_bob"), datetime.now(UTC) + timedelta(days=1))
    visitor.goto(f"{guarded}/login/invitation?token=wwi_bob")
    assert Axe().run(visitor, options=EVERY_RULE).response["violations"] == []
    visitor.get_by_role("button", name="Accept").click()
    token = visitor.locator("#issued").inner_text()
    assert Axe().run(visitor, options=EVERY_RULE).response["violations"] == []
    visitor.get_by_role("link", name="To Home").click()
    visitor.get_by_role("button", name="Sign out").click()
    visitor.get_by_label("Token").fill("wwp_wrong")
    visitor.get_by_role("button", name="Sign in").click()
    expect(visitor.locator("#token-error")).to_be_visible()
    visitor.get_by_label("Token").fill(token)
    visitor.get_by_role("button", name="Sign in").click()
    expect(visitor).to_have_url(f"{guarded}/")
