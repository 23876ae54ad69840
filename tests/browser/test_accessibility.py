"""axe-core finds nothing on any page, in either theme."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import Visit
from tests.browser.test_every_page import PAGES, address
from tests.browser.world import World

pytestmark = pytest.mark.browser
EVERY_RULE = {"resultTypes": ["violations"]}
CONTRAST = {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]}
"""The rules that depend on colours: all that can differ in the other theme."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_violation(glance: Visit, world: World, name: str) -> None:
    page = glance.open(address(world, name))
    for theme, options in (("light", EVERY_RULE), ("dark", CONTRAST)):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        violations = Axe().run(page, options=options).response["violations"]
        places = [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:3]) for rule in violations]
        assert places == [], f"{name} in {theme}"


@pytest.mark.parametrize(
    ("path", "opened", "shown"),
    [
        ("/", "[data-operator=kron] details", "table.grid"),
        ("/history?operator=kron&variant=v3", ".save-view:not(.watch)", ".save-view:not(.watch) form"),
        ("/operators/kron", ".watch", ".watch form"),
    ],
)
def test_what_opens_has_no_violation(glance: Visit, path: str, opened: str, shown: str) -> None:
    page = glance.open(path)
    page.locator(f"{opened} > summary").click()
    page.locator(shown).wait_for()
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        violations = Axe().run(page, options=EVERY_RULE).response["violations"]
        assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:3]) for rule in violations] == []
