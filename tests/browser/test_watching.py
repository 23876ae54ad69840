"""A person watches a case, and narrows the overview to it."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.test_using_it import HISTORY

pytestmark = pytest.mark.browser


def test_a_case_is_watched_and_the_overview_narrowed_to_it(visit: Visit) -> None:
    page = visit.open(HISTORY)
    page.locator("summary", has_text="Watch").click()
    page.get_by_label("Your name").fill("Sixth Author")
    page.get_by_role("button", name="Watch", exact=True).click()
    page.wait_for_url(re.compile("tab=commits"))
    page.locator("summary", has_text="Watch").click()
    violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [rule["id"] for rule in violations] == []
    expect(page.get_by_label("Your name")).to_have_value("Sixth Author")
    page = visit.open("/overview")
    page.get_by_label("Watched by").select_option("Sixth Author")
    page.wait_for_url(re.compile("watcher=Sixth"))
    expect(page.locator("tr[data-operator]")).to_have_count(1)
    page.locator("[data-operator=kron] details").click()
    expect(page.locator("table.grid tbody tr")).to_have_count(1)
    page = visit.open("/settings/repository?tab=watches")
    page.get_by_role("button", name="Stop: Sixth Author watches kron").click()
    expect(page.locator("main")).not_to_contain_text("Sixth Author")
