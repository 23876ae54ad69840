"""The inbox is worked through with the keyboard, and its filters apply at once."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.world import World

pytestmark = pytest.mark.browser
ROW = "table.events tbody tr"


def opened(visit: Visit, address: str = "/regressions") -> Page:
    """The inbox after its patterns have come."""
    page = visit.open(address)
    expect(page.locator("#whole[hx-get]")).to_have_count(0)
    return page


def test_keys_move_select_open_and_triage(visit: Visit, world: World, reader: httpx.Client) -> None:
    page = opened(visit, "/regressions?tab=improvements")
    expect(page.locator(ROW)).to_have_count(1)
    page.keyboard.press("j")
    expect(page.locator(f"{ROW} th a")).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator("[name=chosen]")).to_be_checked()
    page.keyboard.press("e")
    expect(page.get_by_label("Sign as")).to_be_focused()
    page.get_by_label("Sign as").fill("First Author")
    page.locator(f"{ROW} th a").focus()
    page.keyboard.press("a")
    expect(page.locator(ROW).first).to_contain_text("First Author")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"/regressions/{world.ids['faster']}\\?"))
    page = opened(visit, "/regressions?tab=improvements")
    page.keyboard.press("j")
    page.keyboard.press("e")
    expect(page.locator(ROW)).to_have_count(0)
    row = reader.get(f"/api/v1/regressions/{world.ids['faster']}").json()["regression"]
    assert (row["state"], row["assignee"]) == ("accepted", "First Author")
    body = {"author": "First Author", "state": "new", "assignee": None}
    assert reader.patch(f"/api/v1/regressions/{world.ids['faster']}", json=body).status_code == 200


def test_enter_after_the_name_does_what_waited_for_it(visit: Visit, world: World, reader: httpx.Client) -> None:
    address = f"/api/v1/regressions/{world.ids['faster']}"
    page = opened(visit, "/regressions?tab=improvements")
    page.keyboard.press("j")
    page.keyboard.press("e")
    page.get_by_label("Sign as").fill("First Author")
    page.keyboard.press("Enter")
    expect(page.locator(ROW)).to_have_count(0)
    row = reader.get(address).json()["regression"]
    assert (row["state"], row["assignee"]) == ("accepted", None)
    assert reader.patch(address, json={"author": "First Author", "state": "new"}).status_code == 200


def test_j_and_k_stop_at_the_ends(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1024, "height": 900})
    page = opened(visit)
    beside = page.locator(".scroll:has(table.events)").evaluate("place => place.scrollWidth - place.clientWidth")
    assert beside <= 0, "every column is in sight on a small laptop"
    links = page.locator(f"{ROW} th a")
    assert links.count() >= 2
    for _ in range(links.count() + 1):
        page.keyboard.press("j")
    expect(links.last).to_be_focused()
    page.keyboard.press("k")
    expect(links.nth(links.count() - 2)).to_be_focused()


def test_letters_after_g_lead_elsewhere(visit: Visit) -> None:
    page = opened(visit)
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url(re.compile("/jobs"))


def test_the_list_of_shortcuts_names_them(visit: Visit) -> None:
    page = opened(visit)
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Shortcuts")
    for name in ("Next regression", "Accept the selected", "Assign the selected to me", "Overview"):
        expect(dialog).to_contain_text(name)


def test_filters_apply_at_once(visit: Visit, world: World) -> None:
    page = opened(visit)
    page.get_by_label("Operator").select_option("vector_add")
    page.wait_for_url(re.compile("operator=vector_add"))
    expect(page.locator(ROW)).to_have_count(1)
    page.get_by_label("From").fill(world.shas[-1][:8])
    page.get_by_label("From").press("Tab")
    page.wait_for_url(re.compile("from="))
    expect(page.locator(ROW)).to_have_count(0)
