"""What all pages share: navigation, search, shortcuts, times in the reader's zone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Visit
from tests.browser.world import COMMITS, World

pytestmark = pytest.mark.browser


def test_the_bar_stays_where_it_is(visit: Visit) -> None:
    places = set()
    for path in ("/", "/overview", "/regressions", "/commits", "/compare", "/runs/jobs", "/settings/devices"):
        page = visit.open(path)
        boxes = [page.get_by_role("link", name=name, exact=True).first.bounding_box() for name in ("Home", "Runs")]
        places.add(tuple(box["x"] for box in boxes if box))
    assert len(places) == 1


def test_a_menu_opens_by_keyboard_and_closes(visit: Visit) -> None:
    page = visit.open("/overview")
    summary = page.locator(".crumb summary")
    summary.focus()
    page.keyboard.press("Enter")
    chosen = page.locator(".crumb li").get_by_role("link", name="kernels", exact=True)
    expect(chosen).to_have_attribute("aria-current", "true")
    page.keyboard.press("Escape")
    expect(chosen).to_be_hidden()
    expect(summary).to_be_focused()
    summary.click()
    page.locator("footer span").first.click()
    expect(chosen).to_be_hidden()


def test_the_gear_leads_to_what_is_set(visit: Visit) -> None:
    page = visit.open("/commits")
    page.get_by_role("link", name="Settings").click()
    page.wait_for_url(re.compile("/settings/"))
    page.get_by_role("link", name="Repository", exact=True).click()
    page.get_by_role("link", name="Schedules", exact=True).click()
    page.wait_for_url(re.compile("tab=schedules"))
    page.get_by_text("Add schedule", exact=True).first.click()
    expect(page.get_by_label("Cron expression")).to_be_hidden()
    page.get_by_label("Custom").check()
    expect(page.get_by_label("Cron expression")).to_be_visible()


@pytest.mark.parametrize("opener", ["/", "Control+k", "button"])
def test_the_palette_leads_to_what_it_finds(visit: Visit, world: World, opener: str) -> None:
    page = visit.open("/commits")
    if opener == "button":
        page.get_by_role("button", name="Search").click()
    else:
        page.keyboard.press(opener)
    field = page.get_by_role("combobox", name="Search operators")
    expect(field).to_be_focused()
    expect(page.locator(".palette").get_by_role("option").first).to_contain_text("Home")
    field.fill("vector_add")
    expect(page.locator(".palette").get_by_role("option").first).to_contain_text("operator")
    field.fill(world.shas[5][:8])
    expect(page.locator(".palette").get_by_role("option")).to_have_count(1)
    expect(page.locator(".palette").get_by_role("option")).to_contain_text(world.shas[5][:8])
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/commits/{world.shas[5]}"))


def test_the_arrows_choose_and_escape_closes(visit: Visit) -> None:
    page = visit.open("/overview")
    page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Search operators")
    field.fill("kron")
    options = page.locator(".palette").get_by_role("option")
    expect(options.first).to_contain_text("operator")
    expect(options.nth(0)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    expect(field).to_have_attribute("aria-activedescendant", "palette-1")
    field.fill("nothing like this")
    expect(page.locator(".palette [role=status]")).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(field).to_be_hidden()


def test_shortcuts_are_listed_and_lead_to_pages(visit: Visit) -> None:
    page = visit.open("/overview")
    page.keyboard.press("?")
    shortcuts = page.get_by_role("dialog", name="Shortcuts")
    expect(shortcuts).to_be_visible()
    page.keyboard.press("Escape")
    expect(shortcuts).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url(re.compile("/runs/jobs"), wait_until="commit")


def test_shortcuts_work_while_their_list_is_open(visit: Visit) -> None:
    page = visit.open("/overview")
    page.keyboard.press("?")
    shortcuts = page.get_by_role("dialog", name="Shortcuts")
    expect(shortcuts).to_be_visible()
    page.keyboard.press("/")
    expect(shortcuts).to_be_hidden()
    expect(page.get_by_role("combobox", name="Search operators")).to_be_focused()
    # A key that comes before the next frame is drawn goes to the field that is hidden already.
    page.evaluate("""() => {
      document.querySelector(".palette").close();
      document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "?", bubbles: true}));
    }""")
    expect(page.get_by_role("dialog", name="Search")).to_be_hidden()
    expect(shortcuts).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url(re.compile("/runs/jobs"), wait_until="commit")


def test_a_key_pressed_in_a_field_is_text(visit: Visit) -> None:
    page = visit.open("/runs/new")
    field = page.locator("#base")
    field.click()
    page.keyboard.type("a/b?gj")
    expect(field).to_have_value("a/b?gj")


def test_times_are_in_the_zone_of_the_reader(browser: Browser, server: str) -> None:
    shown = {}
    for zone in ("Asia/Tokyo", "America/Los_Angeles"):
        context = browser.new_context(timezone_id=zone, locale="en-GB")
        page = context.new_page()
        page.goto(f"{server}/settings/repository?tab=schedules")
        shown[zone] = page.locator("time[data-zone=local]").first.inner_text()
        title = page.locator("time[data-zone=local]").first.get_attribute("title") or ""
        assert re.search(r"\d\d:\d\d", title)
        context.close()
    assert len(set(shown.values())) == 2
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", text) for text in shown.values())


def test_the_name_of_a_reader_is_remembered(visit: Visit, world: World) -> None:
    page = visit.open(f"/regressions/{world.ids['slower']}")
    author = page.locator(".triage-bar input[name=author]")
    author.fill("Third Author")
    with page.expect_navigation():
        author.evaluate("field => field.form.requestSubmit(field.form.querySelector('.primary'))")
    visit.open(f"/regressions/{world.ids['broken']}")
    expect(author).to_have_value("Third Author")


def tab_stops(page: Page) -> list[Any]:
    """The elements that Tab reaches, by tag and class."""
    stops = []
    for _ in range(400):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            "(({ tagName, className }) => [tagName, String(className.baseVal ?? className)])(document.activeElement)"
        )
        if stop[0] == "BODY":
            break
        stops.append(stop)
    return stops


def test_a_table_that_does_not_scroll_is_no_stop(visit: Visit, world: World) -> None:
    page = visit.open(f"/jobs/{world.ids['failed_job']}")
    page.set_viewport_size({"width": 1440, "height": 900})
    assert not [stop for stop in tab_stops(page) if "scroll" in stop[1]]
    page = visit.open(f"/commits/{world.shas[COMMITS - 1]}")
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator(".scroll[role=region]").first).to_have_attribute("tabindex", "0")


def test_the_search_goes_on_where_a_page_belongs_to_no_repository(visit: Visit) -> None:
    visit.open("/commits")
    page = visit.open("/api/v1/docs")
    page.keyboard.press("/")
    page.get_by_role("combobox", name="Search operators").fill("vector_add")
    expect(page.locator(".palette").get_by_role("option").first).to_contain_text("operator")
