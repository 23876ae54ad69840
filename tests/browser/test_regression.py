"""A regression tells its story on one screen, and triage stays in reach."""

from __future__ import annotations

import re

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
    places = {}
    for name in ("History", "Cases", "Source diff"):
        box = page.get_by_role("heading", name=name, exact=True).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < top_of_bar, name
        places[name] = box
    assert places["History"]["x"] < places["Cases"]["x"]
    assert places["Source diff"]["y"] < HEIGHT - 200, "some lines of the diff are in sight"
    expect(page.locator("svg.dots-plot:visible")).to_be_in_viewport()
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height < 2 * HEIGHT, height
    page.get_by_role("heading", name="Reproduce").scroll_into_view_if_needed()
    expect(bar).to_be_in_viewport()


def test_evidence_is_read_when_its_tab_is_opened(visit: Visit, world: World) -> None:
    page = visit.open(f"/regressions/{world.ids['slower']}")
    expect(page.locator("[data-figure='rounds-1']")).to_have_count(0)
    page.evaluate("window.stays = true")
    tabs = page.locator("#evidence .tabs")
    tabs.get_by_role("link", name="Machine code").click()
    expect(page.get_by_role("heading", name="Machine code")).to_be_visible()
    expect(tabs.locator("[aria-current]")).to_have_text("Machine code")
    tabs.get_by_role("link", name="Rounds").click()
    expect(page.locator("[data-figure='rounds-1'] .scatterlayer")).to_be_visible()
    assert page.evaluate("window.stays"), "the page was loaded again"
    page.reload()
    expect(tabs.locator("[aria-current]")).to_have_text("Rounds")


def test_few_clicks_lead_from_the_overview_to_diff_triage_and_perfetto(visit: Visit, world: World) -> None:
    """One to the diff of the worst open regression, two to its triage, three from it to its trace in Perfetto."""
    visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page = visit.open("/overview")
    page.locator("a[href^='/regressions/']").first.click()
    expect(page.locator("#diff")).to_be_in_viewport()
    expect(page.get_by_role("form", name="Triage").get_by_role("button", name="Accept")).to_be_in_viewport()
    page = visit.open(f"/regressions/{world.ids['slower']}")
    page.locator("#evidence .tabs").get_by_role("link", name="Trace").click()
    page.locator("#evidence").get_by_role("link", name=re.compile(r"^trace \d+$")).first.click()
    page.get_by_text("Open in Perfetto").click()
    expect(page.locator("iframe.viewer")).to_be_visible()


def test_note_and_due_date_unfold_from_the_bar(visit: Visit, world: World) -> None:
    page = visit.open(f"/regressions/{world.ids['slower']}")
    bar = page.get_by_role("form", name="Triage")
    expect(page.get_by_label("Note")).to_be_hidden()
    bar.locator("summary").click()
    for name in ("Assignee", "Due", "Discussion link", "Note"):
        expect(bar.get_by_label(name)).to_be_in_viewport()
    visit.page.set_viewport_size({"width": 390, "height": 844})
    expect(bar.get_by_role("button", name="Accept")).to_be_visible()
    bar.locator("summary").click()
    expect(bar.get_by_role("button", name="Accept")).to_be_hidden()


def test_a_remembered_name_takes_a_regression(visit: Visit, world: World) -> None:
    address = f"/regressions/{world.ids['broken']}"
    page = visit.open(address)
    bar = page.get_by_role("form", name="Triage")
    bar.get_by_label("Sign as").fill("Sixth Author")
    bar.get_by_role("button", name="Assign to me").click()
    expect(bar).to_contain_text("Sixth Author")
    expect(bar.get_by_label("Sign as")).to_have_value("Sixth Author")
