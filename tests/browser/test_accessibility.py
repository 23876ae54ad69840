"""axe-core finds nothing in what opens on a click, in either theme; test_every_page.py asks it of the rest."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import Visit
from tests.browser.test_every_page import EVERY_RULE

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("path", "opened", "shown"),
    [
        ("/overview", "[data-operator=kron] details", "table.grid"),
        ("/history?operator=kron&variant=v3", ".save-view:not(.watch)", ".save-view:not(.watch) form"),
        ("/kernels/kron", ".watch", ".watch form"),
    ],
)
def test_what_opens_has_no_violation(glance: Visit, path: str, opened: str, shown: str) -> None:
    page = glance.open(path)
    page.locator(f"{opened} > summary").click()
    page.locator(shown).wait_for()
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        found = Axe().run(page, context={"include": [[opened]]}, options=EVERY_RULE)
        violations = found.response["violations"]
        assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]][:3]) for rule in violations] == []
