"""A regression tells its story on one screen, and triage stays in reach."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.world import World

pytestmark = pytest.mark.browser
WIDTH, HEIGHT = 1440, 900


def test_the_story_fits_one_screen(visit: Visit, world: World) -> None:
    visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page = visit.open(f"/regressions/{world.ids['slower']}")
    bar = page.get_by_role("form", name="Triage")
    top_of_bar = (bar.bounding_box() or {"y": 0})["y"]
    assert 0 < top_of_bar < HEIGHT
    for name in ("History", "Cases", "Source diff", "Investigation"):
        box = page.get_by_role("heading", name=name, exact=True).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < top_of_bar, name
    expect(page.locator("svg.dots-plot:visible")).to_be_in_viewport()
    expect(page.locator(".stages li", has_text="Confirm").first).to_be_in_viewport()
    page.get_by_role("heading", name="Reproduce").scroll_into_view_if_needed()
    expect(bar).to_be_in_viewport()


def test_rounds_are_drawn_when_they_are_unfolded(visit: Visit, world: World) -> None:
    page = visit.open(f"/regressions/{world.ids['slower']}")
    rounds = page.locator("[data-figure='rounds-1']")
    expect(rounds).to_be_hidden()
    page.locator("summary", has_text="A/B rounds").click()
    expect(rounds.locator(".scatterlayer")).to_be_visible()


def test_a_remembered_name_takes_a_regression(visit: Visit, world: World) -> None:
    address = f"/regressions/{world.ids['broken']}"
    page = visit.open(address)
    bar = page.get_by_role("form", name="Triage")
    bar.get_by_label("Sign as").fill("Sixth Author")
    bar.get_by_role("button", name="Assign to me").click()
    expect(bar).to_contain_text("Sixth Author")
    expect(bar.get_by_label("Sign as")).to_have_value("Sixth Author")
