"""What is different on a phone: the menu, charts that answer taps, numbers in sight."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Visit, wait_until
from tests.browser.test_using_it import HISTORY, points
from tests.browser.world import COMMITS, World

pytestmark = pytest.mark.browser
WIDTH, HEIGHT = 390, 844


@pytest.fixture
def phone(browser: Browser, server: str) -> Iterator[Visit]:
    """A page on a touch screen of the size of a phone."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, has_touch=True, is_mobile=True)
    visit = Visit(context.new_page(), server)
    visit.watch()
    yield visit
    context.close()
    assert visit.faults == []


def test_the_menu_opens_and_closes_by_keyboard(phone: Visit) -> None:
    page = phone.open("/overview")
    button, link = page.get_by_role("button", name="Menu"), page.get_by_role("link", name="Regressions", exact=True)
    expect(link).to_be_hidden()
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(link).to_be_visible()
    violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [rule["id"] for rule in violations] == []
    page.keyboard.press("Escape")
    expect(link).to_be_hidden()
    expect(button).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "false")
    button.click()
    link.click()
    page.wait_for_url("**/regressions*")


def test_the_bar_leaves_room_for_the_page(phone: Visit) -> None:
    page = phone.open("/overview")
    box = page.locator("header.top").bounding_box()
    assert box is not None
    assert box["height"] <= 100, "one row of buttons, and one of switches"


def test_the_menu_needs_no_script(browser: Browser, server: str) -> None:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server}/overview")
    expect(page.get_by_role("link", name="Regressions", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Menu")).to_be_hidden()
    context.close()


def test_a_tap_says_what_a_point_is_and_a_drag_scrolls(phone: Visit, world: World) -> None:
    page = phone.open(HISTORY)
    address = page.url
    page.locator(".chart").scroll_into_view_if_needed()
    box = points(page).nth(5).bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    panel = page.locator(".tapped[role=status]")
    expect(panel).to_contain_text("µs")
    sha = panel.inner_text().split()[0]
    assert sha in [known[:8] for known in world.shas]
    assert page.url == address, "a tap leaves the page only by its link"
    chart = page.locator(".nsewdrag").first.bounding_box()
    assert chart is not None
    before = page.evaluate("scrollY")
    session, x, y = page.context.new_cdp_session(page), chart["x"] + 100, chart["y"] + chart["height"] - 20
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for step in range(1, 8):
        touch = {"x": x, "y": y - 20 * step}
        session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [touch]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    wait_until(page, f"scrollY > {before}")
    panel.get_by_role("link", name="Open").click()
    page.wait_for_url(f"**/commits/{sha}*")


@pytest.mark.parametrize(
    ("address", "column"),
    [("/commits/{newest}", "Median"), ("/compare?base={before}&head={newest}", "Change"), (HISTORY, "Median")],
)
def test_the_number_is_in_sight(phone: Visit, world: World, address: str, column: str) -> None:
    page = phone.open(address.format(newest=world.shas[COMMITS - 1], before=world.shas[COMMITS - 2]))
    heading = page.get_by_role("columnheader", name=column, exact=True).first.bounding_box()
    assert heading is not None
    assert heading["x"] + heading["width"] <= WIDTH


def test_a_comparison_shows_its_dots(phone: Visit, world: World) -> None:
    page = phone.open(f"/compare?base={world.shas[COMMITS - 2]}&head={world.shas[COMMITS - 1]}")
    amount = page.locator("svg.dots-plot:visible .amount").first.bounding_box()
    assert amount is not None
    assert amount["x"] + amount["width"] <= WIDTH


@pytest.mark.parametrize("width", [390, 1440])
def test_labels_of_changes_cover_nothing(visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    page = visit.open(HISTORY)
    page.evaluate("""async () => {
        const place = document.querySelector("[data-figure]");
        const one = place.layout.annotations.find(({ name }) => name === "change");
        await Plotly.relayout(place, { annotations: [...Array(40).keys()].map((x) => ({ ...one, x })) });
        await spreadLabels(place, true);
    }""")
    boxes = [box for label in page.locator(".annotation").all() if (box := label.bounding_box())]
    chart = page.locator(".nsewdrag").first.bounding_box()
    assert chart is not None
    assert len(boxes) >= 4
    assert all(
        box["x"] >= chart["x"] - 4 and box["x"] + box["width"] <= chart["x"] + chart["width"] + 4 for box in boxes
    )
    assert all(box["y"] + box["height"] <= chart["y"] + 2 for box in boxes), "labels stand above the lines"
    for a, b in combinations(boxes, 2):
        is_beside = a["x"] + a["width"] <= b["x"] + 1 or b["x"] + b["width"] <= a["x"] + 1
        is_below = a["y"] + a["height"] <= b["y"] + 1 or b["y"] + b["height"] <= a["y"] + 1
        assert is_beside or is_below


def test_many_variants_over_a_size_leave_room_for_their_lines(phone: Visit) -> None:
    page = phone.open(HISTORY)
    shown = page.evaluate("""async () => {
        const [box, place, json] = ["div", "div", "script"].map((tag) => document.createElement(tag));
        box.className = "card chart"; place.className = "plot"; place.dataset.figure = json.id = "many";
        json.type = "application/json";
        const x = [0, 25, 50, 75, 90, 95, 99], variants = [...Array(11).keys()];
        json.textContent = JSON.stringify({
          data: variants.map((number) => ({ name: `cusparse_variant_${number}`, x, y: x.map((at) => at + number) })),
          layout: { legend: { orientation: "h", x: 0, y: 1.07 }, xaxis: { tickvals: x, ticktext: x.map(String) } },
        });
        box.append(place, json); document.querySelector("main").append(box);
        await draw(place);
        const { legend, xaxis, _size } = place._fullLayout;
        return { height: _size.h, hasAllNames: legend._effHeight >= legend._height, ticks: xaxis.ticktext };
    }""")
    assert shown["height"] >= 200
    assert shown["hasAllNames"], "a legend that scrolls hides names"
    assert (shown["ticks"][0], shown["ticks"][-1], "95" in shown["ticks"]) == ("0", "99", False)
